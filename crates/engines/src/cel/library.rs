//! The libraries that Kubernetes adds to CEL, implemented from its documentation ("Common Expression Language in Kubernetes").
//! Each module declares one library.

#![allow(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "cel requires one signature for all functions: the arguments by value, and a result"
)]

mod argument;
pub(super) mod authorizer;
pub(super) mod comprehensions;
mod format;
mod guarded;
mod json_patch;
mod lists;
pub(super) mod memory;
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
    memory::declare(environment)?;
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
