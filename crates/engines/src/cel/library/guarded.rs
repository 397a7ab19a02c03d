//! Functions of the standard library under a limit of what they may make or how long they may take: neither ends at a
//! deadline, and an expression that doubles a text thirty times would take all memory. Expressions call them by names
//! that cannot be written: see `rewrite`.
//!
//! `matches` is here for its patterns, which are RE2's.

use cel::common::ast::operators;
use cel::common::types::{CelInt, CelList, CelString, DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, argument, give_bool, give_text, int, list, text};
use super::kept::Size;
use super::overload::{function, method};

/// The most bytes of a text, or elements of a list, that a function makes.
pub(super) const MAX_SIZE: usize = 4 * 1024 * 1024;
/// The most elements that are compared each with each other.
const MAX_COMPARISONS: usize = 10_000_000;
/// The longest `lists.range`.
const MAX_RANGE: i64 = 10_000;

/// The name that stands for a function in expressions that run, if it is another.
pub(in crate::cel) fn guarded(name: &str) -> Option<&'static str> {
    Some(match name {
        operators::ADD => "@add",
        "distinct" => "@distinct",
        "flatten" => "@flatten",
        "join" => "@join",
        "lists.range" => "@range",
        "matches" => "@matches",
        "replace" => "@replace",
        _ => return None,
    })
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    function(environment, "@add", vec![DYN_TYPE, DYN_TYPE], add)?;
    method(environment, LIST_TYPE, "@distinct", vec![], distinct)?;
    method(environment, LIST_TYPE, "@flatten", vec![], flatten)?;
    method(environment, LIST_TYPE, "@flatten", vec![INT_TYPE], flatten)?;
    method(environment, LIST_TYPE, "@join", vec![], join)?;
    method(environment, LIST_TYPE, "@join", vec![STRING_TYPE], join)?;
    function(environment, "@range", vec![INT_TYPE], range)?;
    function(environment, "@matches", vec![STRING_TYPE, STRING_TYPE], matches)?;
    method(environment, STRING_TYPE, "@matches", vec![STRING_TYPE], matches)?;
    method(environment, STRING_TYPE, "@replace", vec![STRING_TYPE, STRING_TYPE], replace)?;
    method(environment, STRING_TYPE, "@replace", vec![STRING_TYPE, STRING_TYPE, INT_TYPE], replace)
}

/// Refuses to make what is too large.
pub(super) fn within(name: &str, size: usize) -> Result<()> {
    if size <= MAX_SIZE {
        return Ok(());
    }
    Err(ExecutionError::function_error(name, format!("the result is larger than {MAX_SIZE}")))
}

/// Refuses to compare too many elements.
pub(super) fn comparable(name: &str, left: usize, right: usize) -> Result<()> {
    if left.saturating_mul(right) <= MAX_COMPARISONS {
        return Ok(());
    }
    Err(ExecutionError::function_error(name, "the lists are too long to be compared"))
}

/// How large a text or a list is, with all that is in it.
fn size(value: &dyn Val) -> usize {
    let Size { values, bytes } = Size::of(value);
    // The value itself is none of its elements.
    (values + bytes).saturating_sub(1)
}

fn add<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let (left, right) = (argument(&arguments, 0)?, argument(&arguments, 1)?);
    within("+", size(left).saturating_add(size(right)))?;
    let adder = left.as_adder().ok_or_else(|| {
        let types = [left, right].map(|value| value.get_type().name().to_owned());
        ExecutionError::no_such_overload(operators::ADD, types.to_vec())
    })?;
    Ok(CowVal::Owned(adder.add(right)?.into_owned()))
}

/// The first of each set of equal elements, in order.
fn distinct<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let mut unique: Vec<&Box<dyn Val + 'v>> = Vec::new();
    for (index, item) in list(&arguments, 0)?.iter().enumerate() {
        comparable("distinct", index, unique.len())?;
        if !unique.iter().any(|seen| seen.equals(item.as_ref())) {
            unique.push(item);
        }
    }
    Ok(CowVal::owned(CelList::from(unique.into_iter().cloned().collect::<Vec<_>>())))
}

fn flatten<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let depth = if arguments.len() > 1 { int(&arguments, 1)? } else { 1 };
    let depth =
        u64::try_from(depth).map_err(|_| ExecutionError::function_error("flatten", "level must be non-negative"))?;
    let mut flat = Vec::new();
    flatten_into(list(&arguments, 0)?, depth, &mut flat);
    Ok(CowVal::owned(CelList::from(flat)))
}

/// Recursive only as deep as lists are nested.
fn flatten_into<'v>(items: &[Box<dyn Val + 'v>], depth: u64, flat: &mut Vec<Box<dyn Val + 'v>>) {
    for item in items {
        match item.downcast_ref::<CelList>().filter(|_| depth > 0) {
            Some(inner) => flatten_into(inner.inner(), depth - 1, flat),
            None => flat.push(item.clone()),
        }
    }
}

fn join<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let separator = if arguments.len() > 1 { text(&arguments, 1)? } else { "" };
    let items = list(&arguments, 0)?;
    let texts = items.iter().map(|item| {
        item.downcast_ref::<CelString>()
            .map(CelString::inner)
            .ok_or_else(|| ExecutionError::function_error("join", "an element is no string"))
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    let length = texts.iter().map(|text| text.len()).sum::<usize>();
    within("join", length.saturating_add(separator.len().saturating_mul(items.len())))?;
    give_text(texts.join(separator))
}

fn range<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let length = int(&arguments, 0)?;
    if !(0..=MAX_RANGE).contains(&length) {
        let why = format!("the length is {length}, not one from 0 to {MAX_RANGE}");
        return Err(ExecutionError::function_error("lists.range", why));
    }
    let items = (0..length).map(|item| Box::new(CelInt::from(item)) as Box<dyn Val>);
    Ok(CowVal::owned(CelList::from(items.collect::<Vec<_>>())))
}

fn matches<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    give_bool(super::regex::compile("matches", text(&arguments, 1)?)?.is_match(text(&arguments, 0)?))
}

fn replace<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let (whole, old, new) = (text(&arguments, 0)?, text(&arguments, 1)?, text(&arguments, 2)?);
    let limit = if arguments.len() > 3 { int(&arguments, 3)? } else { -1 };
    // Negative is without a limit.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let most = if old.is_empty() { whole.len() + 1 } else { whole.len() / old.len() };
    within("replace", whole.len().saturating_add(most.min(limit).saturating_mul(new.len())))?;
    give_text(whole.replacen(old, new, limit))
}
