//! Functions of the standard library with limits on their results and their time. The deadline does not interrupt a function,
//! and an expression that doubles a string thirty times would take all memory. The module `rewrite` replaces calls of the
//! standard functions by calls of these. No expression can contain the names of the guarded functions.
//!
//! `matches` is replaced for another reason: its patterns have the syntax of RE2.

use cel::common::ast::operators;
use cel::common::types::{CelInt, CelList, CelString, DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, argument, int, list, return_bool, return_text, text};
use super::memory::Size;
use super::overload::{function, method};

/// The largest result of a function: the bytes of a string, or the elements of a list.
pub(super) const MAX_SIZE: usize = 4 * 1024 * 1024;
/// The largest number of comparisons between the elements of two lists.
const MAX_COMPARISONS: usize = 10_000_000;
/// The longest list of `lists.range`.
const MAX_RANGE: i64 = 10_000;

/// Returns the name of the guarded function that replaces a function; `None` if the function needs no guard.
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

/// Returns an error if the result of a function would be too large.
fn check_size(name: &str, size: usize) -> Result<()> {
    if size <= MAX_SIZE {
        return Ok(());
    }
    Err(ExecutionError::function_error(name, format!("the result is larger than {MAX_SIZE}")))
}

/// Returns an error if a function would compare too many elements.
pub(super) fn check_comparisons(name: &str, left: usize, right: usize) -> Result<()> {
    if left.saturating_mul(right) <= MAX_COMPARISONS {
        return Ok(());
    }
    Err(ExecutionError::function_error(name, "the lists are too long to be compared"))
}

/// Returns the size of a string or a list with all of its elements.
fn size(value: &dyn Val) -> usize {
    let Size { values, bytes } = Size::of(value);
    // `values` counts the value itself too.
    (values + bytes).saturating_sub(1)
}

fn add<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let (left, right) = (argument(&arguments, 0)?, argument(&arguments, 1)?);
    check_size("+", size(left).saturating_add(size(right)))?;
    let adder = left.as_adder().ok_or_else(|| {
        let types = [left, right].map(|value| value.get_type().name().to_owned());
        ExecutionError::no_such_overload(operators::ADD, types.to_vec())
    })?;
    Ok(CowVal::Owned(adder.add(right)?.into_owned()))
}

/// Returns the first of each set of equal elements, in order.
fn distinct<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let mut unique: Vec<&Box<dyn Val + 'v>> = Vec::new();
    for (index, item) in list(&arguments, 0)?.iter().enumerate() {
        check_comparisons("distinct", index, unique.len())?;
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

/// Appends the items to `flat`. The nesting of the lists bounds the recursion.
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
            .ok_or_else(|| ExecutionError::function_error("join", "an element is not a string"))
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    let length = texts.iter().map(|text| text.len()).sum::<usize>();
    check_size("join", length.saturating_add(separator.len().saturating_mul(items.len())))?;
    return_text(texts.join(separator))
}

fn range<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let length = int(&arguments, 0)?;
    if !(0..=MAX_RANGE).contains(&length) {
        let why = format!("the length is {length}; it must be between 0 and {MAX_RANGE}");
        return Err(ExecutionError::function_error("lists.range", why));
    }
    let items = (0..length).map(|item| Box::new(CelInt::from(item)) as Box<dyn Val>);
    Ok(CowVal::owned(CelList::from(items.collect::<Vec<_>>())))
}

fn matches<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    return_bool(super::regex::compile("matches", text(&arguments, 1)?)?.is_match(text(&arguments, 0)?))
}

fn replace<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let (whole, old, new) = (text(&arguments, 0)?, text(&arguments, 1)?, text(&arguments, 2)?);
    let limit = if arguments.len() > 3 { int(&arguments, 3)? } else { -1 };
    // A negative limit means no limit.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let most = if old.is_empty() { whole.len() + 1 } else { whole.len() / old.len() };
    check_size("replace", whole.len().saturating_add(most.min(limit).saturating_mul(new.len())))?;
    return_text(whole.replacen(old, new, limit))
}
