//! `proviso evaluate`: evaluates a request to a service with a chain of request policies, without a cluster.

use std::process::ExitCode;

use proviso_core::request::{Decision, Request};
use proviso_crds::validation::FieldError;
use proviso_evaluation::documents::{self, DocumentError};
use proviso_evaluation::{Evaluator, RequestPolicies};
use serde_json::Value;

use super::{Session, fetcher, in_form, print};
use crate::arguments::Evaluate;
use crate::changes;
use crate::error::Error;
use crate::render;
use crate::report::request::RequestReport;

/// A request as a file has it.
struct FileRequest {
    payload: Value,
    user: Option<String>,
    tenant: Option<String>,
}

pub async fn run(session: &Session<()>, arguments: &Evaluate) -> Result<ExitCode, Error> {
    let evaluator = Evaluator::new(fetcher(&arguments.registries));
    let policies = RequestPolicies::read(&arguments.policies, &evaluator).await?;
    let document = documents::only(&arguments.file)?;
    let wrong = |error| Error::Document(DocumentError::Field { place: document.place.clone(), error });
    let request = read(document.value.clone()).map_err(wrong)?;
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

/// Reads a request: the body of one of the two APIs, or a payload.
fn read(value: Value) -> Result<FileRequest, FieldError> {
    let Value::Object(mut members) = value else {
        return Ok(FileRequest { payload: value, user: None, tenant: None });
    };
    if let (Some(instance), 1) = (members.get("service_instance"), members.len()) {
        let payload = instance["spec"].clone();
        return Ok(FileRequest { payload, user: None, tenant: None });
    }
    let is_body = members.contains_key("payload")
        && members.keys().all(|key| ["payload", "user", "tenant"].contains(&key.as_str()));
    if !is_body {
        return Ok(FileRequest { payload: Value::Object(members), user: None, tenant: None });
    }
    let mut id = |field: &str| match members.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id)),
        Some(_) => Err(FieldError::new(field, "must be a text")),
    };
    let (user, tenant) = (id("user")?, id("tenant")?);
    Ok(FileRequest { payload: members.remove("payload").unwrap_or_default(), user, tenant })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_a_payload_or_the_body_of_an_api() {
        for (file, payload, user) in [
            (json!({"cpu": 1}), json!({"cpu": 1}), None),
            (json!({"payload": {"cpu": 1}, "user": "u"}), json!({"cpu": 1}), Some("u")),
            (json!({"payload": 1, "cpu": 1}), json!({"payload": 1, "cpu": 1}), None),
            (json!({"service_instance": {"spec": {"cpu": 1}}}), json!({"cpu": 1}), None),
        ] {
            let read = read(file.clone()).unwrap();
            assert_eq!((read.payload, read.user.as_deref()), (payload, user), "{file}");
        }
        let error = read(json!({"payload": {}, "tenant": 1})).err().unwrap();
        assert_eq!(error.field, "tenant");
    }
}
