//! CEL programs: expressions and their bounds, Kubernetes' libraries, and what a policy has besides validations.

#[path = "../support/cel_cases.rs"]
mod cases;
mod expressions;
mod faults;
mod libraries;
mod mutations;
mod policies;
mod world;
