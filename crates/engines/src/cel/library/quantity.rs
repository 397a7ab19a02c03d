//! Quantities, such as `500m` and `1Gi`: `quantity`, `isQuantity`, and the methods of quantities.

mod parse;

use std::cmp::Ordering;

use cel::common::types::{CelDouble, INT_TYPE, STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, int, opaque, return_bool, return_int, return_opaque, text};
use super::overload::{function, method};
use parse::{NANO, parse};

const NAME: &str = "kubernetes.Quantity";

/// A quantity in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(i128);

impl Opaque for Quantity {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    let quantity = || Type::new_opaque_type(NAME);
    environment.add_type(quantity())?;
    function(environment, "quantity", vec![STRING_TYPE], |arguments| {
        let parsed = parse(text(&arguments, 0)?);
        return_opaque(Quantity(parsed.map_err(|why| ExecutionError::function_error("quantity", why))?))
    })?;
    function(environment, "isQuantity", vec![STRING_TYPE], |arguments| {
        return_bool(parse(text(&arguments, 0)?).is_ok())
    })?;
    method(environment, quantity(), "isInteger", vec![], |arguments| {
        return_bool(integer(this(&arguments)?).is_some())
    })?;
    method(environment, quantity(), "asInteger", vec![], |arguments| {
        let error = || ExecutionError::function_error("asInteger", "the quantity is not an int");
        return_int(integer(this(&arguments)?).ok_or_else(error)?)
    })?;
    // A double has fewer digits than a quantity: the name says that the value is approximate.
    #[allow(clippy::cast_precision_loss)]
    method(environment, quantity(), "asApproximateFloat", vec![], |arguments| {
        let Quantity(amount) = this(&arguments)?;
        let (whole, rest) = (amount / NANO, amount % NANO);
        Ok(CowVal::owned(CelDouble::from(whole as f64 + rest as f64 / NANO as f64)))
    })?;
    // The documentation of Kubernetes has a method, its implementation a function.
    method(environment, quantity(), "sign", vec![], sign)?;
    function(environment, "sign", vec![quantity()], sign)?;
    for other in [quantity(), INT_TYPE] {
        method(environment, quantity(), "add", vec![other.to_owned()], |arguments| {
            combine("add", this(&arguments)?.0.checked_add(other_amount(&arguments)?))
        })?;
        method(environment, quantity(), "sub", vec![other], |arguments| {
            combine("sub", this(&arguments)?.0.checked_sub(other_amount(&arguments)?))
        })?;
    }
    method(environment, quantity(), "isLessThan", vec![quantity()], |arguments| {
        return_bool(compare(&arguments)? == Ordering::Less)
    })?;
    method(environment, quantity(), "isGreaterThan", vec![quantity()], |arguments| {
        return_bool(compare(&arguments)? == Ordering::Greater)
    })?;
    method(environment, quantity(), "compareTo", vec![quantity()], |arguments| return_int(compare(&arguments)? as i64))
}

fn sign<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>> {
    return_int(this(&arguments)?.0.signum().try_into().unwrap_or_default())
}

fn this(arguments: &[CowVal<'_, '_>]) -> Result<Quantity> {
    opaque(arguments, 0)
}

fn integer(Quantity(amount): Quantity) -> Option<i64> {
    if amount % NANO == 0 { i64::try_from(amount / NANO).ok() } else { None }
}

fn other_amount(arguments: &[CowVal<'_, '_>]) -> Result<i128> {
    match int(arguments, 1) {
        Ok(number) => Ok(i128::from(number) * NANO),
        Err(_) => Ok(opaque::<Quantity>(arguments, 1)?.0),
    }
}

fn combine<'b, 'v>(name: &str, amount: Option<i128>) -> Result<CowVal<'b, 'v>> {
    return_opaque(Quantity(amount.ok_or_else(|| ExecutionError::function_error(name, "the quantity is too large"))?))
}

fn compare(arguments: &[CowVal<'_, '_>]) -> Result<Ordering> {
    Ok(this(arguments)?.0.cmp(&opaque::<Quantity>(arguments, 1)?.0))
}
