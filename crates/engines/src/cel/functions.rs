//! The names of all functions: CEL's standard library, its extensions for strings and lists, and the libraries of Kubernetes.

/// Returns true if a function or a method has this name.
pub(super) fn exists(name: &str) -> bool {
    FUNCTIONS.contains(&name) || is_operator(name)
}

/// Returns true if the name is an operator. Operators are functions with names that no expression can contain.
pub(crate) fn is_operator(name: &str) -> bool {
    name.starts_with(['_', '!', '-', '@'])
}

/// The namespaces of function names.
pub(super) const NAMESPACES: &[&str] = &["format", "ip", "jsonpatch", "lists", "optional", "sets", "strings"];

pub(super) const FUNCTIONS: &[&str] = &[
    "add",
    "allowed",
    "asApproximateFloat",
    "asInteger",
    "bool",
    "bytes",
    "charAt",
    "check",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "distinct",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "error",
    "errored",
    "family",
    "find",
    "findAll",
    "flatten",
    "format",
    "format.byte",
    "format.date",
    "format.datetime",
    "format.dns1035Label",
    "format.dns1035LabelPrefix",
    "format.dns1123Label",
    "format.dns1123LabelPrefix",
    "format.dns1123Subdomain",
    "format.dns1123SubdomainPrefix",
    "format.labelValue",
    "format.named",
    "format.qualifiedName",
    "format.uri",
    "format.uuid",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "group",
    "hasValue",
    "indexOf",
    "int",
    "ip",
    "ip.isCanonical",
    "isCIDR",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "jsonpatch.escapeKey",
    "lastIndexOf",
    "lists.range",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "max",
    "min",
    "minor",
    "name",
    "namespace",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "patch",
    "path",
    "prefixLength",
    "quantity",
    "reason",
    "replace",
    "resource",
    "reverse",
    "semver",
    "serviceAccount",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "sign",
    "size",
    "slice",
    "sort",
    "split",
    "startsWith",
    "string",
    "strings.quote",
    "sub",
    "subresource",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "url",
    "validate",
    "value",
];

#[cfg(test)]
mod tests {
    use cel::{Context, ExecutionError};

    use super::super::environment::ENVIRONMENT;
    use super::*;

    #[test]
    fn every_function_is_declared() {
        let context = Context::with_env(std::sync::Arc::clone(&ENVIRONMENT));
        let undeclared = |source: String| {
            // `namespace` is a reserved word, which may only be the name of a method.
            let Ok(program) = ENVIRONMENT.compile(&source) else { return true };
            matches!(program.execute(&context), Err(ExecutionError::UndeclaredReference(_)))
        };
        for name in FUNCTIONS {
            assert!(!undeclared(format!("{name}(1)")) || !undeclared(format!("(1).{name}(1)")), "{name}");
        }
        assert!(undeclared("nowhere(1)".into()) && undeclared("(1).nowhere(1)".into()), "the check can fail");
    }
}
