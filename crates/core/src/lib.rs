//! The data model and the decisions of Proviso as pure functions: policy ids, endpoint paths, admission reviews, verdicts,
//! matching, divergence, and the rollout of policies and experiments. No I/O, no clock, no Kubernetes client.

pub mod capabilities;
pub mod divergence;
pub mod endpoint;
pub mod experiment;
pub mod failure;
pub mod matching;
pub mod names;
pub mod policy_id;
pub mod review;
pub mod rollout;
pub mod sampling;
pub mod verdict;

pub use capabilities::Capabilities;
pub use divergence::Divergence;
pub use endpoint::{Action, Endpoint, PreviewEndpoint, Target};
pub use failure::{Failure, Reason};
pub use matching::Match;
pub use policy_id::PolicyId;
pub use review::Review;
pub use verdict::{Enforcement, Mode, Verdict};
