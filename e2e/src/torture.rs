//! The pure parts of the randomised run in `tests/torture`: the plan of its steps, the history that the run records, and the
//! checks of the history. They work on policies, generations and answers, and start no program.

pub mod checker;
pub mod history;
pub mod plan;
mod random;
pub mod report;
