//! The aggregated API of actions on experiments and policies. A client performs an action by creating a subresource of the
//! object. The operator serves the API, and the command line calls it.

/// The API group of the actions.
pub const GROUP: &str = "actions.proviso.dev";
/// The version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";

/// An action on an experiment or a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts the preview of an experiment (AIP-236).
    Start,
    /// Stops the preview of an experiment (AIP-236).
    Stop,
    /// Replaces the spec of the policy by the spec of its experiment, and deletes the experiment (AIP-236).
    Commit,
    /// Restores the spec of an older generation of a policy.
    Rollback,
}

impl Action {
    pub const ALL: [Self; 4] = [Self::Start, Self::Stop, Self::Commit, Self::Rollback];

    /// Returns the name of the subresource.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Commit => "commit",
            Self::Rollback => "rollback",
        }
    }

    /// Returns the kind of the object that the client creates.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Start => "PreviewStart",
            Self::Stop => "PreviewStop",
            Self::Commit => "ExperimentCommit",
            Self::Rollback => "PolicyRollback",
        }
    }

    /// Returns the resources that have the subresource: the namespaced one, then the cluster-scoped one.
    #[must_use]
    pub const fn resources(self) -> [&'static str; 2] {
        match self {
            Self::Start | Self::Stop | Self::Commit => ["policyexperiments", "clusterpolicyexperiments"],
            Self::Rollback => ["policies", "clusterpolicies"],
        }
    }
}
