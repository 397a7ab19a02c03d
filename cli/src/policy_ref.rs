//! How a person names a policy.

use std::str::FromStr;

use proviso_core::PolicyId;
use proviso_core::policy_id::{PolicyIdError, check_name};

/// What a person calls a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRef {
    /// `cluster.x`, `ns.team.x` or `clusterpolicy/x`: says everything.
    Id(PolicyId),
    /// `policy/x`: in the namespace that is worked in.
    Policy(String),
    /// `x`: of either kind.
    Name(String),
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRefError {
    #[error("{0:?} is no kind of policy: write policy/NAME or clusterpolicy/NAME")]
    Kind(String),
    #[error(transparent)]
    Name(#[from] PolicyIdError),
}

impl FromStr for PolicyRef {
    type Err = PolicyRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((kind, name)) = text.split_once('/') else {
            // A policy may be called `cluster.x`: then its kind must be said.
            return match text.parse() {
                Ok(id) => Ok(Self::Id(id)),
                Err(_) => Ok(check_name(text).map(|()| Self::Name(text.to_owned()))?),
            };
        };
        let lower = kind.to_ascii_lowercase();
        match lower.strip_suffix(".proviso.dev").unwrap_or(&lower) {
            "policy" | "policies" | "pvp" => Ok(check_name(name).map(|()| Self::Policy(name.to_owned()))?),
            "clusterpolicy" | "clusterpolicies" | "pvcp" => Ok(Self::Id(PolicyId::cluster(name)?)),
            _ => Err(PolicyRefError::Kind(kind.to_owned())),
        }
    }
}

impl PolicyRef {
    /// The policies that this may mean, seen from a namespace.
    ///
    /// # Errors
    /// When `namespace` is none.
    pub fn candidates(&self, namespace: &str) -> Result<Vec<PolicyId>, PolicyIdError> {
        Ok(match self {
            Self::Id(id) => vec![id.clone()],
            Self::Policy(name) => vec![PolicyId::namespaced(namespace, name)?],
            Self::Name(name) => vec![PolicyId::namespaced(namespace, name)?, PolicyId::cluster(name)?],
        })
    }

    /// The policy's `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Id(id) => id.name(),
            Self::Policy(name) | Self::Name(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_many_names() {
        for (text, wanted) in [
            ("policy/a", vec!["ns.team.a"]),
            ("pvp/a", vec!["ns.team.a"]),
            ("policies.proviso.dev/a", vec!["ns.team.a"]),
            ("Policy/cluster.a", vec!["ns.team.cluster.a"]),
            ("clusterpolicy/a", vec!["cluster.a"]),
            ("pvcp/a.b", vec!["cluster.a.b"]),
            ("cluster.a", vec!["cluster.a"]),
            ("ns.other.a", vec!["ns.other.a"]),
            ("a", vec!["ns.team.a", "cluster.a"]),
            ("a.b", vec!["ns.team.a.b", "cluster.a.b"]),
        ] {
            let candidates = text.parse::<PolicyRef>().unwrap().candidates("team").unwrap();
            assert_eq!(candidates.iter().map(PolicyId::as_str).collect::<Vec<_>>(), wanted, "{text}");
        }
    }

    #[test]
    fn what_names_no_policy_is_refused() {
        for text in ["", "pod/a", "policy/", "policy/A", "policy/a/b", "a b", "-a"] {
            assert!(text.parse::<PolicyRef>().is_err(), "{text:?}");
        }
    }
}
