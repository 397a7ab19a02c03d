//! Errors of fetching: the server, the cause and the remedy, and whether the error is transient.

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

/// The error of a module that could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("the module {path} cannot be read: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: String, limit: u64 },
    #[error("the module has the digest {actual}, not {wanted}, which the policy asks for")]
    Digest { actual: Digest, wanted: Digest },
    #[error(
        "{host} sent a {what} with the digest {actual} when asked for {wanted}: its storage is damaged or was tampered with"
    )]
    Corrupt { host: Host, what: &'static str, actual: Digest, wanted: Digest },
    #[error(
        "{reference} has moved: its module was {pinned} when this generation of the policy was prepared and is {now} \
         now, and the old module is gone: restore the old module, or change the policy so that its next generation \
         uses the new module"
    )]
    Moved { reference: String, pinned: Digest, now: Digest },
    #[error("the sources in {path} cannot be used: {error}")]
    Sources { path: PathBuf, error: SourcesError },
    #[error(transparent)]
    PullSecret(#[from] PullSecretError),
    #[error("{host} cannot be reached: {error}")]
    Connect { host: Host, error: ConnectError },
    #[error(
        "{0} speaks plain HTTP, which is allowed for servers in `insecureSources` only: add the server there, or use HTTPS"
    )]
    Plain(Host),
    #[error("{host} redirects to {to}, which is not followed: {why}")]
    Redirect { host: Host, to: String, why: &'static str },
    #[error("{host} answers {status} {}", credentials(secret.as_deref()))]
    Unauthorized { host: Host, status: StatusCode, secret: Option<String> },
    #[error(
        "there is no {reference}: check the spelling, and that it was pushed; some registries also answer so without credentials"
    )]
    NotFound {
        reference: String,
        /// True if a later push can create the reference; false for a digest.
        may_appear: bool,
    },
    #[error("{host} answers {status}: {}", remedy(*status))]
    Status { host: Host, status: StatusCode },
    #[error("the response of {host} broke off: {error}")]
    Body { host: Host, error: hyper::Error },
    #[error("{what} did not arrive within {} s", limit.as_secs_f32())]
    Timeout { what: String, limit: Duration },
    #[error("{host} sent a {what} that is not understood: {error}")]
    Malformed { host: Host, what: &'static str, error: String },
    #[error("{reference} is not a policy module: {why}")]
    NoModule { reference: String, why: String },
    #[error(transparent)]
    Unverified(Box<VerifyError>),
    #[error("{0} cannot be verified: only modules in an OCI registry have signatures: push the module to a registry")]
    Unverifiable(String),
    #[error("the verification settings cannot be used: {0}")]
    Verification(Box<ConfigurationError>),
    #[error("{error} (its mirrors failed before: {mirrors})")]
    Mirrors { error: Box<FetchError>, mirrors: String, is_transient: bool },
    #[error("fetching stopped: {0}")]
    Stopped(String),
}

/// The error of a connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("its name cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error(
        "it has the address {0}, and nothing is fetched from link-local addresses, metadata services and reserved addresses, and for \
         namespaced policies nothing from internal addresses, unless `namespacedRegistries` or `sources` name the server"
    )]
    Address(IpAddr),
    #[error("{0}")]
    Connect(io::Error),
    #[error("no connection within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the TLS handshake failed: {0} (add the certificate of a private CA to `sourceAuthorities`)")]
    Tls(io::Error),
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
    #[error("{0} is not a server name that a certificate can have")]
    Name(String),
    #[error("HTTP: {0}")]
    Http(hyper::Error),
    #[error(
        "the proxy {proxy} answers {status}: check that it allows this server, and check the user name and password"
    )]
    Proxy { proxy: Host, status: StatusCode },
}

impl FetchError {
    /// Returns the stable reason for logs and conditions.
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

    /// Returns the category of the error, for the author of a namespaced policy: it does not tell which server answers what.
    #[must_use]
    pub fn category(&self) -> String {
        match self {
            Self::Digest { .. } | Self::Moved { .. } | Self::Unverified(_) | Self::Unverifiable(_) => self.to_string(),
            Self::Mirrors { error, .. } => error.category(),
            Self::NotFound { .. } | Self::Unauthorized { .. } => {
                "it does not exist, or it needs credentials that this policy may not use".to_owned()
            }
            Self::TooLarge { limit, .. } => format!("it is larger than {limit} bytes"),
            Self::Corrupt { .. } | Self::Malformed { .. } | Self::NoModule { .. } => {
                "its server returns something else".to_owned()
            }
            Self::Sources { .. }
            | Self::PullSecret(_)
            | Self::Verification(_)
            | Self::File { .. }
            | Self::Stopped(_) => "the settings of the policy server cannot be used".to_owned(),
            Self::Connect { .. }
            | Self::Plain(_)
            | Self::Redirect { .. }
            | Self::Status { .. }
            | Self::Body { .. }
            | Self::Timeout { .. } => "its server does not return it".to_owned(),
        }
    }

    /// Returns true if a later fetch of the same module may succeed.
    ///
    /// Such errors come from the network, from the state of a server, or from files that change independently of the policy.
    #[must_use]
    pub fn is_transient(&self) -> bool {
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
            // An image is pushed before its signature.
            | Self::Unverified(_) => true,
            Self::Mirrors { is_transient, .. } => *is_transient,
            Self::Connect { error, .. } => !matches!(error, ConnectError::Address(_) | ConnectError::Name(_)),
            Self::NotFound { may_appear, .. } => *may_appear,
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
        Some(secret) => {
            format!("to the credentials of the Secret {secret:?}: check that they are valid and allow reading this")
        }
        None => "and wants credentials, but no pull secret has credentials for this server: add a Secret to the \
                 imagePullSecrets of the PolicyServer, and to those of the policy if it names any"
            .to_owned(),
    }
}

fn remedy(status: StatusCode) -> &'static str {
    if status == StatusCode::TOO_MANY_REQUESTS {
        "the rate limit is reached: a policy server tries again later; an account in a pull secret may have a higher limit"
    } else if status.is_server_error() {
        "a policy server tries again later; if the error stays, check that server"
    } else {
        "check that this is the right address"
    }
}
