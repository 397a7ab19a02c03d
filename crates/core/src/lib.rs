//! The data model and the decisions of Proviso as pure functions: policy ids, endpoint paths, admission reviews, verdicts,
//! matching, divergence, the chain of request policies, the rollout of policies and experiments, and the delivery of configuration
//! policies. No I/O, no clock, no Kubernetes client.

pub mod caller_token;
pub mod capabilities;
pub mod configuration;
pub mod confinement;
pub mod divergence;
pub mod endpoint;
pub mod experiment;
pub mod failure;
pub mod matching;
pub mod names;
pub mod policy_id;
pub mod request;
pub mod review;
pub mod rollout;
pub mod sampling;
pub mod verdict;

pub use caller_token::CallerToken;
pub use capabilities::Capabilities;
pub use divergence::Divergence;
pub use endpoint::{Action, Endpoint, PreviewEndpoint, Target};
pub use failure::{Failure, Reason};
pub use matching::Match;
pub use policy_id::PolicyId;
pub use review::Review;
pub use verdict::{Enforcement, Mode, Verdict};
