//! Why a module could not be fetched: which server, what happened, what to do. And whether it may work later.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;
use proviso_core::Reason;

use super::credentials::PullSecretError;
use super::sources::SourcesError;
use crate::digest::Digest;
use crate::reference::Host;
use crate::verify::{ConfigurationError, VerifyError};

/// A module that could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("the module {path} cannot be read: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: String, limit: u64 },
    #[error("the module has the digest {actual}, not {wanted}, which the policy asks for")]
    Digest { actual: Digest, wanted: Digest },
    #[error("{host} sent a {what} with the digest {actual} when asked for {wanted}: its storage is damaged, or worse")]
    Corrupt { host: Host, what: &'static str, actual: Digest, wanted: Digest },
    #[error(
        "{reference} has moved: it was {pinned} when this generation of the policy was prepared, is {now} now, and \
         the old one is gone: put that one back, or change the policy, so that its next generation takes the new one"
    )]
    Moved { reference: String, pinned: Digest, now: Digest },
    #[error("the sources in {path} cannot be used: {error}")]
    Sources { path: PathBuf, error: SourcesError },
    #[error(transparent)]
    PullSecret(#[from] PullSecretError),
    #[error("{host} cannot be reached: {error}")]
    Connect { host: Host, error: ConnectError },
    #[error("{0} speaks plain HTTP, which is for servers among `insecureSources` only: name it there, or use HTTPS")]
    Plain(Host),
    #[error("{host} redirects to {to}, which is not followed: {why}")]
    Redirect { host: Host, to: String, why: &'static str },
    #[error("{host} answers {status} {}", credentials(secret.as_deref()))]
    Unauthorized { host: Host, status: StatusCode, secret: Option<String> },
    #[error(
        "there is no {reference}: is it spelled right, and was it pushed? Some registries say so where credentials are missing"
    )]
    NotFound {
        reference: String,
        /// What it names may come to be.
        may_come: bool,
    },
    #[error("{host} answers {status}: {}", remedy(*status))]
    Status { host: Host, status: StatusCode },
    #[error("{host} broke off in the middle of its answer: {error}")]
    Body { host: Host, error: hyper::Error },
    #[error("{what} did not arrive within {} s", limit.as_secs_f32())]
    Timeout { what: String, limit: Duration },
    #[error("{host} sent a {what} that is not understood: {error}")]
    Malformed { host: Host, what: &'static str, error: String },
    #[error("{reference} is no policy module: {why}")]
    NoModule { reference: String, why: String },
    #[error(transparent)]
    Unverified(Box<VerifyError>),
    #[error("{0} cannot be verified: signatures are beside artifacts of registries only: push the module to one")]
    Unverifiable(String),
    #[error("the verification cannot be used: {0}")]
    Verification(Box<ConfigurationError>),
    #[error("{error} (before that, of its mirrors: {mirrors})")]
    Mirrors { error: Box<FetchError>, mirrors: String, is_passing: bool },
    #[error("fetching stopped: {0}")]
    Stopped(String),
}

/// A server that could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("its name cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error("it has the address {0}, and no module is fetched from link-local addresses and those of nobody")]
    Address(IpAddr),
    #[error("{0}")]
    Connect(io::Error),
    #[error("no connection within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("TLS does not come about: {0} (an authority of your own belongs into `sourceAuthorities`)")]
    Tls(io::Error),
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
    #[error("{0} is no name that a certificate can have")]
    Name(String),
    #[error("HTTP: {0}")]
    Http(hyper::Error),
    #[error("the proxy {proxy} answers {status}: may it connect there, and does it know who asks?")]
    Proxy { proxy: Host, status: StatusCode },
}

impl FetchError {
    /// Stable name: log field and reason of a condition.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Digest { .. }
            | Self::Corrupt { .. }
            | Self::Moved { .. }
            | Self::Unverified(_)
            | Self::Unverifiable(_)
            | Self::Verification(_) => Reason::VERIFICATION_ERROR,
            Self::Mirrors { error, .. } => error.reason(),
            _ => Reason::PULL_ERROR,
        }
    }

    /// Whether the same module may be there later: what stood in its way lies with the network, a server's state, or
    /// files that may change without the policy.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::File { .. }
            | Self::Sources { .. }
            | Self::PullSecret(_)
            | Self::Plain(_)
            | Self::Unauthorized { .. }
            | Self::Body { .. }
            | Self::Timeout { .. }
            | Self::Stopped(_)
            | Self::Verification(_)
            // A signature comes after what it signs.
            | Self::Unverified(_) => true,
            Self::Mirrors { is_passing, .. } => *is_passing,
            Self::Connect { error, .. } => !matches!(error, ConnectError::Address(_) | ConnectError::Name(_)),
            Self::NotFound { may_come, .. } => *may_come,
            Self::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
            }
            Self::TooLarge { .. }
            | Self::Digest { .. }
            | Self::Corrupt { .. }
            | Self::Moved { .. }
            | Self::Unverifiable(_)
            | Self::Redirect { .. }
            | Self::Malformed { .. }
            | Self::NoModule { .. } => false,
        }
    }
}

fn credentials(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => format!("to the credentials of the Secret {secret:?}: are they right, and may they read this?"),
        None => "and wants credentials, which no pull secret here has for it: add one to the imagePullSecrets of the \
                 PolicyServer, and to those of the policy if it names any"
            .to_owned(),
    }
}

fn remedy(status: StatusCode) -> &'static str {
    if status == StatusCode::TOO_MANY_REQUESTS {
        "it is asked too often: it is asked again later; an account of yours in a pull secret may have other limits"
    } else if status.is_server_error() {
        "it is asked again later; if that goes on, look at the server"
    } else {
        "is this the right address?"
    }
}
