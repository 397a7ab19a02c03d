//! Authentication of callers by bearer tokens, and the access to `/metrics`. The API server reviews tokens and permissions. A flood of
//! bad tokens does not become a flood of reviews: results are cached for a short time, and reviews are limited.

mod limits;
mod metrics;
mod tokens;

pub use metrics::MetricsAccess;
pub use tokens::{AuthenticationError, Tokens, bearer};

#[cfg(test)]
mod mock_api;
