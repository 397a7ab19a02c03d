//! The pure parts of the randomised run in `tests/torture`: the plan of its steps, its modules, the history that the run records,
//! and the checks of the history. They start no program.

pub mod checker;
pub mod history;
pub mod module;
pub mod plan;
mod random;
pub mod report;
