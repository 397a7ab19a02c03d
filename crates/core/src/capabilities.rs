//! `spec.hostCapabilities`: which calls of the host a program may make. None by default.

use std::fmt;

/// Every capability that a policy can be given, as `<namespace>/<operation>`. `tracing/log` is always there.
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

/// Patterns of capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    All,
    /// All that start with this, which ends in `/`.
    Below(String),
    Exactly(String),
}

/// A pattern that gives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityError {
    /// Where it stands in the list.
    pub index: usize,
    pub pattern: String,
}

impl std::error::Error for CapabilityError {}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, .. } = self;
        write!(
            f,
            "{pattern:?} names no host capability: `*`, a start that ends in `/*`, or one of {}",
            KNOWN.join(", ")
        )
    }
}

impl Capabilities {
    /// Reads patterns: `*`, `oci/*`, `oci/v1/*`, or the whole name of one.
    ///
    /// # Errors
    /// When one matches no capability that there is: it is a slip of the pen.
    pub fn parse(patterns: &[String]) -> Result<Self, CapabilityError> {
        let read = |(index, pattern): (usize, &String)| {
            let read = Pattern::read(pattern);
            let is_known = KNOWN.iter().any(|name| read.matches(name));
            if is_known { Ok(read) } else { Err(CapabilityError { index, pattern: pattern.clone() }) }
        };
        patterns.iter().enumerate().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a program with these may call this.
    #[must_use]
    pub fn allow(&self, namespace: &str, operation: &str) -> bool {
        // With a slash in it, a namespace could be read as another one's start.
        let name = format!("{namespace}/{operation}");
        !namespace.contains('/') && self.0.iter().any(|pattern| pattern.matches(&name))
    }
}

impl Pattern {
    fn read(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some("") => Self::All,
            Some(start) if start.ends_with('/') => Self::Below(start.to_owned()),
            // `oci/v*` is no pattern, and no capability has such a name.
            _ => Self::Exactly(text.to_owned()),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(start) => name.starts_with(start.as_str()),
            Self::Exactly(exactly) => name == exactly,
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
    fn a_pattern_gives_what_it_names_and_no_more() {
        let given = |patterns: &[&str]| {
            let capabilities = parse(patterns).unwrap();
            let names = KNOWN.iter().filter(|name| {
                let (namespace, operation) = name.split_once('/').unwrap();
                capabilities.allow(namespace, operation)
            });
            names.copied().collect::<Vec<_>>()
        };
        assert_eq!(given(&[]), Vec::<&str>::new());
        assert_eq!(given(&["*"]), KNOWN);
        assert_eq!(given(&["oci/*"]), KNOWN[6..]);
        assert_eq!(given(&["oci/v1/*"]), KNOWN[6..10]);
        assert_eq!(given(&["oci/v2/verify", "net/*"]), ["net/v1/dns_lookup_host", "oci/v2/verify"]);
        assert_eq!(given(&["kubernetes/can_i"]), ["kubernetes/can_i"]);
    }

    #[test]
    fn what_names_nothing_is_refused_with_its_place() {
        for pattern in
            ["", "oci", "oci/", "oci/v1", "oci/v3/*", "oci/v*", "**", "*/v1/verify", "OCI/*", "/*", "oci/v1/verify/"]
        {
            let error = parse(&["*", pattern]).unwrap_err();
            assert_eq!((error.index, error.pattern.as_str()), (1, pattern));
        }
    }

    #[test]
    fn a_namespace_with_a_slash_is_none() {
        let capabilities = parse(&["oci/v1/*"]).unwrap();
        assert!(!capabilities.allow("oci/v1", "verify") && capabilities.allow("oci", "v1/verify"));
    }

    proptest! {
        #[test]
        fn nothing_is_given_that_no_pattern_names(namespace in "[a-z/*]{0,8}", operation in "[a-z0-9/_*]{0,12}") {
            prop_assert!(!Capabilities::default().allow(&namespace, &operation));
            let all_but_oci = parse(&["net/*", "crypto/*", "kubernetes/can_i"]).unwrap();
            let is_given = all_but_oci.allow(&namespace, &operation);
            let is_named = matches!((namespace.as_str(), operation.as_str()), ("net" | "crypto", _) | ("kubernetes", "can_i"));
            prop_assert_eq!(is_given, is_named);
        }
    }
}
