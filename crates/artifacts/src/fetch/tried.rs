//! What the registries said that may have an artifact, when none of them had it.

use super::error::FetchError;

/// The failures so far, in order.
#[derive(Debug, Default)]
pub(super) struct Tried(Vec<FetchError>);

impl Tried {
    pub(super) fn add(&mut self, error: FetchError) {
        self.0.push(error);
    }

    /// The last says what is to be done: it is the original where that is asked at all. What the others said stands
    /// beside it.
    pub(super) fn into_error(mut self) -> FetchError {
        // Of an artifact there is always at least one place.
        let error = self.0.pop().unwrap_or_else(|| FetchError::Stopped("there is nobody to ask".to_owned()));
        if self.0.is_empty() {
            return error;
        }
        let mirrors: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        let is_passing = error.is_passing() || self.0.iter().any(FetchError::is_passing);
        FetchError::Mirrors { error: error.into(), mirrors: mirrors.join("; "), is_passing }
    }
}
