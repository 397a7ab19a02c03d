//! What runs is not quite what was written: functions that may take too much are called by the names of their guarded
//! kind, objects are made as maps, and loops end at the deadline.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, MapExpr, operators};

use super::{construct, interrupt, library, syntax};
use crate::CompileError;
use library::kept::KEPT;

/// Of a literal, in bytes.
const SHORT: usize = 32;

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
        Expr::List(list) => {
            list.elements.iter_mut().for_each(keep);
            Ok(())
        }
        Expr::Map(map) => {
            keep_values(map);
            Ok(())
        }
        Expr::Struct(value) => {
            tree.expr = construct::as_map(value, tree.id);
            if let Expr::Map(map) = &mut tree.expr {
                keep_values(map);
            }
            Ok(())
        }
        Expr::Comprehension(comprehension) => interrupt::interrupt(comprehension),
        _ => Ok(()),
    }
}

fn keep_values(map: &mut MapExpr) {
    for entry in &mut map.entries {
        if let EntryExpr::MapEntry(entry) = &mut entry.expr {
            keep(&mut entry.value);
        }
    }
}

/// Counts what a list or map is to hold. Short literals are not worth it: they are what was written, and the rounds of loops
/// are bounded.
fn keep(part: &mut IdedExpr) {
    let is_small = match &part.expr {
        Expr::Literal(LiteralValue::String(text)) => text.inner().len() <= SHORT,
        Expr::Literal(LiteralValue::Bytes(bytes)) => bytes.inner().len() <= SHORT,
        Expr::Literal(_) => true,
        _ => false,
    };
    if !is_small {
        let id = part.id;
        let args = vec![std::mem::take(part)];
        *part = IdedExpr { id, expr: Expr::Call(CallExpr { func_name: KEPT.to_owned(), target: None, args }) };
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
    // Their texts may be several times as long as what they are given.
    let in_strings =
        matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "strings");
    if call.func_name == "format" || (in_strings && call.func_name == "quote") {
        call.args.iter_mut().for_each(keep);
    }
    if let Some(guarded) = library::guarded(&call.func_name) {
        guarded.clone_into(&mut call.func_name);
    }
}
