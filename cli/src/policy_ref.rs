//! The names of policies and experiments in arguments.

use std::str::FromStr;

use proviso_core::PolicyId;
use proviso_core::policy_id::{PolicyIdError, check_name};

/// The name of a policy in an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRef {
    /// A complete id, such as `cluster.x`, `ns.team.x` or `clusterpolicy/x`.
    Id(PolicyId),
    /// The name of a namespaced policy, such as `policy/x`, in the user's namespace.
    Namespaced(String),
    /// A name without a kind, such as `x`: a policy of the user's namespace or a cluster-scoped policy.
    Name(String),
}

/// The name of an experiment in an argument: an id, a name, or a name with the kind `policyexperiment` or
/// `clusterpolicyexperiment`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentRef(pub PolicyRef);

/// The name of one experiment, or of a policy for all its experiments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExperimentsRef {
    /// One experiment.
    One(ExperimentRef),
    /// All experiments of a policy.
    OfPolicy(PolicyRef),
}

/// The error of a text that does not name a policy or an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRefError {
    #[error("{kind:?} is not a kind of {}: write {}/NAME or {}/NAME", words.0, words.1, words.2)]
    Kind { kind: String, words: (&'static str, &'static str, &'static str) },
    #[error(transparent)]
    Name(#[from] PolicyIdError),
}

/// The names of a pair of kinds, as kubectl accepts them.
struct Kinds {
    /// For messages: the noun for both kinds, the namespaced kind and the cluster-scoped kind.
    words: (&'static str, &'static str, &'static str),
    namespaced: [&'static str; 3],
    cluster: [&'static str; 3],
}

const POLICIES: Kinds = Kinds {
    words: ("policy", "policy", "clusterpolicy"),
    namespaced: ["policy", "policies", "pvp"],
    cluster: ["clusterpolicy", "clusterpolicies", "pvcp"],
};
const EXPERIMENTS: Kinds = Kinds {
    words: ("experiment", "policyexperiment", "clusterpolicyexperiment"),
    namespaced: ["policyexperiment", "policyexperiments", "pvx"],
    cluster: ["clusterpolicyexperiment", "clusterpolicyexperiments", "pvcx"],
};

impl Kinds {
    fn read(&self, text: &str) -> Result<PolicyRef, PolicyRefError> {
        let Some((kind, name)) = text.split_once('/') else {
            // `cluster.x` is read as an id. A policy with such a name needs its kind, as in `policy/cluster.x`.
            return match text.parse() {
                Ok(id) => Ok(PolicyRef::Id(id)),
                Err(_) => Ok(check_name(text).map(|()| PolicyRef::Name(text.to_owned()))?),
            };
        };
        let lower = kind.to_ascii_lowercase();
        match lower.strip_suffix(".proviso.dev").unwrap_or(&lower) {
            kind if self.namespaced.contains(&kind) => {
                Ok(check_name(name).map(|()| PolicyRef::Namespaced(name.to_owned()))?)
            }
            kind if self.cluster.contains(&kind) => Ok(PolicyRef::Id(PolicyId::cluster(name)?)),
            _ => Err(PolicyRefError::Kind { kind: kind.to_owned(), words: self.words }),
        }
    }
}

impl FromStr for PolicyRef {
    type Err = PolicyRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        POLICIES.read(text)
    }
}

impl FromStr for ExperimentRef {
    type Err = PolicyRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        EXPERIMENTS.read(text).map(Self)
    }
}

impl FromStr for ExperimentsRef {
    type Err = PolicyRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match POLICIES.read(text) {
            Ok(policy) if text.contains('/') => Ok(Self::OfPolicy(policy)),
            _ => text.parse().map(Self::One),
        }
    }
}

impl PolicyRef {
    /// Returns the ids that this reference may mean in a namespace.
    ///
    /// # Errors
    /// When `namespace` is not a valid namespace.
    pub fn candidates(&self, namespace: &str) -> Result<Vec<PolicyId>, PolicyIdError> {
        Ok(match self {
            Self::Id(id) => vec![id.clone()],
            Self::Namespaced(name) => vec![PolicyId::namespaced(namespace, name)?],
            Self::Name(name) => vec![PolicyId::namespaced(namespace, name)?, PolicyId::cluster(name)?],
        })
    }

    /// Returns the `metadata.name` of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Id(id) => id.name(),
            Self::Namespaced(name) | Self::Name(name) => name,
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
    fn invalid_names_are_refused() {
        for text in ["", "pod/a", "policy/", "policy/A", "policy/a/b", "a b", "-a"] {
            assert!(text.parse::<PolicyRef>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_experiment_has_many_names() {
        for (text, wanted) in [
            ("policyexperiment/a", vec!["ns.team.a"]),
            ("pvx/a", vec!["ns.team.a"]),
            ("clusterpolicyexperiments.proviso.dev/a", vec!["cluster.a"]),
            ("pvcx/a", vec!["cluster.a"]),
            ("ns.other.a", vec!["ns.other.a"]),
            ("a", vec!["ns.team.a", "cluster.a"]),
        ] {
            let ExperimentRef(reference) = text.parse().unwrap();
            let candidates = reference.candidates("team").unwrap();
            assert_eq!(candidates.iter().map(PolicyId::as_str).collect::<Vec<_>>(), wanted, "{text}");
        }
        let error = "policy/a".parse::<ExperimentRef>().unwrap_err().to_string();
        assert_eq!(
            error,
            "\"policy\" is not a kind of experiment: write policyexperiment/NAME or clusterpolicyexperiment/NAME"
        );
    }

    #[test]
    fn experiments_are_named_one_by_one_or_by_their_policy() {
        let is_policy = |text: &str| matches!(text.parse().unwrap(), ExperimentsRef::OfPolicy(_));
        assert!(is_policy("policy/a") && is_policy("pvcp/a"));
        assert!(!is_policy("pvx/a") && !is_policy("a") && !is_policy("cluster.a"));
        assert!("pod/a".parse::<ExperimentsRef>().is_err());
    }
}
