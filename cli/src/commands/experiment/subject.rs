//! The experiments that `proviso experiment status` is about, and their report.

use jiff::Timestamp;
use proviso_core::PolicyId;
use serde::Serialize;

use super::super::in_form;
use super::session::Session;
use crate::arguments::ExportForm;
use crate::cluster::Scope;
use crate::error::Error;
use crate::found::Found;
use crate::objects::ExperimentObject;
use crate::render;
use crate::report::{ExperimentDetail, ExperimentOverview, ExperimentReport};

/// The experiments that a command is about.
pub(super) struct Subject {
    pub scope: Scope,
    /// The policy whose experiments are shown; `None` for those of all policies.
    pub policy: Option<PolicyId>,
    /// The place that was searched, for messages, such as `the namespace team`; `None` for all namespaces.
    pub place: Option<String>,
}

/// The report about one experiment or several.
#[derive(PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Report {
    Overview(ExperimentOverview),
    Detail(Box<ExperimentDetail>),
}

impl Report {
    /// Returns the experiments of the report.
    pub(super) fn experiments(&self) -> &[ExperimentReport] {
        match self {
            Self::Overview(overview) => &overview.experiments,
            Self::Detail(detail) => std::slice::from_ref(&detail.experiment),
        }
    }
}

impl Subject {
    /// Returns the report about the experiments that were found.
    pub(super) fn report(&self, session: &Session, found: &Found<ExperimentObject>) -> Report {
        match (&self.scope, found.items.first()) {
            (Scope::One(_), Some(experiment)) => {
                Report::Detail(Box::new(ExperimentDetail::new(experiment, session.program)))
            }
            _ => Report::Overview(ExperimentOverview::new(found, self.policy.as_ref())),
        }
    }

    /// Returns the report in an output format.
    ///
    /// # Errors
    /// When the report cannot be serialized.
    pub(super) fn text(&self, session: &Session, report: &Report, form: ExportForm) -> Result<String, Error> {
        let Some(form) = form.form() else {
            return Ok(render::csv(report.experiments(), Timestamp::now(), true)?);
        };
        let view = session.view(form);
        in_form(report, form, || match report {
            Report::Overview(overview) => render::experiments(overview, self.place.as_deref(), &view),
            Report::Detail(detail) => render::experiment(detail, &view),
        })
    }
}
