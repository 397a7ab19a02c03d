//! Proviso's own suites (`test.proviso.dev/v1alpha1`): policies as they are deployed, and what they answer.

use std::path::Path;

use proviso_core::Review;
use proviso_core::review::Operation;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::discover::beside;
use super::expect::Expect;
use super::{Filter, Outcome, TestReport, Tests, run};
use crate::documents::{self, typed};
use crate::evaluate::Evaluator;
use crate::policy_file::{self, PolicyFile, Ready};
use crate::review::{self, Request};

pub const GROUP: &str = "test.proviso.dev";
pub const VERSION: &str = "test.proviso.dev/v1alpha1";

/// A policy and its cases. Files are named from the suite's folder.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Test {
    pub name: String,
    /// The file with the policy.
    policy: String,
    /// The policy's name, where its file has several.
    policy_name: Option<String>,
    /// In place of the policy's own.
    settings: Option<Map<String, Value>>,
    /// Files with objects of the cluster: Namespaces, for their labels.
    #[serde(default)]
    cluster: Vec<String>,
    pub cases: Vec<Case>,
    #[serde(default)]
    skip: bool,
}

/// A request and what is expected of the policy.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// An AdmissionReview; in place of an object.
    review: Option<Source>,
    /// What a raw policy is asked, `{"request": …}`; in place of all others.
    raw: Option<Source>,
    object: Option<Source>,
    old_object: Option<Source>,
    operation: Option<Operation>,
    /// Of the request; without it the object's.
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

/// A file, or what would stand in it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Source {
    File(String),
    Inline(Map<String, Value>),
}

impl Source {
    /// The object.
    ///
    /// # Errors
    /// When the file holds no object, or several.
    pub fn read(&self, suite: &Path) -> Result<Value, String> {
        match self {
            Self::Inline(members) => Ok(Value::Object(members.clone())),
            Self::File(file) => {
                documents::only(&beside(suite, file)).map(|it| it.value).map_err(|error| error.to_string())
            }
        }
    }
}

/// Reads the tests of a suite.
///
/// # Errors
/// When it has an unknown field, or misses one.
pub fn read(suite: &Value) -> Result<Tests, FieldError> {
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
        tests: Vec<Test>,
    }
    let version = &suite["apiVersion"];
    if version != VERSION {
        return Err(FieldError {
            field: "apiVersion".into(),
            message: format!("is {version}, and must be {VERSION:?}"),
        });
    }
    let Document { tests, .. } = typed("", suite)?;
    Ok(Tests::Own(tests))
}

impl Test {
    pub(super) fn is_chosen(&self, filter: &Filter) -> bool {
        filter.takes_test(&self.name, self.cases.iter().map(|case| case.name.as_str()))
    }

    pub(super) async fn run(&self, suite: &Path, filter: &Filter, evaluator: &Evaluator) -> TestReport {
        let cases = async {
            let (ready, cluster) = self.prepare(suite, evaluator).await.map_err(Outcome::Error)?;
            let mut cases = Vec::new();
            for case in &self.cases {
                let is_chosen = !case.skip && filter.takes(&self.name, &case.name);
                cases.push(run::case(&case.name, is_chosen, case.run(suite, &ready, &cluster)).await);
            }
            Ok(cases)
        };
        run::test(&self.name, !self.skip && self.is_chosen(filter), cases).await
    }

    async fn prepare(&self, suite: &Path, evaluator: &Evaluator) -> Result<(Ready, Vec<Value>), String> {
        let mut policy = PolicyFile::read(&beside(suite, &self.policy), self.policy_name.as_deref())
            .map_err(|error| error.to_string())?;
        if let Some(settings) = &self.settings {
            policy = policy.with_settings(settings.clone()).map_err(|error| format!("settings: {error}"))?;
        }
        let mut cluster = Vec::new();
        for file in &self.cluster {
            let documents = documents::read(&beside(suite, file)).map_err(|error| format!("cluster: {error}"))?;
            cluster.extend(documents.into_iter().map(|it| it.value));
        }
        let file = policy.file.clone();
        let ready =
            policy.prepare(evaluator, &cluster).await.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok((ready, cluster))
    }
}

impl Case {
    async fn run(&self, suite: &Path, ready: &Ready, cluster: &[Value]) -> Result<Outcome, String> {
        let (review, object) = self.request(suite)?;
        let answer = ready.ask(&review, &policy_file::namespaces(cluster)).await.map_err(|error| error.to_string())?;
        // A policy that fails denies, which no test means that expects a denial.
        if let (Some(failure), false) = (&answer.failure, self.expect.is_failure()) {
            return Ok(Outcome::Error(failure.message.clone()));
        }
        let differences = self.expect.differences(suite, &answer, &object)?;
        Ok(if differences.is_empty() { Outcome::Passed } else { Outcome::Failed(differences.join("\n")) })
    }

    /// The request, and what of it a policy may change.
    fn request(&self, suite: &Path) -> Result<(Review, Value), String> {
        let Some(raw) = &self.raw else {
            let review = self.review(suite)?;
            let object = review["request"]["object"].clone();
            return Ok((review::admission(&review).map_err(|error| error.to_string())?, object));
        };
        if self.review.is_some() || self.object.is_some() || self.is_described() {
            return Err("raw: says everything about the request: leave out review, object and the like".to_owned());
        }
        let raw = raw.read(suite)?;
        let review = review::raw(&raw).map_err(|error| format!("raw: {error}"))?;
        Ok((review, raw["request"].clone()))
    }

    /// Whether something is said about a request that is made of objects.
    fn is_described(&self) -> bool {
        let is_placed = self.namespace.is_some() || self.sub_resource.is_some();
        self.old_object.is_some() || self.operation.is_some() || is_placed || !self.user.is_empty()
    }

    fn review(&self, suite: &Path) -> Result<Value, String> {
        let read = |source: &Option<Source>| source.as_ref().map(|source| source.read(suite)).transpose();
        let told = |error: FieldError| error.to_string();
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
            return request.to_review().map_err(told);
        };
        if object.is_some() || self.is_described() {
            return Err(
                "review: says everything about the request: leave out object, operation and the like".to_owned()
            );
        }
        if !review::is_review(&review) {
            return Err("review: is no AdmissionReview of admission.k8s.io: an object belongs into `object`".to_owned());
        }
        review::completed(&review).map_err(told)
    }
}
