//! The kinds of `proviso.dev/v1alpha1`. The doc comments of the fields become the descriptions that `kubectl explain`
//! shows. [`validation`] checks the rules that a schema cannot express.

#![allow(clippy::doc_markdown, reason = "`kubectl explain` shows the field docs without rendering Markdown")]
#![allow(clippy::duplicated_attributes, reason = "many printed columns have the same type")]

pub mod actions;
mod admission;
mod canary;
pub mod conditions;
mod configuration;
pub mod context;
mod definitions;
mod enforcement_point;
mod experiment;
#[cfg(feature = "fixtures")]
pub mod fixtures;
mod formats;
pub mod names;
mod object_requests;
mod policy;
mod policy_server;
mod preview_end;
mod preview_progress;
mod program;
pub mod reasons;
mod report;
mod request;
mod revision;
mod subscription;
pub mod tenants;
pub mod uniqueness;
pub mod validation;
mod verification;

pub use admission::{Admission, AdmissionCoverage, FailurePolicy, MatchPolicy, Mode};
pub use canary::{Canary, CanaryResult, MAX_CANARIES};
pub use conditions::{ConditionState, ConditionType, Conditions};
pub use configuration::{
    Configuration, MAX_ATTRIBUTE, MAX_ATTRIBUTES, MAX_CONFIG_NAME, MAX_NAMESPACES, MAX_SCHEMA, MAX_TEMPLATE, Template,
    check_audience,
};
pub use definitions::{chart, definitions, kustomization};
pub use enforcement_point::{EnforcementPoint, PointMismatch};
pub use experiment::{
    ClusterPolicyExperiment, ClusterPolicyExperimentSpec, CommitIntent, CommittedExperiment, DEFAULT_TTL,
    DivergenceCounts, DivergenceSample, ExperimentSpec, ExperimentStatus, PolicyExperiment, PolicyRef, PreviewLogging,
    PreviewMetadata, PreviewSettings, PreviewState, StopCause, TTL, time_to_live, time_to_live_or_longest,
};
pub use object_requests::ObjectRequests;
pub use policy::{
    ClusterPolicy, ClusterPolicySpec, MAX_REVISION_HISTORY, Policy, PolicyPhase, PolicySpec, PolicyStatus, ReplicaCount,
};
pub use policy_server::{
    Cache, CacheClaim, EmptyDir, Evaluation, ImagePullPolicy, LogLevel, PolicyServer, PolicyServerSpec,
    PolicyServerStatus, Preview, Resources, Sources,
};
pub use preview_progress::{PreviewChange, StartFailure, StartProgress, StopProgress};
pub use program::{
    Cel, CelAuditAnnotation, CelMutation, CelMutationType, CelValidation, CelVariable, ContextAwareResource, Group,
    GroupMember, Program, Rego, RegoDialect, SecretRef, Wasm, WasmMode,
};
pub use report::{MAX_MESSAGE, MAX_SAMPLES};
pub use request::{
    DEFAULT_PRIORITY, MAX_DESCRIPTION, MAX_DISPLAY_NAME, MAX_SERVICE_TYPES, PRIORITIES, RequestLevel, RequestScope,
    ServiceRequests, TENANT, tenant,
};
pub use revision::{
    ConditionStatus, ModuleStatus, PolicyKind, PolicyRevision, PolicyRevisionSpec, PolicyRevisionStatus, PreviewReport,
    ReplicaStatus, RevisedExperiment, RevisedPolicy, RevisionRole,
};
pub use subscription::{
    Application, CanaryFor, Component, ComponentKind, DeliveredPolicy, Delivery, Filter, LastUpdate, MAX_PENDING,
    Notify, NotifyExec, NotifyHttp, PendingChange, PolicySelector, PolicySubscription, PolicySubscriptionSpec,
    PolicySubscriptionStatus, RejectedChange, UpdateResult,
};
pub use tenants::{AllowedNamespaces, Tenants};
pub use verification::{AnyOf, ConfigMapKeyRef, Signature, SignatureKind, SignatureSubject, Verification};

/// The API group of all kinds.
pub const GROUP: &str = "proviso.dev";
/// The version of all kinds.
pub const VERSION: &str = "v1alpha1";
