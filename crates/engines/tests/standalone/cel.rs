//! CEL programs: expressions and their limits, the libraries of Kubernetes, variables, annotations and mutations.

#[path = "../support/cel_cases.rs"]
mod cases;
mod expressions;
mod faults;
mod host;
mod libraries;
mod mutations;
mod policies;
