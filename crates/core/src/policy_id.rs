//! The id of a policy in URLs, logs and object names: `cluster.<name>` or `ns.<namespace>.<name>`.
//! The id is unambiguous, because a namespace has no dot (compare Kubewarden's GHSA-m5vp-9g65-pv6v).

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::names::is_dns_label;

/// The maximum length of a policy name, in characters. A DNS subdomain (253) then also has space for the prefix of the id
/// and a namespace (63).
pub const MAX_NAME: usize = 150;
/// The maximum length of a namespace name, in characters (RFC 1123 label).
const MAX_NAMESPACE: usize = 63;

/// The id of a `ClusterPolicy` or a `Policy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId {
    text: Box<str>,
    /// The byte offset of the name in `text`.
    name: usize,
}

/// The error of a text that is not a policy id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyIdError {
    #[error("a policy id is `cluster.<name>` or `ns.<namespace>.<name>`, not {0:?}")]
    Form(String),
    #[error(
        "{0:?} is not a policy name: it needs 1 to {MAX_NAME} characters of a-z, 0-9, '-' and '.', each part starting and ending with a letter or digit"
    )]
    Name(String),
    #[error(
        "{0:?} is not a namespace name: it needs 1 to {MAX_NAMESPACE} characters of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    Namespace(String),
}

impl PolicyId {
    /// Returns the id of a `ClusterPolicy`.
    ///
    /// # Errors
    /// Returns [`PolicyIdError::Name`] if `name` is not a DNS subdomain of at most [`MAX_NAME`] characters.
    pub fn cluster(name: &str) -> Result<Self, PolicyIdError> {
        check_name(name)?;
        Ok(Self { text: format!("cluster.{name}").into(), name: "cluster.".len() })
    }

    /// Returns the id of a `Policy` in `namespace`.
    ///
    /// # Errors
    /// Returns [`PolicyIdError::Namespace`] if `namespace` is not a DNS label, and [`PolicyIdError::Name`] if `name` is not a
    /// DNS subdomain of at most [`MAX_NAME`] characters.
    pub fn namespaced(namespace: &str, name: &str) -> Result<Self, PolicyIdError> {
        if namespace.len() > MAX_NAMESPACE || !is_dns_label(namespace) {
            return Err(PolicyIdError::Namespace(namespace.to_owned()));
        }
        check_name(name)?;
        Ok(Self { text: format!("ns.{namespace}.{name}").into(), name: "ns.".len() + namespace.len() + 1 })
    }

    /// Returns the id of a `Policy` if `namespace` is given, and of a `ClusterPolicy` otherwise.
    ///
    /// # Errors
    /// Returns the errors of [`PolicyId::cluster`] and [`PolicyId::namespaced`].
    pub fn new(namespace: Option<&str>, name: &str) -> Result<Self, PolicyIdError> {
        match namespace {
            Some(namespace) => Self::namespaced(namespace, name),
            None => Self::cluster(name),
        }
    }

    /// Returns the policy's `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text[self.name..]
    }

    /// Returns the policy's namespace; `None` for a `ClusterPolicy`.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.text.strip_prefix("ns.").map(|_| &self.text["ns.".len()..self.name - 1])
    }

    /// Returns the id as it appears in URLs and logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for PolicyId {
    type Err = PolicyIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || PolicyIdError::Form(text.chars().take(300).collect());
        match text.split_once('.').ok_or_else(form)? {
            ("cluster", name) => Self::cluster(name),
            ("ns", rest) => {
                let (namespace, name) = rest.split_once('.').ok_or_else(form)?;
                Self::namespaced(namespace, name)
            }
            _ => Err(form()),
        }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for PolicyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Checks the name of a policy or an experiment.
///
/// # Errors
/// Returns [`PolicyIdError::Name`] if `name` is not a DNS subdomain of at most [`MAX_NAME`] characters.
pub fn check_name(name: &str) -> Result<(), PolicyIdError> {
    if name.len() <= MAX_NAME && name.split('.').all(is_dns_label) {
        Ok(())
    } else {
        Err(PolicyIdError::Name(name.chars().take(300).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_has_the_name_and_the_namespace_of_its_policy() {
        let id = PolicyId::cluster("required-labels.v2").unwrap();
        assert_eq!(id.to_string(), "cluster.required-labels.v2");
        assert_eq!((id.namespace(), id.name()), (None, "required-labels.v2"));
        let id = PolicyId::namespaced("team-a", "no.latest").unwrap();
        assert_eq!(id.to_string(), "ns.team-a.no.latest");
        assert_eq!((id.namespace(), id.name()), (Some("team-a"), "no.latest"));
    }

    #[test]
    fn malformed_ids_are_refused() {
        let long = format!("cluster.{}", "a".repeat(MAX_NAME + 1));
        for text in [
            "",
            "cluster",
            "cluster.",
            "ns.a",
            "ns.a.",
            "ns..a",
            "pod.a",
            "cluster.A",
            "cluster.-a",
            "cluster.a..b",
            "cluster.a/b",
            "cluster.ä",
            "ns.-.a",
            "cluster.a%2e",
            &long,
        ] {
            assert!(text.parse::<PolicyId>().is_err(), "{text:?}");
        }
        assert!(PolicyId::namespaced("a.b", "c").is_err(), "a namespace has no dot");
    }

    fn label() -> impl Strategy<Value = String> {
        "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
    }

    proptest! {
        #[test]
        fn an_id_round_trips_through_its_text(namespace in proptest::option::of(label()), name in proptest::collection::vec(label(), 1..4)) {
            let id = PolicyId::new(namespace.as_deref(), &name.join(".")).unwrap();
            let read: PolicyId = id.as_str().parse().unwrap();
            prop_assert_eq!(read.namespace(), namespace.as_deref());
            prop_assert_eq!(read.name(), name.join("."));
            prop_assert_eq!(read, id);
        }

        #[test]
        fn two_policies_never_share_an_id(a in (proptest::option::of(label()), label(), label()), b in (proptest::option::of(label()), label(), label())) {
            let id = |(namespace, first, second): &(Option<String>, String, String)| {
                PolicyId::new(namespace.as_deref(), &format!("{first}.{second}")).unwrap()
            };
            prop_assert_eq!(id(&a) == id(&b), a == b);
        }
    }
}
