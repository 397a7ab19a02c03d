//! The syntax trees of loops with one variable, in the shapes of cel's own macros. The interpreter recognises these shapes, and
//! the module `interrupt` can end such loops.

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators};
use cel::parser::MacroExprHelper;

/// The name of the accumulator of a loop. No expression can contain this name.
const RESULT: &str = "@result";
/// The name of the loop variable: a pair of key and value.
const ENTRY: &str = "@entry";

type Helper<'a, 'b> = &'a mut MacroExprHelper<'b>;

pub(super) struct Loop;

impl Loop {
    pub(super) fn all(helper: Helper<'_, '_>, over: IdedExpr, condition: IdedExpr) -> IdedExpr {
        let so_far = ident(helper, RESULT);
        let go_on = call(helper, operators::NOT_STRICTLY_FALSE, vec![so_far]);
        let so_far = ident(helper, RESULT);
        let step = call(helper, operators::LOGICAL_AND, vec![so_far, condition]);
        let result = ident(helper, RESULT);
        let init = boolean(helper, true);
        comprehension(helper, over, init, go_on, step, result)
    }

    pub(super) fn exists(helper: Helper<'_, '_>, over: IdedExpr, condition: IdedExpr) -> IdedExpr {
        let so_far = ident(helper, RESULT);
        let not_yet = call(helper, operators::LOGICAL_NOT, vec![so_far]);
        let go_on = call(helper, operators::NOT_STRICTLY_FALSE, vec![not_yet]);
        let so_far = ident(helper, RESULT);
        let step = call(helper, operators::LOGICAL_OR, vec![so_far, condition]);
        let result = ident(helper, RESULT);
        let init = boolean(helper, false);
        comprehension(helper, over, init, go_on, step, result)
    }

    pub(super) fn exists_one(helper: Helper<'_, '_>, over: IdedExpr, condition: IdedExpr) -> IdedExpr {
        let go_on = boolean(helper, true);
        let (so_far, one) = (ident(helper, RESULT), int(helper, 1));
        let more = call(helper, operators::ADD, vec![so_far, one]);
        let so_far = ident(helper, RESULT);
        let step = call(helper, operators::CONDITIONAL, vec![condition, more, so_far]);
        let (so_far, one) = (ident(helper, RESULT), int(helper, 1));
        let result = call(helper, operators::EQUALS, vec![so_far, one]);
        let init = int(helper, 0);
        comprehension(helper, over, init, go_on, step, result)
    }

    pub(super) fn list(helper: Helper<'_, '_>, over: IdedExpr, filter: Option<IdedExpr>, item: IdedExpr) -> IdedExpr {
        let go_on = boolean(helper, true);
        let (so_far, item) = (ident(helper, RESULT), list(helper, vec![item]));
        let mut step = call(helper, operators::ADD, vec![so_far, item]);
        if let Some(filter) = filter {
            let so_far = ident(helper, RESULT);
            step = call(helper, operators::CONDITIONAL, vec![filter, step, so_far]);
        }
        let result = ident(helper, RESULT);
        let init = list(helper, Vec::new());
        comprehension(helper, over, init, go_on, step, result)
    }
}

fn comprehension(
    helper: Helper<'_, '_>,
    over: IdedExpr,
    init: IdedExpr,
    go_on: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
) -> IdedExpr {
    helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: over,
        iter_var: ENTRY.to_owned(),
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init: init,
        loop_cond: go_on,
        loop_step: step,
        result,
    })))
}

/// Binds a value to a name inside of an expression, by a loop over an empty list.
pub(super) fn bind(helper: Helper<'_, '_>, name: &str, value: IdedExpr, inside: IdedExpr) -> IdedExpr {
    let (nothing, never, step) = (list(helper, Vec::new()), boolean(helper, false), ident(helper, name));
    helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: nothing,
        iter_var: "@unused".to_owned(),
        iter_var2: None,
        accu_var: name.to_owned(),
        accu_init: value,
        loop_cond: never,
        loop_step: step,
        result: inside,
    })))
}

/// Returns an element of the pair: 0 is the key, 1 the value.
pub(super) fn entry(helper: Helper<'_, '_>, index: i64) -> IdedExpr {
    let (entry, index) = (ident(helper, ENTRY), int(helper, index));
    call(helper, operators::INDEX, vec![entry, index])
}

pub(super) fn call(helper: Helper<'_, '_>, name: &str, arguments: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args: arguments }))
}

pub(super) fn list(helper: Helper<'_, '_>, elements: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::List(ListExpr::new(elements)))
}

fn ident(helper: Helper<'_, '_>, name: &str) -> IdedExpr {
    helper.next_expr(Expr::Ident(name.to_owned()))
}

fn boolean(helper: Helper<'_, '_>, value: bool) -> IdedExpr {
    helper.next_expr(Expr::Literal(LiteralValue::Boolean(value.into())))
}

fn int(helper: Helper<'_, '_>, value: i64) -> IdedExpr {
    helper.next_expr(Expr::Literal(LiteralValue::Int(value.into())))
}
