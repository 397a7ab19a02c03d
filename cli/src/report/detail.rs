//! The report about one policy.

use serde::Serialize;

use super::advice;
use super::event::EventReport;
use super::next_step::{CommandContext, NextStep};
use super::policy::PolicyReport;
use super::revision::{RevisionReport, list};
use crate::found::Omitted;
use crate::objects::{PolicyObject, RevisionObject};

/// The report about one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    #[serde(flatten)]
    pub policy: PolicyReport,
    /// The newest revision, and the live one.
    pub revisions: Vec<RevisionReport>,
    /// The Events, oldest first.
    pub events: Vec<EventReport>,
    /// The next steps, most important first.
    pub next_steps: Vec<NextStep>,
    pub unseen: Vec<Omitted>,
}

impl Detail {
    /// Returns the report about a policy. `revisions` are sorted, newest first.
    #[must_use]
    pub fn new(
        policy: &PolicyObject,
        revisions: &[RevisionObject],
        events: Vec<EventReport>,
        unseen: Vec<Omitted>,
        context: &CommandContext,
    ) -> Self {
        let report = PolicyReport::new(policy);
        let is_newest_or_live = |it: &RevisionReport| {
            it.generation == policy.generation || Some(it.generation) == policy.status.live_generation
        };
        let revisions: Vec<_> = list(policy, revisions).into_iter().filter(is_newest_or_live).collect();
        let next_steps = advice::next_steps(policy, &report, &revisions, context);
        Self { policy: report, revisions, events, next_steps, unseen }
    }
}
