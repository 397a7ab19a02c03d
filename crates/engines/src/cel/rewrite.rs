//! Rewrites the syntax tree before the evaluation. Calls of functions that may need too much time or memory become calls of
//! guarded functions, constructed objects become maps, and loops end at the deadline.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, MapExpr, operators};

use super::{construct, interrupt, library, syntax};
use crate::CompileError;
use library::comprehensions::SORTED;
use library::memory::COUNT;

/// The longest string or bytes literal whose memory is not counted, in bytes.
const MAX_UNCOUNTED_LITERAL: usize = 32;

/// Rewrites a tree that has been checked. The check would refuse the functions that this inserts.
pub(super) fn rewrite(tree: &mut IdedExpr) -> Result<(), CompileError> {
    // The recursion is bounded: the check has limited the depth of the tree.
    for part in syntax::parts_mut(&mut tree.expr) {
        rewrite(part)?;
    }
    match &mut tree.expr {
        Expr::Call(call) => {
            rename(call);
            Ok(())
        }
        Expr::List(list) => {
            list.elements.iter_mut().for_each(count);
            Ok(())
        }
        Expr::Map(map) => {
            count_values(map);
            Ok(())
        }
        Expr::Struct(value) => {
            tree.expr = construct::as_map(value, tree.id);
            if let Expr::Map(map) = &mut tree.expr {
                count_values(map);
            }
            Ok(())
        }
        Expr::Comprehension(comprehension) => interrupt::interrupt(comprehension),
        _ => Ok(()),
    }
}

/// Has each loop read a map in the order of its keys: cel has no order of its own. The tree has been rewritten.
pub(super) fn sort_maps(tree: &mut IdedExpr) {
    for part in syntax::parts_mut(&mut tree.expr) {
        sort_maps(part);
    }
    if let Expr::Comprehension(comprehension) = &mut tree.expr {
        let range = &mut comprehension.iter_range;
        if !matches!(range.expr, Expr::List(_)) {
            let id = range.id;
            let args = vec![std::mem::take(range)];
            let call = CallExpr { func_name: SORTED.to_owned(), target: None, args };
            *range = IdedExpr { id, expr: Expr::Call(call) };
        }
    }
}

fn count_values(map: &mut MapExpr) {
    for entry in &mut map.entries {
        if let EntryExpr::MapEntry(entry) = &mut entry.expr {
            count(&mut entry.value);
        }
    }
}

/// Wraps an element of a list or map into a function that counts its memory. Short literals need no count: the expression itself
/// and the number of iterations limit their memory.
fn count(part: &mut IdedExpr) {
    let is_small = match &part.expr {
        Expr::Literal(LiteralValue::String(text)) => text.inner().len() <= MAX_UNCOUNTED_LITERAL,
        Expr::Literal(LiteralValue::Bytes(bytes)) => bytes.inner().len() <= MAX_UNCOUNTED_LITERAL,
        Expr::Literal(_) => true,
        _ => false,
    };
    if !is_small {
        let id = part.id;
        let args = vec![std::mem::take(part)];
        *part = IdedExpr { id, expr: Expr::Call(CallExpr { func_name: COUNT.to_owned(), target: None, args }) };
    }
}

/// Replaces the function of a call by its guarded function, if there is one.
fn rename(call: &mut CallExpr) {
    // A loop adds to its accumulator. cel appends in place only if it recognises the operator.
    let adds_to_accumulator =
        matches!(call.args.first(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name.starts_with('@'));
    if call.func_name == operators::ADD && adds_to_accumulator {
        return;
    }
    let in_lists = matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "lists");
    if in_lists && call.func_name == "range" {
        call.target = None;
        "lists.range".clone_into(&mut call.func_name);
    }
    // The result of these functions may be several times as long as the arguments.
    let in_strings =
        matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "strings");
    if call.func_name == "format" || (in_strings && call.func_name == "quote") {
        call.args.iter_mut().for_each(count);
    }
    if let Some(guarded) = library::guarded(&call.func_name) {
        guarded.clone_into(&mut call.func_name);
    }
}
