//! `proviso experiment status`.

use std::process::ExitCode;

use proviso_core::PolicyId;
use serde::Serialize;

use super::super::{in_form, print};
use super::{Session, find, watch};
use crate::arguments::{ExperimentStatus, Form};
use crate::cluster::{Found, Scope};
use crate::error::Error;
use crate::objects::ExperimentObject;
use crate::policy_ref::ExperimentsRef;
use crate::render;
use crate::report::{ExperimentDetail, ExperimentOverview};

/// What was asked about.
pub(super) struct Subject {
    pub scope: Scope,
    /// Only the experiments of this policy.
    pub of: Option<PolicyId>,
    /// Where was looked, for people; none if everywhere.
    place: Option<String>,
}

/// What was asked for.
#[derive(PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Report {
    Overview(ExperimentOverview),
    Detail(Box<ExperimentDetail>),
}

pub async fn run(session: &Session, arguments: &ExperimentStatus) -> Result<ExitCode, Error> {
    let form = arguments.output.output;
    let (subject, found) = match &arguments.of {
        Some(ExperimentsRef::One(experiment)) => {
            let experiment = find(session, experiment).await?;
            let of = Some(experiment.policy.clone());
            let subject = Subject { scope: Scope::One(experiment.id.clone()), of, place: None };
            (subject, Found { items: vec![experiment], unseen: Vec::new() })
        }
        Some(ExperimentsRef::Of(policy)) => {
            let policy = session.at.find_policy(policy).await?;
            let (scope, place) = (Scope::Beside(policy.id.clone()), Some(policy.id.to_string()));
            let found = session.at.look(&scope, Some(&policy.id)).await?;
            (Subject { scope, of: Some(policy.id), place }, found)
        }
        None => {
            let of_all_namespaces = arguments.all_namespaces;
            let scope = Scope::All { of_all_namespaces };
            let found = session.at.look(&scope, None).await?;
            let place = (!of_all_namespaces).then(|| format!("the namespace {}", session.at.namespace()));
            (Subject { scope, of: None, place }, found)
        }
    };
    if arguments.watch {
        return watch::run(session, &subject, &found, form).await;
    }
    print(&subject.text(session, &subject.report(session, &found), form)?)?;
    Ok(ExitCode::SUCCESS)
}

impl Subject {
    /// `found` has the one that was asked about, or all.
    pub(super) fn report(&self, session: &Session, found: &Found<ExperimentObject>) -> Report {
        match (&self.scope, found.items.first()) {
            (Scope::One(_), Some(experiment)) => {
                Report::Detail(Box::new(ExperimentDetail::new(experiment, session.program)))
            }
            _ => Report::Overview(ExperimentOverview::new(found, self.of.as_ref())),
        }
    }

    pub(super) fn text(&self, session: &Session, report: &Report, form: Form) -> Result<String, Error> {
        let view = session.view(form);
        in_form(report, form, || match report {
            Report::Overview(overview) => render::experiments(overview, self.place.as_deref(), &view),
            Report::Detail(detail) => render::experiment(detail, &view),
        })
    }
}
