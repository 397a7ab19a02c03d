//! List functions: `isSorted`, `sum`, `min`, `max`, `indexOf`, `lastIndexOf`. The cel crate has `slice`, `sort` and others.

use std::cmp::Ordering;

use cel::common::types::{CelInt, DYN_TYPE, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, argument, list, return_bool, return_int};
use super::overload::method;

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    method(environment, LIST_TYPE, "isSorted", vec![], is_sorted)?;
    method(environment, LIST_TYPE, "sum", vec![], sum)?;
    method(environment, LIST_TYPE, "min", vec![], |arguments| extreme("min", Ordering::Less, &arguments))?;
    method(environment, LIST_TYPE, "max", vec![], |arguments| extreme("max", Ordering::Greater, &arguments))?;
    method(environment, LIST_TYPE, "indexOf", vec![DYN_TYPE], index_of)?;
    method(environment, LIST_TYPE, "lastIndexOf", vec![DYN_TYPE], last_index_of)
}

fn compare(name: &str, left: &dyn Val, right: &dyn Val) -> Result<Ordering> {
    let comparer = left.as_comparer().ok_or_else(|| {
        ExecutionError::function_error(name, format!("elements of type {} have no order", left.get_type().name()))
    })?;
    comparer.compare(right)
}

fn is_sorted<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    for pair in list(&arguments, 0)?.windows(2) {
        if compare("isSorted", pair[0].as_ref(), pair[1].as_ref())? == Ordering::Greater {
            return return_bool(false);
        }
    }
    return_bool(true)
}

/// Sums a list. The sum of an empty list is the int 0, because the type of its elements is unknown.
fn sum<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let items = list(&arguments, 0)?;
    let Some((first, rest)) = items.split_first() else { return return_int(0) };
    let names = ["int", "uint", "double", "google.protobuf.Duration"];
    if let Some(item) = items.iter().find(|item| !names.contains(&item.get_type().name())) {
        let why = format!("elements of type {} have no sum", item.get_type().name());
        return Err(ExecutionError::function_error("sum", why));
    }
    let mut total = first.clone();
    for item in rest {
        let adder = total.as_adder().ok_or_else(|| ExecutionError::function_error("sum", "no sum"))?;
        total = adder.add(item.as_ref())?.into_owned();
    }
    Ok(CowVal::Owned(total))
}

fn extreme<'b, 'v>(name: &str, wanted: Ordering, arguments: &[CowVal<'b, 'v>]) -> Result<CowVal<'b, 'v>> {
    let mut items = list(arguments, 0)?.iter();
    let mut found =
        items.next().ok_or_else(|| ExecutionError::function_error(name, format!("{name} of an empty list")))?;
    for item in items {
        if compare(name, item.as_ref(), found.as_ref())? == wanted {
            found = item;
        }
    }
    Ok(CowVal::Owned(found.clone()))
}

fn index_of<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let wanted = argument(&arguments, 1)?;
    return_index(list(&arguments, 0)?.iter().position(|item| item.equals(wanted)))
}

fn last_index_of<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    let wanted = argument(&arguments, 1)?;
    return_index(list(&arguments, 0)?.iter().rposition(|item| item.equals(wanted)))
}

fn return_index<'b, 'v>(index: Option<usize>) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::owned(CelInt::from(index.and_then(|index| i64::try_from(index).ok()).unwrap_or(-1))))
}
