//! Proviso's own suites (`test.proviso.dev/v1alpha1`): policies, requests, and the expected answers.

use std::path::Path;

use proviso_core::Review;
use proviso_core::review::Operation;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::definition::OwnTest;
use super::expect::Expect;
use super::filter::Filter;
use super::report::{CaseReport, Outcome, TestReport};
use super::requests;
use super::source::{Source, resolve};
use crate::documents::{self, typed};
use crate::evaluator::Evaluator;
use crate::policy_file::{self, PolicyFile, PreparedPolicy};
use crate::review::{self, Request};

pub(super) const GROUP: &str = "test.proviso.dev";
pub(super) const VERSION: &str = "test.proviso.dev/v1alpha1";

/// A policy and its test cases. File names are relative to the folder of the suite.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Test {
    name: String,
    /// The manifest of the policy.
    policy: String,
    /// The name of the policy, if the manifest has several.
    policy_name: Option<String>,
    /// Settings that replace the settings of the policy.
    settings: Option<Map<String, Value>>,
    /// Files with objects of the cluster: Namespaces for selectors and `namespaceObject`, and objects that the policy may read.
    #[serde(default)]
    cluster: Vec<String>,
    cases: Vec<Case>,
    #[serde(default)]
    skip: bool,
}

/// A request, and the expected answer of the policy.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    /// An AdmissionReview, instead of an object.
    review: Option<Source>,
    /// The request of a raw policy, `{"request": …}`, instead of all other fields.
    raw: Option<Source>,
    object: Option<Source>,
    old_object: Option<Source>,
    operation: Option<Operation>,
    /// The namespace of the request. Default: the namespace of the object.
    namespace: Option<String>,
    sub_resource: Option<String>,
    /// `request.userInfo`.
    #[serde(default)]
    user: Map<String, Value>,
    #[serde(default)]
    dry_run: bool,
    expect: Expect,
    #[serde(default)]
    skip: bool,
}

/// Reads the tests of a suite.
///
/// # Errors
/// Returns an error if the suite has an unknown field, or a field is missing or invalid.
pub(super) fn read(suite: &Value) -> Result<Vec<OwnTest>, FieldError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        #[serde(rename = "apiVersion")]
        _api_version: String,
        #[serde(rename = "kind")]
        _kind: String,
        #[serde(rename = "metadata", default)]
        _metadata: Value,
        #[serde(rename = "skip", default)]
        _skip: bool,
        tests: Vec<Value>,
    }
    let version = &suite["apiVersion"];
    if version != VERSION {
        return Err(FieldError::new("apiVersion", format!("is {version}, and must be {VERSION:?}")));
    }
    let Document { tests, .. } = typed("", suite)?;
    let tests = tests.iter().enumerate().map(|(index, test)| {
        let at = format!("tests[{index}]");
        if requests::is_request_test(test) {
            typed(&at, test).map(OwnTest::Requests)
        } else {
            typed(&at, test).map(|test| OwnTest::Policy(Box::new(test)))
        }
    });
    tests.collect()
}

impl Test {
    pub(super) fn is_chosen(&self, filter: &Filter) -> bool {
        filter.selects_test(&self.name, self.cases.iter().map(|case| case.name.as_str()))
    }

    pub(super) async fn run(&self, suite: &Path, filter: &Filter, evaluator: &Evaluator) -> TestReport {
        let cases = async {
            let (policy, cluster) = self.prepare(suite, evaluator).await.map_err(Outcome::Error)?;
            let mut cases = Vec::new();
            for case in &self.cases {
                let is_chosen = !case.skip && filter.selects_case(&self.name, &case.name);
                cases.push(CaseReport::of(&case.name, is_chosen, case.run(suite, &policy, &cluster)).await);
            }
            Ok(cases)
        };
        TestReport::of(&self.name, !self.skip && self.is_chosen(filter), cases).await
    }

    async fn prepare(&self, suite: &Path, evaluator: &Evaluator) -> Result<(PreparedPolicy, Vec<Value>), String> {
        let mut policy = PolicyFile::read(&resolve(suite, &self.policy), self.policy_name.as_deref())
            .map_err(|error| error.to_string())?;
        if let Some(settings) = &self.settings {
            policy = policy.with_settings(settings.clone()).map_err(|error| format!("settings: {error}"))?;
        }
        let mut cluster = Vec::new();
        for file in &self.cluster {
            let documents = documents::read(&resolve(suite, file)).map_err(|error| format!("cluster: {error}"))?;
            cluster.extend(documents.into_iter().map(|it| it.value));
        }
        let file = policy.file.clone();
        let prepared =
            policy.prepare(evaluator, &cluster).await.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok((prepared, cluster))
    }
}

impl Case {
    async fn run(&self, suite: &Path, policy: &PreparedPolicy, cluster: &[Value]) -> Result<Outcome, String> {
        let (review, object) = self.request(suite)?;
        let namespaces = policy_file::namespaces(cluster);
        let answer = policy.evaluate(&review, &namespaces).await.map_err(|error| error.to_string())?;
        // A failed evaluation is a denial, too. It must not pass a case that expects a denial by the policy.
        if let (Some(failure), false) = (&answer.failure, self.expect.is_failure()) {
            return Ok(Outcome::Error(failure.message.clone()));
        }
        let differences = self.expect.differences(suite, &answer, &object)?;
        Ok(if differences.is_empty() { Outcome::Passed } else { Outcome::Failed(differences.join("\n")) })
    }

    /// Returns the review of the case, and the object in it that a policy may mutate.
    fn request(&self, suite: &Path) -> Result<(Review, Value), String> {
        let Some(raw) = &self.raw else {
            let review = self.review(suite)?;
            let object = review["request"]["object"].clone();
            return Ok((review::admission(&review).map_err(|error| error.to_string())?, object));
        };
        if self.review.is_some() || self.object.is_some() || self.has_request_fields() {
            return Err("raw: cannot be combined with review, object or other fields of the request".to_owned());
        }
        let raw = raw.read(suite)?;
        let review = review::raw(&raw).map_err(|error| format!("raw: {error}"))?;
        Ok((review, raw["request"].clone()))
    }

    /// Returns true if the case has fields of the request other than the object.
    fn has_request_fields(&self) -> bool {
        let is_placed = self.namespace.is_some() || self.sub_resource.is_some();
        self.old_object.is_some() || self.operation.is_some() || is_placed || !self.user.is_empty()
    }

    fn review(&self, suite: &Path) -> Result<Value, String> {
        let read = |source: &Option<Source>| source.as_ref().map(|source| source.read(suite)).transpose();
        let object = read(&self.object)?;
        let Some(review) = read(&self.review)? else {
            let request = Request {
                operation: self.operation,
                object,
                old_object: read(&self.old_object)?,
                namespace: self.namespace.clone(),
                name: None,
                sub_resource: self.sub_resource.clone(),
                user: self.user.clone(),
                is_dry_run: self.dry_run,
            };
            return request.to_review().map_err(|error| error.to_string());
        };
        if object.is_some() || self.has_request_fields() {
            return Err("review: cannot be combined with object, operation or other fields of the request".to_owned());
        }
        if !review::is_review(&review) {
            return Err("review: is not an AdmissionReview of admission.k8s.io: put an object into `object`".to_owned());
        }
        review::completed(&review).map_err(|error| error.to_string())
    }
}
