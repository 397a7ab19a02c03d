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
mod overload;
mod quantity;
mod regex;
mod semver;
mod sets;
mod url;

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
