//! Tests of Proviso's own suites about requests to services: a chain of request policies, requests, and the expected outcomes.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::expect_outcome::ExpectOutcome;
use super::filter::Filter;
use super::report::{CaseReport, Outcome, TestReport};
use super::source::{Source, resolve};
use crate::evaluator::Evaluator;
use crate::requests::RequestPolicies;
use crate::service_request::ServiceRequest;

/// The request policies of a chain, and their test cases. File names are relative to the folder of the suite.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Test {
    name: String,
    /// The files or folders with the policies, and with the Namespaces that name tenants.
    policies: Paths,
    cases: Vec<Case>,
    #[serde(default)]
    skip: bool,
}

/// A file or folder, or a list of them.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be the path of a file or folder, or a list of them")]
enum Paths {
    One(String),
    Many(Vec<String>),
}

/// A request, and the expected outcome of the chain.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    /// A request as `proviso evaluate` reads it: the body of one of the two APIs, or a payload.
    request: Option<Source>,
    /// The payload, instead of a request.
    payload: Option<Source>,
    /// The user. Replaces that of the request.
    user: Option<String>,
    /// The tenant. Replaces that of the request.
    tenant: Option<String>,
    expect: ExpectOutcome,
    #[serde(default)]
    skip: bool,
}

impl Test {
    pub(super) fn is_chosen(&self, filter: &Filter) -> bool {
        filter.selects_test(&self.name, self.cases.iter().map(|case| case.name.as_str()))
    }

    pub(super) async fn run(&self, suite: &Path, filter: &Filter, evaluator: &Evaluator) -> TestReport {
        let cases = async {
            let policies = RequestPolicies::read_all(&self.paths(suite), evaluator).await;
            let policies = policies.map_err(|error| Outcome::Error(format!("policies: {error}")))?;
            let mut cases = Vec::new();
            for case in &self.cases {
                let is_chosen = !case.skip && filter.selects_case(&self.name, &case.name);
                cases.push(CaseReport::of(&case.name, is_chosen, case.run(suite, &policies)).await);
            }
            Ok(cases)
        };
        TestReport::of(&self.name, !self.skip && self.is_chosen(filter), cases).await
    }

    fn paths(&self, suite: &Path) -> Vec<PathBuf> {
        let paths = match &self.policies {
            Paths::One(path) => std::slice::from_ref(path),
            Paths::Many(paths) => paths,
        };
        paths.iter().map(|path| resolve(suite, path)).collect()
    }
}

impl Case {
    async fn run(&self, suite: &Path, policies: &RequestPolicies) -> Result<Outcome, String> {
        let request = self.request(suite)?.into_request().map_err(|error| format!("payload: {error}"))?;
        let outcome = policies.evaluate(request).await;
        // A policy that fails must not pass a case that expects a rejection.
        if let (false, Some(failure)) = (self.expect.is_failure(), failure(&outcome)) {
            return Ok(Outcome::Error(failure));
        }
        let differences = self.expect.differences(suite, &outcome)?;
        Ok(if differences.is_empty() { Outcome::Passed } else { Outcome::Failed(differences.join("\n")) })
    }

    fn request(&self, suite: &Path) -> Result<ServiceRequest, String> {
        let request = match (&self.request, &self.payload) {
            (Some(request), None) => {
                ServiceRequest::read(request.read(suite)?).map_err(|error| format!("request: {error}"))?
            }
            (None, Some(payload)) => ServiceRequest { payload: payload.read(suite)?, user: None, tenant: None },
            (Some(_), Some(_)) => return Err("request: cannot be combined with payload".to_owned()),
            (None, None) => return Err("is missing a request: set `request` or `payload`".to_owned()),
        };
        let own = |own: &Option<String>, of_request: Option<String>| own.clone().or(of_request);
        let (user, tenant) = (own(&self.user, request.user), own(&self.tenant, request.tenant));
        Ok(ServiceRequest { payload: request.payload, user, tenant })
    }
}

/// Returns the failure of a policy; `None` if no policy failed.
fn failure(outcome: &proviso_core::request::Outcome) -> Option<String> {
    match &outcome.decision {
        failed @ proviso_core::request::Decision::Failed { .. } => failed.message(),
        _ => None,
    }
}

/// Returns true if the value of a test is one of this kind.
pub(super) fn is_request_test(test: &Value) -> bool {
    test.get("policies").is_some()
}
