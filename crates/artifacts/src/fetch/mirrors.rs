//! Fetches from the mirrors of an artifact, or from its own registry.

use std::sync::Arc;

use super::client::Client;
use super::error::FetchError;
use super::{FetchAccess, Fetcher};
use crate::reference::Artifact;

impl Fetcher {
    /// Calls `fetch` for each location of the artifact in order, and returns the first success.
    pub(super) async fn try_locations<T, F: Future<Output = Result<T, FetchError>>>(
        &self,
        artifact: &Artifact,
        access: FetchAccess<'_>,
        fetch: impl Fn(Client, Artifact) -> F,
    ) -> Result<T, FetchError> {
        let (trust, secrets) = self.load(access).await?;
        let mut errors = Vec::new();
        for location in trust.sources.locations(artifact) {
            let credential = secrets.find(location.host(), location.repository()).cloned();
            match fetch(Client::new(Arc::clone(&trust), credential, true), location).await {
                Ok(result) => return Ok(result),
                Err(error) => errors.push(error),
            }
        }
        Err(combine(errors))
    }
}

/// Combines the errors of all locations. The last error comes first in the message, because the original registry is the
/// last location if the mirrors include it.
fn combine(mut errors: Vec<FetchError>) -> FetchError {
    // An artifact always has at least one location.
    let error = errors.pop().unwrap_or_else(|| FetchError::Stopped("the artifact has no location".to_owned()));
    if errors.is_empty() {
        return error;
    }
    let mirrors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let is_transient = error.is_transient() || errors.iter().any(FetchError::is_transient);
    FetchError::Mirrors { error: error.into(), mirrors: mirrors.join("; "), is_transient }
}
