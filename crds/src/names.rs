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
