//! `proviso experiment status`.

use std::process::ExitCode;

use super::super::print;
use super::session::{Session, find};
use super::subject::Subject;
use super::watch;
use crate::arguments::ExperimentStatus;
use crate::cluster::Scope;
use crate::error::Error;
use crate::found::Found;
use crate::policy_ref::ExperimentsRef;

pub async fn run(session: &Session, arguments: &ExperimentStatus) -> Result<ExitCode, Error> {
    let form = arguments.output.output;
    let (subject, found) = match &arguments.subject {
        Some(ExperimentsRef::One(experiment)) => {
            let experiment = find(session, experiment).await?;
            let policy = Some(experiment.policy.clone());
            let subject = Subject { scope: Scope::One(experiment.id.clone()), policy, place: None };
            (subject, Found { items: vec![experiment], unseen: Vec::new() })
        }
        Some(ExperimentsRef::OfPolicy(policy)) => {
            let policy = session.backend.find_policy(policy).await?;
            let (scope, place) = (Scope::SameNamespace(policy.id.clone()), Some(policy.id.to_string()));
            let found = session.backend.list_experiments(&scope, Some(&policy.id)).await?;
            (Subject { scope, policy: Some(policy.id), place }, found)
        }
        None => {
            let of_all_namespaces = arguments.all_namespaces;
            let scope = Scope::All { of_all_namespaces };
            let found = session.backend.list_experiments(&scope, None).await?;
            let place = (!of_all_namespaces).then(|| format!("the namespace {}", session.backend.namespace()));
            (Subject { scope, policy: None, place }, found)
        }
    };
    if arguments.watch {
        return watch::run(session, &subject, &found, form).await;
    }
    print(&subject.text(session, &subject.report(session, &found), form)?)?;
    Ok(ExitCode::SUCCESS)
}
