//! The reasons of conditions and Events. [`SECTIONS`] has their causes and remedies.

mod explanations;

use proviso_core::Reason;

pub use explanations::{Explanation, SECTIONS, Section, explanation};

/// Defines constants, and `ALL` of them.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $reason:literal;)+) => {
        $($(#[$doc])* pub const $name: Reason = Reason::new($reason);)+

        /// Every constant of this module.
        pub const ALL: &[Reason] = &[$($name),+];
    };
}

reasons! {
    /// The experiment may be previewed.
    ACCEPTED = "Accepted";
    /// All replicas of the policy server are Ready.
    ALL_REPLICAS_READY = "AllReplicasReady";
    /// The API server refused an object of the policy server.
    APPLY_FAILED = "ApplyFailed";
    /// The body of a configuration policy is larger than 512 KiB.
    BODY_TOO_LARGE = "BodyTooLarge";
    /// An administrator has taken over the webhook configuration.
    BREAK_GLASS = "BreakGlass";
    /// The takeover of the webhook configuration has ended.
    BREAK_GLASS_ENDED = "BreakGlassEnded";
    /// The subscription is a canary for an experiment, and does not get its candidate.
    CANARY_NOT_DELIVERED = "CanaryNotDelivered";
    /// The replicas of the policy server have a new certificate.
    CERTIFICATE_ISSUED = "CertificateIssued";
    /// The command of a notification cannot run.
    COMMAND_NOT_POSSIBLE = "CommandNotPossible";
    /// The experiment is now the policy.
    COMMITTED = "Committed";
    /// The operator has ended a commit of the experiment: its caller did not complete it, or the experiment was deleted.
    COMMIT_ABORTED = "CommitAborted";
    /// The name of a ConfigMap or Secret for the policies belongs to another object.
    CONFIG_MAP_CONFLICT = "ConfigMapConflict";
    /// A pod of the component lacks the container of the command.
    CONTAINER_NOT_FOUND = "ContainerNotFound";
    /// The policy server may not read a kind that the policy reads.
    CONTEXT_FORBIDDEN = "ContextForbidden";
    /// The objects that the policy reads are not listed yet.
    CONTEXT_NOT_READY = "ContextNotReady";
    /// The API server does not have a kind that the policy reads.
    CONTEXT_NOT_SERVED = "ContextNotServed";
    /// The API server cannot list or watch a kind that the policy reads.
    CONTEXT_NOT_WATCHED = "ContextNotWatched";
    /// A namespaced policy reads a cluster-scoped kind.
    CONTEXT_OUT_OF_SCOPE = "ContextOutOfScope";
    /// The objects that policies read exceed the memory for them.
    CONTEXT_TOO_LARGE = "ContextTooLarge";
    /// PolicySubscriptions that select the policy get it.
    DELIVERABLE = "Deliverable";
    /// The component has acknowledged every policy that it should have.
    DELIVERED = "Delivered";
    /// The component does not have every policy yet.
    DELIVERING = "Delivering";
    /// The result of an update of the component is not known.
    DELIVERY_FAILED = "DeliveryFailed";
    /// `spec.enabled` is false.
    DISABLED = "Disabled";
    /// A replica of the policy server leads.
    ELECTED = "Elected";
    /// The time to live of the preview has passed.
    EXPIRED = "Expired";
    /// The experiment and the live policy have decided differently for the first time.
    FIRST_DIVERGENCE = "FirstDivergence";
    /// An object of the API server lacks a field that every object has.
    INCOMPLETE_OBJECT = "IncompleteObject";
    /// A name cannot be used in the name of another object.
    INVALID_NAME = "InvalidName";
    /// An object cannot be written as JSON.
    INVALID_OBJECT = "InvalidObject";
    /// The replicas of the policy server have a valid certificate.
    ISSUED = "Issued";
    /// A key cannot be generated.
    KEY_ERROR = "KeyError";
    /// A request to the API server failed.
    KUBERNETES_ERROR = "KubernetesError";
    /// The leader of the policy server no longer renews its Lease.
    LEASE_EXPIRED = "LeaseExpired";
    /// The generation answers requests.
    LIVE = "Live";
    /// A replica serves the revision, or all replicas do.
    LOADED = "Loaded";
    /// A replica serves the revision as it was loaded, but cannot read its current form.
    LOADED_BEFORE = "LoadedBefore";
    /// A replica is loading the revision.
    LOADING = "Loading";
    /// Some replicas cannot load the revision.
    LOADING_FAILED = "LoadingFailed";
    /// The operator has deleted the pod of a lost node by force.
    LOST_POD_DELETED = "LostPodDeleted";
    /// The operator or a replica cannot read the object.
    MALFORMED = "Malformed";
    /// Another request policy of the same level, tenant and user has the display name.
    NAME_IN_USE = "NameInUse";
    /// The namespace has as many policies, experiments or revisions as it may have.
    NAMESPACE_FULL = "NamespaceFull";
    /// The policy server does not allow the policies of the namespace.
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed";
    /// The experiment may not be previewed: the condition `Accepted` has the cause.
    NOT_ACCEPTED = "NotAccepted";
    /// The policy server has no folder for the policies of components.
    NOT_CONFIGURED = "NotConfigured";
    /// The program of the revision does not work: the condition `Initialized` has the cause.
    NOT_INITIALIZED = "NotInitialized";
    /// The policy server has no certificate.
    NOT_ISSUED = "NotIssued";
    /// No generation of the policy answers requests any more.
    NOT_LIVE = "NotLive";
    /// The policy server does not permit a use in the spec for policies of namespaces.
    NOT_PERMITTED = "NotPermitted";
    /// The experiment was never started.
    NOT_STARTED = "NotStarted";
    /// A filter with `unique` selects several policies.
    NOT_UNIQUE = "NotUnique";
    /// The operator has no certificate authority yet.
    NO_AUTHORITY = "NoAuthority";
    /// The policy server has no caller token yet for the paths of webhooks.
    NO_CALLER_TOKEN = "NoCallerToken";
    /// No replica has led the policy server yet.
    NO_LEADER = "NoLeader";
    /// A selector selects no policy.
    NO_POLICY_SELECTED = "NoPolicySelected";
    /// No replica of the policy server is Ready.
    NO_REPLICAS = "NoReplicas";
    /// No leader of the policy server has reported about the generation in time.
    NOT_PREPARED = "NotPrepared";
    /// The memory of a replica of the policy server was exhausted.
    OUT_OF_MEMORY = "OutOfMemory";
    /// The deleted policy server still has policies.
    POLICIES_REMAIN = "PoliciesRemain";
    /// The policy of an experiment does not exist.
    POLICY_NOT_FOUND = "PolicyNotFound";
    /// The policy server of a namespaced policy does not exist.
    POLICY_SERVER_NOT_FOUND = "PolicyServerNotFound";
    /// The operator cannot read a policy that the subscription selects.
    POLICY_UNREADABLE = "PolicyUnreadable";
    /// The program was fetched and compiled, and accepted its settings.
    PREPARED = "Prepared";
    /// The policy server has not prepared the revision yet, or the operator has not validated it.
    PREPARING = "Preparing";
    /// Every replica previews the experiment.
    PREVIEWING = "Previewing";
    /// Another request policy of the same level, tenant and user has the priority.
    PRIORITY_IN_USE = "PriorityInUse";
    /// The preview of the experiment stops by itself soon.
    PREVIEW_EXPIRES = "PreviewExpires";
    /// The preview of the experiment was started.
    PREVIEW_STARTED = "PreviewStarted";
    /// The preview of the experiment was suspended.
    PREVIEW_SUSPENDED = "PreviewSuspended";
    /// The component has rejected a change of a policy.
    REJECTED = "Rejected";
    /// A template was not evaluated, for a reason that is not in the policy.
    RENDERING_UNAVAILABLE = "RenderingUnavailable";
    /// Another generation answers requests, or none.
    REPLACED = "Replaced";
    /// A Ready replica has reported nothing about the generation in time.
    REPLICA_SILENT = "ReplicaSilent";
    /// Some replicas of the policy server are not Ready.
    REPLICAS_NOT_READY = "ReplicasNotReady";
    /// Every selector of the subscription works.
    RESOLVED = "Resolved";
    /// The operator has created the revision of the generation.
    REVISION_CREATED = "RevisionCreated";
    /// The requested rollback was refused.
    ROLLBACK_REFUSED = "RollbackRefused";
    /// The policy has the spec of an earlier generation.
    ROLLED_BACK = "RolledBack";
    /// Some replicas of the policy server do not run the current spec yet.
    ROLLING_OUT = "RollingOut";
    /// The content of a configuration policy does not match its schema.
    SCHEMA_VIOLATION = "SchemaViolation";
    /// Another subscription has the service component name.
    SCN_CONFLICT = "ScnConflict";
    /// The Service of a notification does not exist.
    SERVICE_NOT_FOUND = "ServiceNotFound";
    /// The Service of a notification has no cluster IP or no selector, or lacks the port.
    SERVICE_NOT_USABLE = "ServiceNotUsable";
    /// A webhook configuration calls a revision that is not live.
    STILL_CALLED = "StillCalled";
    /// The preview is suspended, and replicas write their final counts.
    STOPPING = "Stopping";
    /// The preview of the experiment is suspended, or a replica has stopped it.
    SUSPENDED = "Suspended";
    /// A template has no content for the component.
    TEMPLATE_FAILED = "TemplateFailed";
    /// A template takes too long.
    TEMPLATE_TIMEOUT = "TemplateTimeout";
    /// The policy has as many experiments as it may have.
    TOO_MANY = "TooMany";
    /// A subscription selects more than 2,000 policies.
    TOO_MANY_POLICIES = "TooManyPolicies";
    /// The experiment was changed while it was previewed.
    UPDATED = "Updated";
    /// The content or the template of a configuration policy is valid.
    VALIDATED = "Validated";
    /// The operator could not validate a configuration policy.
    VALIDATION_FAILED = "ValidationFailed";
    /// The workload of the component does not exist.
    WORKLOAD_NOT_FOUND = "WorkloadNotFound";
}
