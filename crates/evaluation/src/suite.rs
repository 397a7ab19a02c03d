//! Test suites of policies: Proviso's own, and Gatekeeper's as `gator verify` runs them.
//!
//! [`discover`] reads the suites below some paths. [`run`] runs the tests and cases that a [`Filter`] selects, and returns
//! reports.

mod definition;
mod discover;
mod expect;
mod expect_outcome;
mod filter;
mod gatekeeper;
mod own;
mod report;
mod requests;
mod run;
mod source;

pub use definition::Suite;
pub use discover::{SuiteError, discover};
pub use filter::{Filter, FilterError};
pub use report::{CaseReport, Counts, Outcome, SuiteReport, TestReport};
pub use run::run;
