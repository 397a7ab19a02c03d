//! The errors of a server, and their remedies.

use std::fmt;
use std::path::PathBuf;

use http::StatusCode;

/// Why a request to a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{option} {file}: {cause}", file = file.display())]
    File { option: &'static str, file: PathBuf, cause: String },
    #[error("no client can be made for {server}: {cause}")]
    Client { server: String, cause: String },
    #[error("{server} does not answer: {cause}")]
    Unreachable { server: String, cause: String },
    #[error("{server} does not know you: {cause}")]
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
    pub message: String,
    /// Invalid fields, and the reason for each.
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
    /// Returns what a person can do about the error.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => {
                Some("Is it running, and is this its address? See --server and PROVISO_SERVER.")
            }
            Self::Unauthorized { .. } => Some("Name the file of its token with --token-file or PROVISO_TOKEN_FILE."),
            Self::NoApi { .. } => Some(
                "`policy-server --manifests` serves it at its --listen address; on one that other machines reach, only \
                 with --api-token-file.",
            ),
            Self::File { .. } | Self::Client { .. } | Self::Refused(_) => None,
        }
    }
}
