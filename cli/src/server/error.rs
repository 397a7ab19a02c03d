//! The errors of requests to a server, with remedies.

use std::fmt;
use std::path::PathBuf;

use http::StatusCode;

/// The error of a request to a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{option} {file}: {cause}", file = file.display())]
    File { option: &'static str, file: PathBuf, cause: String },
    #[error("cannot create a client for {server}: {cause}")]
    Client { server: String, cause: String },
    #[error("{server} does not answer: {cause}")]
    Unreachable { server: String, cause: String },
    #[error("{server} refused the credentials: {cause}")]
    Unauthorized { server: String, cause: String },
    #[error("{server} does not serve the REST API: it answers {status}")]
    NoApi { server: String, status: StatusCode },
    #[error("{0}")]
    Refused(Box<Refusal>),
}

/// An error of the API (AIP-193).
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The reason of the error (`ErrorInfo.reason`), such as `ETAG_MISMATCH`; `None` if the server gives none.
    pub reason: Option<String>,
    pub message: String,
    /// The invalid fields, each with a message.
    pub violations: Vec<(String, String)>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (field, description) in &self.violations {
            let violation = format!("{field}: {description}");
            if !self.message.contains(&violation) {
                write!(f, "; {violation}")?;
            }
        }
        Ok(())
    }
}

impl ServerError {
    /// Returns advice for the user; `None` if the message of the error is enough.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => {
                Some("Is it running, and is this its address? See --server and PROVISO_SERVER.")
            }
            Self::Unauthorized { .. } => Some("Name the file with the token: --token-file or PROVISO_TOKEN_FILE."),
            Self::NoApi { .. } => Some(
                "`policy-server --manifests` serves it at its --listen address; if other machines can reach that address, \
                 only with --api-token-file.",
            ),
            Self::File { .. } | Self::Client { .. } | Self::Refused(_) => None,
        }
    }
}
