//! Reports about policies, made of objects: pure. `-o json` and `-o yaml` print these types, so their shape is an interface:
//! docs/guide/cli.md.

mod advice;
mod detail;
mod divergence;
mod event;
mod experiment;
pub mod module;
mod next_step;
mod overview;
mod policy;
mod revision;
pub mod verdict;

pub use detail::Detail;
pub use divergence::{Verdicts, coverage, percent, verdicts};
pub use event::EventReport;
pub use experiment::{ExperimentDetail, ExperimentOverview, ExperimentReport};
pub use next_step::{NextStep, Place};
pub use overview::Overview;
pub use policy::PolicyReport;
pub use revision::{RevisionReport, RevisionState, ShownRevision, list};
