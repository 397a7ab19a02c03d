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

/// Annotation of a candidate revision: the start of the preview that it was made for. Another start makes another candidate.
pub const PREVIEW_START: &str = "proviso.dev/preview-start";
/// Annotation of a Secret: the phase of the replacement of its keys.
pub const ROTATION: &str = "proviso.dev/rotation";
/// Annotation of a Secret: since when the replacement of its keys is in its phase, as a time of RFC 3339.
pub const ROTATION_SINCE: &str = "proviso.dev/rotation-since";

/// The finalizers of the operator: it has something to do before an object goes.
pub mod finalizers {
    /// Finalizer of a policy: its revisions go before it does.
    pub const REVISIONS: &str = "proviso.dev/revisions";
    /// Finalizer of an experiment: its candidate and its webhook go before it does.
    pub const PREVIEW: &str = "proviso.dev/preview";
    /// Finalizer of a policy server: it goes after the policies that name it.
    pub const POLICIES: &str = "proviso.dev/policies";
}

/// The field managers of server-side apply: each writer owns its own fields.
pub mod field_managers {
    /// The operator.
    pub const OPERATOR: &str = "proviso-operator";
    /// The operator, where it follows the leader of a policy server.
    pub const OPERATOR_LEADER: &str = "proviso-operator-leader";
    /// The REST API.
    pub const API: &str = "proviso-api";
    /// The operator, where it tries whether the API server would take a webhook.
    pub const ADMISSION: &str = "proviso-admission";
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
