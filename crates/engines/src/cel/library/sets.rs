//! Lists as sets: `sets.contains`, `sets.equivalent`, `sets.intersects`.

use cel::common::types::LIST_TYPE;
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env};

use super::argument::{Result, list, return_bool};
use super::guarded::check_comparisons;
use super::overload::function;

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    let lists = || vec![LIST_TYPE, LIST_TYPE];
    function(environment, "sets.contains", lists(), |arguments| {
        decide("sets.contains", &arguments, |left, right| contains(left, right))
    })?;
    function(environment, "sets.equivalent", lists(), |arguments| {
        decide("sets.equivalent", &arguments, |left, right| contains(left, right) && contains(right, left))
    })?;
    function(environment, "sets.intersects", lists(), |arguments| {
        decide("sets.intersects", &arguments, |left, right| right.iter().any(|item| has(left, item.as_ref())))
    })
}

type List<'a, 'v> = &'a [Box<dyn Val + 'v>];

fn decide<'b, 'v>(
    name: &str,
    arguments: &[CowVal<'b, 'v>],
    holds: impl Fn(List<'_, 'v>, List<'_, 'v>) -> bool,
) -> Result<CowVal<'b, 'v>> {
    let (left, right) = (list(arguments, 0)?, list(arguments, 1)?);
    check_comparisons(name, left.len(), right.len())?;
    return_bool(holds(left, right))
}

fn contains(whole: List<'_, '_>, part: List<'_, '_>) -> bool {
    part.iter().all(|item| has(whole, item.as_ref()))
}

fn has(list: List<'_, '_>, wanted: &dyn Val) -> bool {
    list.iter().any(|item| item.equals(wanted))
}
