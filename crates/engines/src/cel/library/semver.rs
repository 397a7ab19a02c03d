//! Semantic versions (semver.org, 2.0.0): `semver`, `isSemver`, `major`, `minor`, `patch`, `isLessThan`, `isGreaterThan`,
//! `compareTo`. Comparisons ignore the build metadata.

use std::cmp::Ordering;

use cel::common::types::{BOOL_TYPE, STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, boolean, opaque, return_bool, return_int, return_opaque, text};
use super::overload::{function, method};

const NAME: &str = "kubernetes.Semver";

#[derive(Clone, Debug)]
struct Semver(semver::Version);

impl PartialEq for Semver {
    fn eq(&self, other: &Self) -> bool {
        self.0.cmp_precedence(&other.0).is_eq()
    }
}

impl Eq for Semver {}

impl Opaque for Semver {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    let version = || Type::new_opaque_type(NAME);
    environment.add_type(version())?;
    for arguments in [vec![STRING_TYPE], vec![STRING_TYPE, BOOL_TYPE]] {
        function(environment, "semver", arguments.iter().map(ToOwned::to_owned).collect(), |arguments| {
            let parsed = parse(&arguments)?;
            return_opaque(Semver(parsed.map_err(|error| ExecutionError::function_error("semver", error))?))
        })?;
        function(environment, "isSemver", arguments, |arguments| return_bool(parse(&arguments)?.is_ok()))?;
    }
    method(environment, version(), "major", vec![], |arguments| number(&arguments, |version| version.major))?;
    method(environment, version(), "minor", vec![], |arguments| number(&arguments, |version| version.minor))?;
    method(environment, version(), "patch", vec![], |arguments| number(&arguments, |version| version.patch))?;
    method(environment, version(), "isLessThan", vec![version()], |arguments| {
        return_bool(compare(&arguments)? == Ordering::Less)
    })?;
    method(environment, version(), "isGreaterThan", vec![version()], |arguments| {
        return_bool(compare(&arguments)? == Ordering::Greater)
    })?;
    method(environment, version(), "compareTo", vec![version()], |arguments| return_int(compare(&arguments)? as i64))
}

fn parse(arguments: &[CowVal<'_, '_>]) -> Result<std::result::Result<semver::Version, semver::Error>> {
    let source = text(arguments, 0)?;
    let normal = arguments.len() > 1 && boolean(arguments, 1)?;
    Ok(if normal { normalize(source).parse() } else { source.parse() })
}

/// Normalizes a version: removes a leading `v` and leading zeros, and adds a missing minor and patch.
fn normalize(source: &str) -> String {
    let source = source.strip_prefix('v').unwrap_or(source);
    let end = source.find(['-', '+']).unwrap_or(source.len());
    let (numbers, rest) = source.split_at(end);
    let mut numbers: Vec<_> = numbers
        .split('.')
        .map(|number| match number.trim_start_matches('0') {
            "" if !number.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    if rest.is_empty() {
        numbers.resize(numbers.len().max(3), "0");
    }
    numbers.join(".") + rest
}

fn number<'b, 'v>(arguments: &[CowVal<'b, 'v>], part: impl Fn(&semver::Version) -> u64) -> Result<CowVal<'b, 'v>> {
    let number = part(&opaque::<Semver>(arguments, 0)?.0);
    return_int(number.try_into().map_err(|_| ExecutionError::function_error("semver", "the number is not an int"))?)
}

fn compare(arguments: &[CowVal<'_, '_>]) -> Result<Ordering> {
    Ok(opaque::<Semver>(arguments, 0)?.0.cmp_precedence(&opaque::<Semver>(arguments, 1)?.0))
}
