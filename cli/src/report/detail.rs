//! The report about one policy.

use serde::Serialize;

use super::advice;
use super::event::EventReport;
use super::next_step::{NextStep, Place};
use super::policy::PolicyReport;
use super::revision::{RevisionReport, list};
use crate::found::Omitted;
use crate::objects::{PolicyObject, RevisionObject};

/// Everything about one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    #[serde(flatten)]
    pub policy: PolicyReport,
    /// The newest revision, and the live one.
    pub revisions: Vec<RevisionReport>,
    /// The latest last.
    pub events: Vec<EventReport>,
    /// The most important first.
    pub next_steps: Vec<NextStep>,
    pub unseen: Vec<Omitted>,
}

impl Detail {
    /// Reports about a policy. `revisions` are sorted, the newest first.
    #[must_use]
    pub fn new(
        policy: &PolicyObject,
        revisions: &[RevisionObject],
        events: Vec<EventReport>,
        unseen: Vec<Omitted>,
        place: &Place,
    ) -> Self {
        let report = PolicyReport::new(policy);
        let matters = |it: &RevisionReport| {
            it.generation == policy.generation || Some(it.generation) == policy.status.live_generation
        };
        let revisions: Vec<_> = list(policy, revisions).into_iter().filter(matters).collect();
        let next_steps = advice::next_steps(policy, &report, &revisions, place);
        Self { policy: report, revisions, events, next_steps, unseen }
    }
}
