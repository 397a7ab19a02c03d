//! The identity in the name of a `PolicyRevision`, for a revision whose spec cannot be read. The names are unique, so two objects
//! never claim the same path.

use proviso_core::PolicyId;

/// The generation of a policy that a revision answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub policy: PolicyId,
    pub generation: u64,
}

impl Identity {
    /// Reads a name of the form `<policy id>-<generation>`. Returns `None` for any other name, such as that of a candidate, which
    /// answers no requests.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (policy, generation) = name.rsplit_once('-')?;
        let identity = Self { policy: policy.parse().ok()?, generation: generation.parse().ok()? };
        // Only one name of a generation is valid: without a sign or leading zeros.
        let is_valid = identity.generation > 0 && identity.generation.to_string() == generation;
        is_valid.then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_a_revision_that_answers_requests_has_an_identity() {
        for (name, wanted) in [
            ("cluster.a-1", Some(("cluster.a", 1))),
            ("cluster.no-latest.v2-10", Some(("cluster.no-latest.v2", 10))),
            ("ns.team-a.no-latest-3", Some(("ns.team-a.no-latest", 3))),
            ("cluster.good-1b", None),
            ("cluster.good", None),
            ("cluster.good-0", None),
            ("cluster.good-01", None),
            ("cluster.good-+1", None),
            ("cluster.good--1", None),
            ("ns.team-3", None),
            ("experiment.cluster.a-1", None),
            ("experiment.ns.team.a-1", None),
            ("", None),
        ] {
            let identity = Identity::from_name(name);
            let read = identity.as_ref().map(|it| (it.policy.as_str(), it.generation));
            assert_eq!(read, wanted, "{name}");
        }
    }
}
