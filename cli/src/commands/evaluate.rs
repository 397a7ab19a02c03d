//! `proviso evaluate`: evaluates a request to a service with a chain of request policies, without a cluster.

use std::process::ExitCode;

use proviso_core::request::{Decision, Request};
use proviso_crds::validation::FieldError;
use proviso_evaluation::documents::{self, DocumentError};
use proviso_evaluation::{Evaluator, RequestPolicies, ServiceRequest};

use super::{Session, fetcher, in_form, print};
use crate::arguments::Evaluate;
use crate::changes;
use crate::error::Error;
use crate::render;
use crate::report::request::RequestReport;

pub async fn run(session: &Session<()>, arguments: &Evaluate) -> Result<ExitCode, Error> {
    let evaluator = Evaluator::new(fetcher(&arguments.registries));
    let policies = RequestPolicies::read(&arguments.policies, &evaluator).await?;
    let document = documents::only(&arguments.file)?;
    let wrong = |error| Error::Document(DocumentError::Field { place: document.place.clone(), error });
    let request = ServiceRequest::read(document.value.clone()).map_err(wrong)?;
    let user = arguments.user.clone().or(request.user);
    let tenant = arguments.tenant.clone().or(request.tenant);
    let request = Request::new(request.payload, tenant, user)
        .map_err(|error| wrong(FieldError::new("payload", error.to_string())))?;
    let sent = request.payload().clone();
    let outcome = policies.evaluate(request).await;
    let explanation = arguments.explain.as_ref().map(|field| outcome.explain(field));
    let report = RequestReport::new(&outcome, explanation);
    let difference = match &outcome.decision {
        Decision::Modified => changes::diff(("as sent", &sent), ("after the policies", &outcome.payload))?,
        _ => String::new(),
    };
    let form = arguments.output.output;
    let view = session.view(form);
    print(&in_form(&report, form, || render::request(&report, &difference, arguments.explain.as_ref(), &view))?)?;
    Ok(match &outcome.decision {
        Decision::Failed { .. } => ExitCode::from(2),
        decision if decision.is_allowed() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
