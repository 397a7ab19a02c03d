//! Asks for an artifact where it may be: at its mirrors, or its own registry.

use std::sync::Arc;

use super::Fetcher;
use super::client::Client;
use super::error::FetchError;
use crate::reference::Artifact;

impl Fetcher {
    /// What the first server answers that has an answer. They are asked in order.
    pub(super) async fn ask<T, F: Future<Output = Result<T, FetchError>>>(
        &self,
        artifact: &Artifact,
        pull_secrets: &[String],
        question: impl Fn(Client, Artifact) -> F,
    ) -> Result<T, FetchError> {
        let (trust, secrets) = self.load(pull_secrets).await?;
        let mut failures = Vec::new();
        for place in trust.sources.places(artifact) {
            let credential = secrets.find(place.host(), place.repository()).cloned();
            match question(Client::new(Arc::clone(&trust), credential, true), place).await {
                Ok(answer) => return Ok(answer),
                Err(error) => failures.push(error),
            }
        }
        Err(together(failures))
    }
}

/// The last says what is to be done: it is the original where that is asked at all. What the others said stands
/// beside it.
fn together(mut failures: Vec<FetchError>) -> FetchError {
    // Of an artifact there is always at least one place.
    let error = failures.pop().unwrap_or_else(|| FetchError::Stopped("there is nobody to ask".to_owned()));
    if failures.is_empty() {
        return error;
    }
    let mirrors: Vec<_> = failures.iter().map(ToString::to_string).collect();
    let is_passing = error.is_passing() || failures.iter().any(FetchError::is_passing);
    FetchError::Mirrors { error: error.into(), mirrors: mirrors.join("; "), is_passing }
}
