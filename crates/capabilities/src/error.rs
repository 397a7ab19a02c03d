//! The errors of host calls. The messages address the author of the policy: they name the field or the command that would
//! allow the call.

use std::time::Duration;

use proviso_core::Reason;
use proviso_crds::reasons;

use crate::kind::Kind;

/// The error of a host call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostCallError {
    #[error("{call}: this policy is not allowed to call this host capability: add it to {field}")]
    Capability { call: String, field: String },
    #[error("{0}: there is no such host capability")]
    Unknown(String),
    #[error("{call}: invalid request: {error}")]
    Request { call: String, error: String },
    #[error("this policy is not allowed to read {kind}: add the kind to {field}")]
    Resource { kind: Kind, field: String },
    #[error("this policy belongs to the namespace {own} and cannot access {wanted}: use a ClusterPolicy")]
    OtherNamespace { own: String, wanted: String },
    #[error("{call}: this policy belongs to the namespace {own} and cannot access the whole cluster: {remedy}")]
    ClusterWide { call: String, own: String, remedy: &'static str },
    #[error("{kind}: {cause}")]
    KindUnavailable { kind: Kind, cause: KindUnavailable },
    #[error("{kind}: {why}")]
    Scope { kind: Kind, why: &'static str },
    #[error("there is no {kind} {name}")]
    NotFound { kind: Kind, name: String },
    #[error("the {selector} {text:?} is invalid: {why}")]
    Selector { selector: &'static str, text: String, why: String },
    #[error("the query to the API server failed: {0}")]
    ApiServer(String),
    #[error("{what} cannot be checked without a cluster: this policy server serves a folder")]
    NoCluster { what: &'static str },
    #[error("the image {image:?} cannot be looked up: {why}")]
    Image { image: String, why: String },
    #[error("the image {image:?} is not trusted: {why}")]
    Untrusted { image: String, why: String },
    #[error("the name {name:?} cannot be looked up: {why}")]
    Name { name: String, why: String },
    #[error("{0}")]
    Certificate(String),
    #[error("the host call was aborted: {0}")]
    Stopped(String),
    #[error("{call}: no answer within {} ms", after.as_millis())]
    Deadline { call: String, after: Duration },
}

/// The reason why the objects of a kind are not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KindUnavailable {
    #[error("the policy server may not read {resource}: {message}. An administrator can allow it with `{command}`")]
    Forbidden { resource: String, message: String, command: String },
    #[error(
        "the API server does not serve this kind: check its spelling, and that its CustomResourceDefinition is installed"
    )]
    NotServed,
    #[error("the API server does not support list and watch for this kind: policies cannot read it")]
    NotWatchable,
    #[error("is cluster-scoped, and this policy belongs to the namespace {0}: use a ClusterPolicy")]
    ClusterScoped(String),
    #[error("{scope} take more than the limit of {} MiB of memory: read fewer kinds, read a single namespace with a Policy, or raise --context-memory", limit >> 20)]
    TooLarge { scope: LimitScope, limit: usize },
    #[error("its objects have not arrived yet: {0}")]
    NotReady(String),
}

/// The objects that exceed a memory limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitScope {
    #[error("its objects")]
    Kind,
    #[error("together, the objects that the policies of the namespace {0} read")]
    Namespace(String),
    #[error("together, the objects that namespaced policies read")]
    Namespaces,
    #[error("together, the objects that all policies read")]
    All,
}

impl HostCallError {
    /// Returns the category of the error, for the program of a namespaced policy: it does not tell what listens where.
    pub(crate) fn category(&self) -> String {
        match self {
            Self::Name { name, .. } => format!("the name {name:?} cannot be looked up"),
            Self::ApiServer(_) => "the query to the API server failed".to_owned(),
            Self::KindUnavailable { kind, cause: KindUnavailable::NotReady(_) } => {
                format!("{kind}: its objects have not arrived yet")
            }
            Self::Stopped(_) => "the host call was aborted".to_owned(),
            // `images` has replaced the texts of registries.
            _ => self.to_string(),
        }
    }

    /// Returns the stable name of the error for logs and conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Capability { .. } | Self::Resource { .. } => Reason::new("NotAllowed"),
            Self::OtherNamespace { .. } | Self::ClusterWide { .. } | Self::Scope { .. } => Reason::new("OutOfScope"),
            Self::Unknown(_) => Reason::UNSUPPORTED,
            Self::Request { .. } | Self::Selector { .. } => Reason::new("InvalidRequest"),
            Self::KindUnavailable { cause, .. } => cause.reason(),
            Self::NotFound { .. } => Reason::new("NotFound"),
            Self::ApiServer(_) | Self::Stopped(_) | Self::Image { .. } | Self::Name { .. } => Reason::new("Unanswered"),
            Self::NoCluster { .. } => Reason::new("NoCluster"),
            Self::Untrusted { .. } => Reason::new("Untrusted"),
            Self::Certificate(_) => Reason::new("InvalidCertificate"),
            Self::Deadline { .. } => Reason::new("DeadlineExceeded"),
        }
    }
}

impl KindUnavailable {
    /// Returns the stable name of the reason for logs and conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Forbidden { .. } => reasons::CONTEXT_FORBIDDEN,
            Self::NotServed => reasons::CONTEXT_NOT_SERVED,
            Self::NotWatchable => reasons::CONTEXT_NOT_WATCHED,
            Self::ClusterScoped(_) => reasons::CONTEXT_OUT_OF_SCOPE,
            Self::TooLarge { .. } => reasons::CONTEXT_TOO_LARGE,
            Self::NotReady(_) => reasons::CONTEXT_NOT_READY,
        }
    }
}
