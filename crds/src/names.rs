//! The names of labels, annotations, finalizers and field managers that more than one program writes or reads.

/// Label: the name of the `PolicyServer` that an object belongs to.
pub const SERVER_LABEL: &str = "proviso.dev/policy-server";
/// Label: the uid of the policy that a revision or a webhook configuration belongs to.
pub const POLICY_LABEL: &str = "proviso.dev/policy-uid";
/// Label: the uid of the experiment that a candidate revision or its webhook configuration belongs to.
pub const EXPERIMENT_LABEL: &str = "proviso.dev/experiment-uid";
/// Label of a revision: [`CONFIGURATION`] if the revision configures components. Other revisions do not have the label.
pub const POINT_LABEL: &str = "proviso.dev/enforcement-point";
/// The value of [`POINT_LABEL`] on the revisions of policies with `configuration`.
pub const CONFIGURATION: &str = "configuration";
/// Label of a ConfigMap or Secret with the policies of a component: the uid of its `PolicySubscription`.
pub const SUBSCRIPTION_LABEL: &str = "proviso.dev/subscription-uid";
/// Annotation of a `PolicySubscription`: each new value makes the operator send all policies to the component again.
pub const RESEND: &str = "proviso.dev/resend";
/// Annotation of a `PolicySubscription`: each new value makes the operator compare the policies of the component again (catch-up).
pub const CATCH_UP: &str = "proviso.dev/catch-up";
/// Annotation of a policy: the generation to roll back to. The operator removes the annotation after the rollback, or if the
/// rollback is impossible.
pub const ROLLBACK_TO: &str = "proviso.dev/rollback-to";
/// Annotation of a policy: the experiment that was last committed to it, as JSON with `name`, `uid`, `generation`, `etag` and
/// `commit`: the `id` in the experiment's `status.commit`. Alone, the annotation has no effect.
pub const COMMITTED_EXPERIMENT: &str = "proviso.dev/committed-experiment";
/// Annotation of an object that the REST API has written: the user who called it. The audit log of the API server names the operator
/// as the user, unless the operator may impersonate callers.
pub const CHANGED_BY: &str = "proviso.dev/changed-by";
/// Label of a `ClusterRole`: all policy servers get the permissions of the role.
pub const AGGREGATE_LABEL: &str = "proviso.dev/aggregate-to-policy-server";
/// Annotation of a webhook configuration: the reason for which an administrator changes it by hand in an emergency. While the
/// annotation is set, the operator does not change the configuration.
pub const BREAK_GLASS: &str = "proviso.dev/break-glass";

/// Annotation of a candidate revision: the start time of the preview that the candidate was created for. Each start creates
/// a new candidate.
pub const PREVIEW_START: &str = "proviso.dev/preview-start";
/// Annotation of a Secret: the phase of its key rotation.
pub const ROTATION: &str = "proviso.dev/rotation";
/// Annotation of a Secret: the time at which the current phase of its key rotation started (RFC 3339).
pub const ROTATION_SINCE: &str = "proviso.dev/rotation-since";

/// The prefixes of the annotations that only Proviso and kubectl write.
const RESERVED: [&str; 2] = ["proviso.dev/", "kubectl.kubernetes.io/"];

/// Returns true for a key of an annotation that only Proviso or kubectl writes.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED.iter().any(|prefix| key.starts_with(prefix))
}

/// The finalizers of the operator. Each one delays the deletion of an object until the operator has cleaned up.
pub mod finalizers {
    /// Finalizer of a policy: the operator first deletes the revisions of the policy.
    pub const REVISIONS: &str = "proviso.dev/revisions";
    /// Finalizer of an experiment: the operator first deletes the candidate revision and its webhook configuration.
    pub const PREVIEW: &str = "proviso.dev/preview";
    /// Finalizer of a policy server: the policy server stays until no policy uses it.
    pub const POLICIES: &str = "proviso.dev/policies";
}

/// The field managers of server-side apply. Each writer owns the fields that it applies.
pub mod field_managers {
    /// The operator.
    pub const OPERATOR: &str = "proviso-operator";
    /// The operator, when it publishes the leader of a policy server.
    pub const OPERATOR_LEADER: &str = "proviso-operator-leader";
    /// The operator, when it reports the validation of a revision of a configuration policy.
    pub const OPERATOR_VALIDATION: &str = "proviso-operator-validation";
    /// The operator, when it reports a refused rollback of a policy.
    pub const OPERATOR_ROLLBACK: &str = "proviso-operator-rollback";
    /// The REST API.
    pub const API: &str = "proviso-api";
    /// The operator, when it checks by a dry run whether the API server accepts a webhook configuration.
    pub const ADMISSION: &str = "proviso-admission";
    /// The command line.
    pub const CLI: &str = "proviso-cli";
    /// The leader of a policy server. The name is the same for every replica that becomes the leader.
    pub const LEADER: &str = "proviso-leader";

    /// Returns the field manager of a policy server replica, by the name of its pod.
    #[must_use]
    pub fn replica(pod: &str) -> String {
        format!("proviso-replica-{pod}")
    }
}
