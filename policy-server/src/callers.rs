//! The callers of `--listen` that the server knows by the token in the path (docs/adr/0023). Every other caller gets the same answer to
//! every request, and so learns nothing about policies.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use proviso_core::CallerToken;
use proviso_core::caller_token::split_token;

use crate::followed_file::{follow, read_text};

/// The tokens that the server accepts. The file of the tokens is read again when it changes: during a rotation, it has the old token
/// and the new one.
#[derive(Debug)]
pub struct CallerTokens(Arc<ArcSwap<Vec<CallerToken>>>);

impl CallerTokens {
    /// Reads the tokens, and starts a task that follows their file. If the new content cannot be used, the old tokens stay accepted,
    /// and no others.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has no token, or has a malformed one.
    pub fn follow(path: PathBuf) -> Result<Self, String> {
        let read = move || {
            let text = read_text("--caller-tokens", &path)?;
            CallerToken::parse_list(&text).map_err(|error| format!("--caller-tokens {}: {error}", path.display()))
        };
        Ok(Self(follow("caller tokens", read)?))
    }

    /// Returns the path of the endpoint without the token; `None` if the path has no token that the server accepts.
    pub fn admit<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (token, endpoint) = split_token(path);
        let given = token?.as_bytes();
        // Compares with every token, each in constant time: the time of the answer does not depend on the token.
        let matches = |accepted: &CallerToken| verify_slices_are_equal(accepted.expose().as_bytes(), given).is_ok();
        let is_known = self.0.load().iter().fold(false, |is_known, accepted| is_known | matches(accepted));
        is_known.then_some(endpoint)
    }
}
