//! Parses expressions, and walks cel's syntax trees.

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr};
use cel::{Env, IdedExpr};

use crate::CompileError;

/// A parsed expression, with the positions of its parts.
pub(crate) struct Parsed {
    pub tree: IdedExpr,
    source: String,
    offsets: Box<dyn Fn(u64) -> Option<usize>>,
}

/// Parses an expression whose size and nesting have been checked.
pub(crate) fn parse(environment: &Env, source: &str) -> Result<Parsed, CompileError> {
    let program = environment.compile(source).map_err(|errors| {
        let messages = errors.errors.iter().map(|error| {
            let (line, column) = error.pos;
            format!("line {line}, column {column}: {}", error.msg)
        });
        CompileError::Invalid(messages.collect::<Vec<_>>().join("; "))
    })?;
    let tree = program.expression().clone();
    let offsets = Box::new(move |id| Some(program.source_info().offset_for(id)?.0 as usize));
    Ok(Parsed { tree, source: source.to_owned(), offsets })
}

impl Parsed {
    /// Returns a message with the position of a part before it.
    pub(crate) fn at(&self, part: &IdedExpr, message: &str) -> String {
        let Some(offset) = (self.offsets)(part.id) else { return message.to_owned() };
        let before: String = self.source.chars().take(offset).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|character| *character != '\n').count() + 1;
        format!("line {line}, column {column}: {message}")
    }
}

/// Returns the direct parts of an expression; none for a comprehension, because it declares variables for some of its parts.
pub(crate) fn parts(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(entry_parts).collect(),
        Expr::Struct(value) => value.entries.iter().flat_map(entry_parts).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Comprehension(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_parts(entry: &IdedEntryExpr) -> Vec<&IdedExpr> {
    match &entry.expr {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

/// Returns all direct parts of an expression, including those of a comprehension.
pub(super) fn parts_mut(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    match expression {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).collect(),
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(entry_parts_mut).collect(),
        Expr::Struct(value) => value.entries.iter_mut().flat_map(entry_parts_mut).collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Comprehension(loops) => vec![
            &mut loops.iter_range,
            &mut loops.accu_init,
            &mut loops.loop_cond,
            &mut loops.loop_step,
            &mut loops.result,
        ],
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_parts_mut(entry: &mut IdedEntryExpr) -> Vec<&mut IdedExpr> {
    match &mut entry.expr {
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
        EntryExpr::StructField(field) => vec![&mut field.value],
    }
}
