//! Macros with two variables: index and element of a list, or key and value of a map. `all`, `exists`, `existsOne`,
//! `transformList`, `transformMap`, `transformMapEntry`.
//!
//! cel's interpreter supports loops with one variable only. Each macro becomes a loop over `@entries(target)`, a list of pairs,
//! and binds the two variables inside of the loop.

mod entries;
mod fold;

use cel::common::ast::{Expr, IdedExpr};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env};

pub(in crate::cel) use entries::SORTED;
use fold::{Loop, call};

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    entries::declare(environment)?;
    for name in ["all", "exists", "existsOne", "exists_one"] {
        environment.add_macro(Macro::receiver(name, 3, move |helper, target, arguments| {
            let Some(mut parts) = Parts::take(helper, target, arguments)? else { return Ok(None) };
            let condition = parts.body(helper)?;
            let range = parts.range;
            Ok(Some(match name {
                "all" => Loop::all(helper, range, condition),
                "exists" => Loop::exists(helper, range, condition),
                _ => Loop::exists_one(helper, range, condition),
            }))
        }))?;
    }
    for (name, finish) in
        [("transformList", None), ("transformMap", Some("@map")), ("transformMapEntry", Some("@merge"))]
    {
        for count in [3, 4] {
            environment.add_macro(Macro::receiver(name, count, move |helper, target, arguments| {
                let Some(mut parts) = Parts::take(helper, target, arguments)? else { return Ok(None) };
                let mut item = parts.body(helper)?;
                if name == "transformMap" {
                    let key = fold::entry(helper, 0);
                    item = fold::list(helper, vec![key, item]);
                }
                let filter = if count == 4 { Some(parts.body(helper)?) } else { None };
                let list = Loop::list(helper, parts.range, filter, item);
                Ok(Some(match finish {
                    Some(finish) => call(helper, finish, vec![list]),
                    None => list,
                }))
            }))?;
        }
    }
    Ok(())
}

/// The parts of a macro call.
struct Parts {
    /// The list of pairs that the loop iterates over.
    range: IdedExpr,
    /// The names of the two variables.
    key: String,
    value: String,
    /// The arguments after the two variables.
    rest: Vec<IdedExpr>,
}

impl Parts {
    fn take(
        helper: &mut MacroExprHelper<'_>,
        target: &mut Option<IdedExpr>,
        arguments: &mut Vec<IdedExpr>,
    ) -> Result<Option<Self>, ParseError> {
        let [key, value, ..] = arguments.as_slice() else { return Ok(None) };
        let (key, value) = (name(helper, key)?, name(helper, value)?);
        let Some(target) = target.take() else { return Ok(None) };
        let range = call(helper, "@entries", vec![target]);
        Ok(Some(Self { range, key, value, rest: arguments.split_off(2) }))
    }

    /// Removes the last argument, and binds the two variables in it.
    fn body(&mut self, helper: &mut MacroExprHelper<'_>) -> Result<IdedExpr, ParseError> {
        let body = self.rest.pop().ok_or_else(|| helper.new_error(0, "an argument is missing"))?;
        let value = fold::entry(helper, 1);
        let body = fold::bind(helper, &self.value, value, body);
        let key = fold::entry(helper, 0);
        Ok(fold::bind(helper, &self.key, key, body))
    }
}

fn name(helper: &MacroExprHelper<'_>, argument: &IdedExpr) -> Result<String, ParseError> {
    match &argument.expr {
        Expr::Ident(name) => Ok(name.clone()),
        _ => Err(helper.new_error(argument.id, "argument must be a simple name")),
    }
}
