//! The bearer token for callers of the API. The file of the token is read again when it changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;

use crate::followed_file::follow;

/// The minimum length of a token, in bytes: 128 bits in hexadecimal digits.
const MIN_LENGTH: usize = 32;

/// The error of a token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("--api-token-file {path}: {error}", path = path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "--api-token-file {path}: the token is shorter than {MIN_LENGTH} characters: make one with `openssl rand -hex 32`",
        path = .0.display()
    )]
    Short(PathBuf),
}

/// The current token.
pub struct Token(Arc<ArcSwap<Vec<u8>>>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token, and starts a task that follows its file. If a new token cannot be used, the old token stays valid.
    ///
    /// # Errors
    /// Returns an error if the token cannot be read or is too short.
    pub fn follow(path: PathBuf) -> Result<Self, TokenError> {
        Ok(Self(follow("API token", move || read(&path))?))
    }

    /// Returns true if `given` is the token. Compares in constant time.
    #[must_use]
    pub fn matches(&self, given: &str) -> bool {
        verify_slices_are_equal(&self.0.load(), given.as_bytes()).is_ok()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenError> {
    let text = std::fs::read_to_string(path).map_err(|error| TokenError::Read { path: path.to_owned(), error })?;
    let token = text.trim().as_bytes().to_vec();
    if token.len() < MIN_LENGTH { Err(TokenError::Short(path.to_owned())) } else { Ok(token) }
}
