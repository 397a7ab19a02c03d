//! Labels and annotations that more than one program writes or reads.

/// Label: which `PolicyServer` an object belongs to.
pub const SERVER_LABEL: &str = "proviso.dev/policy-server";
/// Label: which policy, by uid, a revision or a webhook belongs to.
pub const POLICY_LABEL: &str = "proviso.dev/policy-uid";
/// Label: which experiment, by uid, a candidate or its webhook belongs to.
pub const EXPERIMENT_LABEL: &str = "proviso.dev/experiment-uid";
/// Annotation of a policy: the generation whose spec is to come back. Removed when that was done, or cannot be.
pub const ROLLBACK_TO: &str = "proviso.dev/rollback-to";
/// Annotation of a policy: the experiment that was committed to it last, as JSON: its `name`, `uid`, `generation` and `etag`.
pub const COMMITTED_EXPERIMENT: &str = "proviso.dev/committed-experiment";
/// Annotation of an experiment: since when somebody is about to commit it, as a time of RFC 3339.
pub const COMMIT_INTENT: &str = "proviso.dev/commit-intent";
/// Label of a `ClusterRole`: what it grants, all policy servers are granted.
pub const AGGREGATE_LABEL: &str = "proviso.dev/aggregate-to-policy-server";
/// Annotation of a webhook configuration: why somebody has taken it into their own hands, to do with it what an
/// emergency needs. The operator leaves it as it is.
pub const BREAK_GLASS: &str = "proviso.dev/break-glass";

/// The field managers of server-side apply: each writer owns its own fields.
pub mod field_managers {
    /// The operator.
    pub const OPERATOR: &str = "proviso-operator";
    /// The operator, where it follows the leader of a policy server.
    pub const OPERATOR_LEADER: &str = "proviso-operator-leader";
    /// The REST API.
    pub const API: &str = "proviso-api";
    /// The command line.
    pub const CLI: &str = "proviso-cli";
    /// The leader of a policy server, whichever replica it is.
    pub const LEADER: &str = "proviso-leader";

    /// A replica of a policy server, by the name of its pod.
    #[must_use]
    pub fn replica(pod: &str) -> String {
        format!("proviso-replica-{pod}")
    }
}
