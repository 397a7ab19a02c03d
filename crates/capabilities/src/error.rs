//! Why a program is not told what it asks. The texts are for the policy's author, and name the field that would permit it or
//! the command that would.

use std::time::Duration;

use crate::kind::Kind;

/// A question without an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    #[error("{call}: this policy may not call it: name it in {field}")]
    Capability { call: String, field: String },
    #[error("{0}: there is no such host capability")]
    Unknown(String),
    #[error("{call}: the request is not understood: {error}")]
    Request { call: String, error: String },
    #[error("this policy may not read {kind}: name it in {field}")]
    Resource { kind: Kind, field: String },
    #[error("this policy is of the namespace {own} and reads nothing of {wanted}: use a ClusterPolicy")]
    OtherNamespace { own: String, wanted: String },
    #[error("{call}: this policy is of the namespace {own} and has no view of the whole cluster: {remedy}")]
    ClusterWide { call: String, own: String, remedy: &'static str },
    #[error("{kind}: {trouble}")]
    Trouble { kind: Kind, trouble: Trouble },
    #[error("{kind}: {why}")]
    Scope { kind: Kind, why: &'static str },
    #[error("there is no {kind} {name}")]
    NotFound { kind: Kind, name: String },
    #[error("the {selector} {text:?} is not understood: {why}")]
    Selector { selector: &'static str, text: String, why: String },
    #[error("the API server did not answer: {0}")]
    ApiServer(String),
    #[error("{what} cannot be asked without a cluster: this policy server serves a folder")]
    NoCluster { what: &'static str },
    #[error("the image {image:?} cannot be looked up: {why}")]
    Image { image: String, why: String },
    #[error("the image {image:?} is not trusted: {why}")]
    Untrusted { image: String, why: String },
    #[error("the name {name:?} cannot be looked up: {why}")]
    Name { name: String, why: String },
    #[error("{0}")]
    Certificate(String),
    #[error("asking stopped: {0}")]
    Stopped(String),
    #[error("{call}: no answer within {} ms", after.as_millis())]
    Deadline { call: String, after: Duration },
}

/// Why the objects of a kind cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error("the policy server may not read {resource}: {said}. An administrator permits it with `{command}`")]
    Forbidden { resource: String, said: String, command: String },
    #[error("the API server serves no such kind: is it spelled right, and is its CustomResourceDefinition there?")]
    NoSuchKind,
    #[error("the API server does not let its objects be listed and watched: policies cannot read it")]
    NotWatched,
    #[error("belongs to no namespace, and this policy is of the namespace {0}: use a ClusterPolicy")]
    ClusterScoped(String),
    #[error("{whose} take more than {} MiB of memory, which a policy server does not keep: read fewer kinds, or only those of one namespace by a Policy; --context-memory is the limit of all", limit >> 20)]
    TooLarge { whose: Whose, limit: usize },
    #[error("its objects have not arrived yet: {0}")]
    NotYet(String),
}

/// Whose objects are too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Whose {
    #[error("its objects")]
    Kind,
    #[error("with them, the objects that the policies of the namespace {0} read")]
    Namespace(String),
    #[error("with them, the objects that the policies of namespaces read")]
    Namespaces,
    #[error("with them, the objects that all policies read")]
    All,
}

impl AskError {
    /// Stable name, for logs and conditions.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Capability { .. } | Self::Resource { .. } => "NotAllowed",
            Self::OtherNamespace { .. } | Self::ClusterWide { .. } | Self::Scope { .. } => "OutOfScope",
            Self::Unknown(_) => "Unsupported",
            Self::Request { .. } | Self::Selector { .. } => "InvalidRequest",
            Self::Trouble { trouble, .. } => trouble.reason(),
            Self::NotFound { .. } => "NotFound",
            Self::ApiServer(_) | Self::Stopped(_) | Self::Image { .. } | Self::Name { .. } => "Unanswered",
            Self::NoCluster { .. } => "NoCluster",
            Self::Untrusted { .. } => "Untrusted",
            Self::Certificate(_) => "InvalidCertificate",
            Self::Deadline { .. } => "DeadlineExceeded",
        }
    }
}

impl Trouble {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "ContextForbidden",
            Self::NoSuchKind => "ContextNotServed",
            Self::NotWatched => "ContextNotWatched",
            Self::ClusterScoped(_) => "ContextOutOfScope",
            Self::TooLarge { .. } => "ContextTooLarge",
            Self::NotYet(_) => "ContextNotReady",
        }
    }
}
