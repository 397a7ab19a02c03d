//! Authentication of callers by bearer tokens, and the review of their permissions. The API server reviews both. A flood of
//! bad tokens does not become a flood of reviews: results are cached for a short time, and reviews are limited.

mod limits;
mod metrics;
mod permissions;
mod tokens;

pub use metrics::MetricsAccess;
pub use permissions::{Permission, Permissions};
pub use tokens::{AuthenticationError, Caller, Tokens, bearer};

#[cfg(test)]
mod mock_api;
