//! Conversion of arguments and results. cel selects an overload by the types of the arguments. An argument of another type is an
//! error nevertheless.

use cel::common::types::{CelBool, CelInt, CelList, CelString};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{ExecutionError, Value};

pub(super) type Result<T> = std::result::Result<T, ExecutionError>;

pub(super) fn argument<'a, 'v>(arguments: &'a [CowVal<'_, 'v>], at: usize) -> Result<&'a (dyn Val + 'v)> {
    arguments.get(at).map(AsRef::as_ref).ok_or_else(|| ExecutionError::invalid_argument_count(at + 1, arguments.len()))
}

pub(super) fn text<'a>(arguments: &'a [CowVal<'_, '_>], at: usize) -> Result<&'a str> {
    let value = argument(arguments, at)?;
    value.downcast_ref::<CelString>().map(CelString::inner).ok_or_else(|| unexpected(value, "string"))
}

pub(super) fn int(arguments: &[CowVal<'_, '_>], at: usize) -> Result<i64> {
    let value = argument(arguments, at)?;
    value.downcast_ref::<CelInt>().map(|value| *value.inner()).ok_or_else(|| unexpected(value, "int"))
}

pub(super) fn boolean(arguments: &[CowVal<'_, '_>], at: usize) -> Result<bool> {
    let value = argument(arguments, at)?;
    value.downcast_ref::<CelBool>().map(|value| *value.inner()).ok_or_else(|| unexpected(value, "bool"))
}

pub(super) fn list<'a, 'v>(arguments: &'a [CowVal<'_, 'v>], at: usize) -> Result<&'a [Box<dyn Val + 'v>]> {
    let value = argument(arguments, at)?;
    value.downcast_ref::<CelList>().map(CelList::inner).ok_or_else(|| unexpected(value, "list"))
}

/// Returns an argument of an opaque type, such as a quantity.
pub(super) fn opaque<T: Clone + 'static>(arguments: &[CowVal<'_, '_>], at: usize) -> Result<T> {
    let value = argument(arguments, at)?;
    match Value::try_from(value)? {
        Value::Opaque(opaque) => {
            opaque.downcast_ref::<T>().cloned().ok_or_else(|| unexpected(value, "value of another type"))
        }
        _ => Err(unexpected(value, "value of another type")),
    }
}

fn unexpected(value: &dyn Val, want: &str) -> ExecutionError {
    ExecutionError::UnexpectedType { got: value.get_type().name().to_owned(), want: want.to_owned() }
}

/// Returns a value of an opaque type to the expression.
pub(super) fn return_opaque<'b, 'v>(value: impl Opaque) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::Owned(boxed(value)?))
}

pub(super) fn boxed(value: impl Opaque) -> Result<Box<dyn Val>> {
    Value::Opaque(std::sync::Arc::new(value)).try_into()
}

pub(super) fn return_bool<'b, 'v>(value: bool) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::owned(CelBool::from(value)))
}

pub(super) fn return_int<'b, 'v>(value: i64) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::owned(CelInt::from(value)))
}

pub(super) fn return_text<'b, 'v>(value: impl Into<String>) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::owned(CelString::from(value.into())))
}

pub(super) fn return_texts<'b, 'v>(values: impl IntoIterator<Item = impl Into<String>>) -> Result<CowVal<'b, 'v>> {
    Ok(CowVal::owned(texts(values)))
}

pub(super) fn texts(values: impl IntoIterator<Item = impl Into<String>>) -> CelList<'static> {
    let values = values.into_iter().map(|value| Box::new(CelString::from(value.into())) as Box<dyn Val>);
    CelList::from(values.collect::<Vec<_>>())
}
