//! The aggregated API of actions: what is done to experiments and policies beside changing them, as subresources that are created.
//! The operator serves it, and the command line uses it.

/// The API group of the actions.
pub const GROUP: &str = "actions.proviso.dev";
/// The version of the API group.
pub const VERSION: &str = "v1alpha1";

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts the preview of an experiment (AIP-236).
    Start,
    /// Stops the preview of an experiment (AIP-236).
    Stop,
    /// Makes an experiment what its policy is (AIP-236).
    Commit,
    /// Brings back an older generation of a policy.
    Rollback,
}

impl Action {
    pub const ALL: [Self; 4] = [Self::Start, Self::Stop, Self::Commit, Self::Rollback];

    /// The name of the subresource.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Commit => "commit",
            Self::Rollback => "rollback",
        }
    }

    /// The kind of the object that is created.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Start => "PreviewStart",
            Self::Stop => "PreviewStop",
            Self::Commit => "ExperimentCommit",
            Self::Rollback => "PolicyRollback",
        }
    }

    /// The resources that have the subresource: the namespaced resource and the cluster's.
    #[must_use]
    pub const fn resources(self) -> [&'static str; 2] {
        match self {
            Self::Start | Self::Stop | Self::Commit => ["policyexperiments", "clusterpolicyexperiments"],
            Self::Rollback => ["policies", "clusterpolicies"],
        }
    }
}
