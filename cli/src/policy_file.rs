//! A policy in a file, as it is tried out and tested: read, validated, and asked without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proviso_core::matching::{Coverage, Labels, labels};
use proviso_core::{Failure, Review, Verdict};
use proviso_crds::validation::FieldError;
use proviso_crds::{GROUP, PolicySpec, VERSION, validation};
use proviso_engines::{Deadline, Program};
use proviso_programs::Conditions;
use serde_json::{Map, Value};

use crate::documents::{self, Document, DocumentError, only_of};
use crate::evaluate::{self, Evaluator, PrepareError};
use crate::manifest;

/// A policy as a manifest has it.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    pub name: String,
    /// Of a Policy; `default` where it does not say one.
    pub namespace: Option<String>,
    pub spec: PolicySpec,
    pub file: PathBuf,
}

/// A policy made ready.
#[derive(Debug)]
pub struct Ready {
    policy: PolicyFile,
    program: Program,
}

/// What a policy answers.
#[derive(Debug)]
pub struct Answer {
    pub verdict: Verdict,
    /// Why the program was not asked; none where it was.
    pub not_asked: Option<String>,
    /// Why the program came to no decision: the verdict is a denial for that.
    pub failure: Option<Failure>,
}

impl PolicyFile {
    /// Whether the document is a policy.
    #[must_use]
    pub fn is(document: &Document) -> bool {
        document.group() == GROUP && matches!(document.kind(), "Policy" | "ClusterPolicy")
    }

    /// Reads the policy of this name in a file; without a name the only one.
    ///
    /// # Errors
    /// When there is none, or it is not as it should be.
    pub fn read(file: &Path, name: Option<&str>) -> Result<Self, DocumentError> {
        let is_meant = |it: &Document| name.is_none_or(|name| it.value["metadata"]["name"] == name);
        let documents = documents::read(file)?.into_iter().filter(|it| Self::is(it) && is_meant(it)).collect();
        let what = if name.is_some() { "policies of this name" } else { "policies (say which by its name)" };
        Self::of(&only_of(file, documents, what)?)
    }

    /// The policy in a document.
    ///
    /// # Errors
    /// When it is not as it should be.
    pub fn of(document: &Document) -> Result<Self, DocumentError> {
        let wrong = |field: &str, message: String| document.wrong(FieldError { field: field.to_owned(), message });
        let value = &document.value;
        let wanted = format!("{GROUP}/{VERSION}");
        if value["apiVersion"] != wanted.as_str() {
            return Err(wrong("apiVersion", format!("is {}, and must be {wanted:?}", value["apiVersion"])));
        }
        let Some(name) = value["metadata"]["name"].as_str() else {
            return Err(wrong("metadata.name", "is missing".to_owned()));
        };
        let spec = manifest::spec(&value["spec"]).map_err(|(field, message)| {
            let field = if field.is_empty() { "spec".to_owned() } else { format!("spec.{field}") };
            wrong(&field, message)
        })?;
        let namespace = (document.kind() == "Policy")
            .then(|| value["metadata"]["namespace"].as_str().unwrap_or("default").to_owned());
        Ok(Self { name: name.to_owned(), namespace, spec, file: document.place.file.clone() })
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// When they are too large.
    pub fn with_settings(mut self, settings: Map<String, Value>) -> Result<Self, FieldError> {
        self.spec.settings = settings;
        match validation::policy(&self.spec).into_iter().next() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Makes its program ready. `cluster` is what there is to be read.
    ///
    /// # Errors
    /// When it cannot be.
    pub async fn prepare(self, evaluator: &Evaluator, cluster: &[Value]) -> Result<Ready, PrepareError> {
        let folder = self.file.parent().unwrap_or(Path::new("")).to_owned();
        let program = evaluator.policy(&self.spec, &folder, self.namespace.as_deref(), cluster).await?;
        Ok(Ready { policy: self, program })
    }
}

impl Ready {
    /// What the policy answers, as a policy server would. `namespaces` are the labels of Namespaces.
    ///
    /// # Errors
    /// When its `admission` section makes no sense.
    pub async fn ask(&self, review: &Review, namespaces: &BTreeMap<String, Labels>) -> Result<Answer, PrepareError> {
        if let Some(why) = self.not_asked(review, namespaces).await? {
            return Ok(Answer { verdict: Verdict::allow(), not_asked: Some(why), failure: None });
        }
        let spec = &self.policy.spec;
        let (verdict, failure) = match evaluate::evaluate(&self.program, review, evaluate::timeout(spec)).await {
            Ok(verdict) => (verdict, None),
            Err(error) => {
                let failure = Failure::from(&error);
                (failure.verdict(), Some(failure))
            }
        };
        let enforcement = spec.admission.as_ref().map(proviso_crds::Admission::to_enforcement).unwrap_or_default();
        Ok(Answer { verdict: verdict.enforce(&enforcement), not_asked: None, failure })
    }

    /// Why the program need not be asked.
    async fn not_asked(
        &self,
        review: &Review,
        namespaces: &BTreeMap<String, Labels>,
    ) -> Result<Option<String>, PrepareError> {
        let spec = &self.policy.spec;
        let invalid = |field: &str, message: String| PrepareError::Invalid { field: field.to_owned(), message };
        if !spec.enabled {
            return Ok(Some("spec.enabled is false".to_owned()));
        }
        let Some(admission) = &spec.admission else { return Ok(None) };
        let matching = admission.to_match().map_err(|error| invalid("spec.admission", error.to_string()))?;
        let matching = matching.confined_to(self.policy.namespace.as_deref());
        if let Coverage::NotCovered { why } = matching.covers(review, |name| namespaces.get(name)) {
            return Ok(Some(why.to_owned()));
        }
        let field = "spec.admission.matchConditions";
        let conditions = Conditions::compile(&admission.match_conditions)
            .map_err(|(index, error)| PrepareError::Compile { field: format!("{field}[{index}].expression"), error })?;
        // They are about requests of Kubernetes; of others nothing but the program knows.
        let Some(conditions) = conditions.filter(|_| review.head().is_some()) else { return Ok(None) };
        let left_out = conditions.leave_out(review, Deadline::after(evaluate::timeout(spec))).await;
        let left_out = left_out.map_err(|(name, error)| invalid(&format!("{field}: {name}"), error.to_string()))?;
        Ok(left_out.map(|name| format!("{field}: {name} does not hold")))
    }
}

/// The labels of the Namespaces among these objects, by name.
#[must_use]
pub fn namespaces(objects: &[Value]) -> BTreeMap<String, Labels> {
    let namespaces = objects.iter().filter(|it| it["kind"] == "Namespace" && documents::group(it).is_empty());
    namespaces
        .filter_map(|namespace| {
            let metadata = &namespace["metadata"];
            Some((metadata["name"].as_str()?.to_owned(), labels(metadata)))
        })
        .collect()
}
