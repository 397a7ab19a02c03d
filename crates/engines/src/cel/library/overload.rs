//! Declarations of overloads. The id of an overload consists of its name and the types of its arguments.

use cel::common::functions::Function;
use cel::common::types::Type;
use cel::{DeclarationError, Env};

/// Declares `name(…)`.
pub(super) fn function(
    environment: &mut Env,
    name: &str,
    arguments: Vec<Type>,
    operation: Function,
) -> Result<(), DeclarationError> {
    let id = id(name, &arguments);
    environment.add_overload(name, &id, arguments, operation)
}

/// Declares `target.name(…)`.
pub(super) fn method(
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
