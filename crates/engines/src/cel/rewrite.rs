//! What runs is not quite what was written: functions that may take too much are called by the names of their guarded
//! kind, objects are made as maps, and loops end at the deadline.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, operators};

use super::{construct, interrupt, library, syntax};
use crate::CompileError;

/// Only after the check: it would find functions that nobody wrote.
pub(super) fn rewrite(tree: &mut IdedExpr) -> Result<(), CompileError> {
    // Recursive: the depth of trees is bounded.
    for part in syntax::parts_mut(&mut tree.expr) {
        rewrite(part)?;
    }
    match &mut tree.expr {
        Expr::Call(call) => {
            rename(call);
            Ok(())
        }
        Expr::Struct(value) => {
            tree.expr = construct::as_map(value, tree.id);
            Ok(())
        }
        Expr::Comprehension(comprehension) => interrupt::interrupt(comprehension),
        _ => Ok(()),
    }
}

fn rename(call: &mut CallExpr) {
    // What a loop gathers: cel appends in place only where it recognises the operator.
    let gathers = matches!(call.args.first(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name.starts_with('@'));
    if call.func_name == operators::ADD && gathers {
        return;
    }
    let in_lists = matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "lists");
    if in_lists && call.func_name == "range" {
        call.target = None;
        "lists.range".clone_into(&mut call.func_name);
    }
    if let Some(guarded) = library::guarded(&call.func_name) {
        guarded.clone_into(&mut call.func_name);
    }
}
