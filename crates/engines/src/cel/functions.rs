//! The functions there are: CEL's standard library and its string extension. Kubernetes' own libraries are
//! not among them yet.

/// Whether there is a function of this name, called on a value or not.
pub(super) fn exists(name: &str) -> bool {
    FUNCTIONS.contains(&name) || is_operator(name)
}

/// Operators are functions too, with names that cannot be written.
pub(crate) fn is_operator(name: &str) -> bool {
    name.starts_with(['_', '!', '-', '@'])
}

/// The namespaces that names of functions begin with.
pub(super) const NAMESPACES: &[&str] = &["optional", "strings"];

pub(super) const FUNCTIONS: &[&str] = &[
    "bool",
    "bytes",
    "charAt",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "hasValue",
    "indexOf",
    "int",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "replace",
    "reverse",
    "size",
    "split",
    "startsWith",
    "string",
    "strings.quote",
    "substring",
    "timestamp",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "value",
];

#[cfg(test)]
mod tests {
    use cel::{Context, ExecutionError};

    use super::super::ENVIRONMENT;
    use super::*;

    #[test]
    fn every_function_is_declared() {
        let context = Context::with_env(std::sync::Arc::clone(&ENVIRONMENT));
        let undeclared = |source: String| {
            let result = ENVIRONMENT.compile(&source).unwrap().execute(&context);
            matches!(result, Err(ExecutionError::UndeclaredReference(_)))
        };
        for name in FUNCTIONS {
            assert!(!undeclared(format!("{name}(1)")) || !undeclared(format!("(1).{name}(1)")), "{name}");
        }
        assert!(undeclared("quantity(1)".into()) && undeclared("(1).quantity(1)".into()), "the check can fail");
    }
}
