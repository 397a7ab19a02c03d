//! `spec.hostCapabilities`: the host calls that a program may make. Default: none.

use std::fmt;

/// All capabilities that a policy can be granted, as `<namespace>/<operation>`. `tracing/log` needs no grant.
pub const KNOWN: [&str; 11] = [
    "crypto/v1/is_certificate_trusted",
    "kubernetes/can_i",
    "kubernetes/get_resource",
    "kubernetes/list_resources_all",
    "kubernetes/list_resources_by_namespace",
    "net/v1/dns_lookup_host",
    "oci/v1/manifest_digest",
    "oci/v1/oci_manifest",
    "oci/v1/oci_manifest_config",
    "oci/v1/verify",
    "oci/v2/verify",
];

/// The capabilities that a policy is granted, as patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    All,
    /// The capabilities that start with this text, which ends in `/`.
    Prefix(String),
    Exact(String),
}

/// The error of a pattern that matches no known capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityError {
    /// The position of the pattern in the list, from 0.
    pub index: usize,
    pub pattern: String,
}

impl std::error::Error for CapabilityError {}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, .. } = self;
        write!(
            f,
            "{pattern:?} matches no host capability: use `*`, a prefix that ends in `/*`, or one of {}",
            KNOWN.join(", ")
        )
    }
}

impl Capabilities {
    /// Parses patterns: `*`, `oci/*`, `oci/v1/*`, or the full name of a capability.
    ///
    /// # Errors
    /// Returns the first pattern that matches no known capability, such as a misspelled name.
    pub fn parse(patterns: &[String]) -> Result<Self, CapabilityError> {
        let parse = |(index, pattern): (usize, &String)| {
            let parsed = Pattern::parse(pattern);
            let is_known = KNOWN.iter().any(|name| parsed.matches(name));
            if is_known { Ok(parsed) } else { Err(CapabilityError { index, pattern: pattern.clone() }) }
        };
        patterns.iter().enumerate().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the known capabilities that both grant.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let is_granted = |name: &&str| [self, other].iter().all(|it| it.0.iter().any(|pattern| pattern.matches(name)));
        Self(KNOWN.iter().filter(|name| is_granted(name)).map(|name| Pattern::Exact((*name).to_owned())).collect())
    }

    /// Returns true if the patterns grant the capability `<namespace>/<operation>`.
    #[must_use]
    pub fn allow(&self, namespace: &str, operation: &str) -> bool {
        // The namespace `oci/v1` with the operation `verify` must not pass as the namespace `oci` with `v1/verify`.
        let name = format!("{namespace}/{operation}");
        !namespace.contains('/') && self.0.iter().any(|pattern| pattern.matches(&name))
    }
}

impl Pattern {
    fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some("") => Self::All,
            Some(prefix) if prefix.ends_with('/') => Self::Prefix(prefix.to_owned()),
            // A text such as `oci/v*` is not a prefix pattern. As an exact name it matches no capability.
            _ => Self::Exact(text.to_owned()),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()),
            Self::Exact(exact) => name == exact,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(patterns: &[&str]) -> Result<Capabilities, CapabilityError> {
        Capabilities::parse(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_pattern_grants_only_the_capabilities_that_it_matches() {
        let granted = |patterns: &[&str]| {
            let capabilities = parse(patterns).unwrap();
            let names = KNOWN.iter().filter(|name| {
                let (namespace, operation) = name.split_once('/').unwrap();
                capabilities.allow(namespace, operation)
            });
            names.copied().collect::<Vec<_>>()
        };
        assert_eq!(granted(&[]), Vec::<&str>::new());
        assert_eq!(granted(&["*"]), KNOWN);
        assert_eq!(granted(&["oci/*"]), KNOWN[6..]);
        assert_eq!(granted(&["oci/v1/*"]), KNOWN[6..10]);
        assert_eq!(granted(&["oci/v2/verify", "net/*"]), ["net/v1/dns_lookup_host", "oci/v2/verify"]);
        assert_eq!(granted(&["kubernetes/can_i"]), ["kubernetes/can_i"]);
    }

    #[test]
    fn an_intersection_grants_what_both_grant() {
        let both = parse(&["oci/*", "net/*"]).unwrap().intersection(&parse(&["oci/v1/*", "kubernetes/*"]).unwrap());
        assert!(both.allow("oci", "v1/verify") && !both.allow("oci", "v2/verify"));
        assert!(!both.allow("net", "v1/dns_lookup_host") && !both.allow("kubernetes", "can_i"));
    }

    #[test]
    fn a_pattern_without_a_match_is_refused_with_its_index() {
        for pattern in
            ["", "oci", "oci/", "oci/v1", "oci/v3/*", "oci/v*", "**", "*/v1/verify", "OCI/*", "/*", "oci/v1/verify/"]
        {
            let error = parse(&["*", pattern]).unwrap_err();
            assert_eq!((error.index, error.pattern.as_str()), (1, pattern));
        }
    }

    #[test]
    fn a_namespace_with_a_slash_is_refused() {
        let capabilities = parse(&["oci/v1/*"]).unwrap();
        assert!(!capabilities.allow("oci/v1", "verify") && capabilities.allow("oci", "v1/verify"));
    }

    proptest! {
        #[test]
        fn no_capability_is_granted_without_a_matching_pattern(namespace in "[a-z/*]{0,8}", operation in "[a-z0-9/_*]{0,12}") {
            prop_assert!(!Capabilities::default().allow(&namespace, &operation));
            let all_but_oci = parse(&["net/*", "crypto/*", "kubernetes/can_i"]).unwrap();
            let is_granted = all_but_oci.allow(&namespace, &operation);
            let is_named = matches!((namespace.as_str(), operation.as_str()), ("net" | "crypto", _) | ("kubernetes", "can_i"));
            prop_assert_eq!(is_granted, is_named);
        }
    }
}
