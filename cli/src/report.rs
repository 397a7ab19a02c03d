//! Makes reports about policies from objects. Pure. `-o json` and `-o yaml` print these types, so their fields are an
//! interface, which docs/reference/cli.md describes.

mod advice;
mod detail;
mod divergence;
mod event;
mod evidence;
mod experiment;
pub mod module;
mod next_step;
mod overview;
mod policy;
mod policy_bodies;
pub mod request;
mod revision;
mod subscription;
pub mod verdict;

pub use detail::Detail;
pub use divergence::{VerdictCount, coverage, percent, share, summary as counts_summary, verdict_counts};
pub use event::EventReport;
pub use experiment::{ExperimentDetail, ExperimentOverview, ExperimentReport};
pub use next_step::{CommandContext, NextStep};
pub use overview::Overview;
pub use policy::PolicyReport;
pub use policy_bodies::{Bodies, Body, PolicyBodies};
pub use revision::{RevisionReport, RevisionState, ShownRevision, list};
pub use subscription::{
    DeliveryState, ItemReport, ItemState, SubscriptionDetail, SubscriptionOverview, SubscriptionReport,
};
