//! The libraries that Kubernetes adds to CEL, written from its documentation ("Common Expression Language in
//! Kubernetes"). Each file declares one of them.

#![allow(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "cel calls all functions alike: with the arguments themselves, for a value or an error"
)]

mod argument;
pub(super) mod authorizer;
mod comprehensions;
mod format;
mod guarded;
mod json_patch;
pub(super) mod kept;
mod lists;
mod network;
mod quantity;
mod regex;
mod semver;
mod sets;
mod url;

use cel::common::functions::Function;
use cel::common::types::Type;
use cel::{DeclarationError, Env};

pub(super) use guarded::guarded;

pub(super) fn declare(environment: &mut Env) -> Result<(), DeclarationError> {
    guarded::declare(environment)?;
    kept::declare(environment)?;
    lists::declare(environment)?;
    sets::declare(environment)?;
    regex::declare(environment)?;
    url::declare(environment)?;
    quantity::declare(environment)?;
    network::declare(environment)?;
    format::declare(environment)?;
    semver::declare(environment)?;
    json_patch::declare(environment)?;
    authorizer::declare(environment)?;
    comprehensions::declare(environment)
}

/// Declares `name(…)`.
fn function(
    environment: &mut Env,
    name: &str,
    arguments: Vec<Type>,
    operation: Function,
) -> Result<(), DeclarationError> {
    let id = id(name, &arguments);
    environment.add_overload(name, &id, arguments, operation)
}

/// Declares `target.name(…)`.
fn method(
    environment: &mut Env,
    target: Type,
    name: &str,
    arguments: Vec<Type>,
    operation: Function,
) -> Result<(), DeclarationError> {
    let id = format!("{}.{}", target.name(), id(name, &arguments));
    environment.add_member_overload(name, &id, target, arguments, operation)
}

fn id(name: &str, arguments: &[Type]) -> String {
    let arguments: Vec<_> = arguments.iter().map(Type::name).collect();
    format!("kubernetes.{name}({})", arguments.join(","))
}
