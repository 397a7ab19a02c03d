//! A policy in a manifest: read, validated, prepared and evaluated without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proviso_core::matching::{Coverage, Labels, labels};
use proviso_core::{Failure, Review, Verdict};
use proviso_crds::validation::FieldError;
use proviso_crds::{Admission, GROUP, PolicySpec, VERSION, validation};
use proviso_engines::{Deadline, Program};
use proviso_programs::Conditions;
use serde_json::{Map, Value};

use crate::documents::{self, Document, DocumentError, exactly_one};
use crate::error::PrepareError;
use crate::evaluator::{Evaluator, timeout};
use crate::policy_spec;

/// A policy of a manifest.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// `metadata.name`.
    pub name: String,
    /// The namespace of a Policy, by default `default`; `None` for a `ClusterPolicy`.
    pub namespace: Option<String>,
    pub spec: PolicySpec,
    /// The manifest. Relative module references start from its folder.
    pub file: PathBuf,
}

/// A policy with its compiled program.
#[derive(Debug)]
pub struct PreparedPolicy {
    policy: PolicyFile,
    program: Program,
}

/// The answer of a policy to a review.
#[derive(Debug)]
pub struct Answer {
    /// The verdict after the enforcement of the policy's mode, `mutating` and message.
    pub verdict: Verdict,
    /// The reason why the policy does not cover the review, which is then allowed; `None` if the program was evaluated.
    pub skip_reason: Option<String>,
    /// The failure of the evaluation, if it failed. The verdict is then the denial that a policy server would return.
    pub failure: Option<Failure>,
}

/// The error of a patch that cannot be applied to the object.
#[derive(Debug, thiserror::Error)]
#[error("the policy's patch cannot be applied to the object: {0}")]
pub struct PatchError(#[from] json_patch::PatchError);

impl PolicyFile {
    /// Returns true if the document is a Policy or a `ClusterPolicy`.
    #[must_use]
    pub fn is(document: &Document) -> bool {
        document.group() == GROUP && matches!(document.kind(), "Policy" | "ClusterPolicy")
    }

    /// Reads the policy of this name from a file; without a name the only policy. `-` is the standard input.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has no matching policy or several, or the policy is invalid.
    pub fn read(file: &Path, name: Option<&str>) -> Result<Self, DocumentError> {
        let is_meant = |it: &Document| name.is_none_or(|name| it.value["metadata"]["name"] == name);
        let documents = documents::read(file)?.into_iter().filter(|it| Self::is(it) && is_meant(it)).collect();
        let what = if name.is_some() { "policies of this name" } else { "policies (select one by its name)" };
        Self::of(&exactly_one(file, documents, what)?)
    }

    /// Reads the policy of a document.
    ///
    /// # Errors
    /// Returns an error if the policy is invalid.
    pub fn of(document: &Document) -> Result<Self, DocumentError> {
        let wrong = |field: &str, message: String| document.error(FieldError::new(field, message));
        let value = &document.value;
        let wanted = format!("{GROUP}/{VERSION}");
        if value["apiVersion"] != wanted.as_str() {
            return Err(wrong("apiVersion", format!("is {}, and must be {wanted:?}", value["apiVersion"])));
        }
        let Some(name) = value["metadata"]["name"].as_str() else {
            return Err(wrong("metadata.name", "is missing".to_owned()));
        };
        let spec = policy_spec::read("spec", &value["spec"]).map_err(|error| document.error(error))?;
        let namespace = (document.kind() == "Policy")
            .then(|| value["metadata"]["namespace"].as_str().unwrap_or("default").to_owned());
        Ok(Self { name: name.to_owned(), namespace, spec, file: document.place.file.clone() })
    }

    /// Replaces the settings of the policy.
    ///
    /// # Errors
    /// Returns an error if the settings are too large.
    pub fn with_settings(mut self, settings: Map<String, Value>) -> Result<Self, FieldError> {
        self.spec.settings = settings;
        match validation::policy(&self.spec).into_iter().next() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Compiles the program. `cluster` has the objects of the cluster; the program sees only those that the spec allows it to
    /// read.
    ///
    /// # Errors
    /// Returns an error if a module cannot be fetched, the program does not compile, or it refuses its settings.
    pub async fn prepare(self, evaluator: &Evaluator, cluster: &[Value]) -> Result<PreparedPolicy, PrepareError> {
        let folder = self.file.parent().unwrap_or(Path::new("")).to_owned();
        let program = evaluator.compile_policy(&self.spec, &folder, self.namespace.as_deref(), cluster).await?;
        Ok(PreparedPolicy { policy: self, program })
    }
}

impl PreparedPolicy {
    /// Returns the compiled program.
    #[must_use]
    pub(crate) fn into_program(self) -> Program {
        self.program
    }

    /// Evaluates the policy as a policy server would. `namespaces` are the labels of Namespaces by name. One evaluation takes
    /// at most `timeoutEvalSeconds`, by default 10 s.
    ///
    /// # Errors
    /// Returns an error if a match condition or a selector of the policy is invalid or cannot be evaluated. A failed evaluation
    /// of the program is not an error: the answer is a denial with [`Answer::failure`].
    pub async fn evaluate(
        &self,
        review: &Review,
        namespaces: &BTreeMap<String, Labels>,
    ) -> Result<Answer, PrepareError> {
        if let Some(why) = self.skip_reason(review, namespaces).await? {
            return Ok(Answer { verdict: Verdict::allow(), skip_reason: Some(why), failure: None });
        }
        let spec = &self.policy.spec;
        let (verdict, failure) = match self.program.evaluate(review, Deadline::after(timeout(spec))).await {
            Ok(verdict) => (verdict, None),
            Err(error) => {
                let failure = Failure::from(&error);
                (failure.verdict(), Some(failure))
            }
        };
        let enforcement = spec.admission.as_ref().map(Admission::to_enforcement).unwrap_or_default();
        Ok(Answer { verdict: verdict.enforce(&enforcement), skip_reason: None, failure })
    }

    /// Returns the reason why the policy does not cover the review; `None` if it does.
    async fn skip_reason(
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
        // Match conditions read the fields of a Kubernetes request, which a raw request does not have.
        let Some(conditions) = conditions.filter(|_| review.head().is_some()) else { return Ok(None) };
        let left_out = conditions.excludes(review, Deadline::after(timeout(spec))).await;
        let left_out = left_out.map_err(|(name, error)| invalid(&format!("{field}: {name}"), error.to_string()))?;
        Ok(left_out.map(|name| format!("{field}: {name} does not hold")))
    }
}

impl Answer {
    /// Returns the object as the policy's patch changes it; unchanged without a patch.
    ///
    /// # Errors
    /// Returns an error if the patch cannot be applied to the object.
    pub fn patched(&self, object: &Value) -> Result<Value, PatchError> {
        let mut object = object.clone();
        if let Some(patch) = &self.verdict.patch {
            json_patch::patch(&mut object, patch)?;
        }
        Ok(object)
    }
}

/// Returns the labels of the Namespaces among these objects, by name.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::{Request, admission};
    use proviso_artifacts::Fetcher;
    use serde_json::json;

    fn policy(expression: &str) -> PolicyFile {
        let manifest = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "names", "namespace": "team"},
            "spec": {
                "program": {"cel": {"validations": [{"expression": expression, "message": "the name is reserved"}]}},
                "admission": {"rules": [
                    {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
                ]},
            },
        });
        PolicyFile::of(&documents::parse(Path::new("names.yaml"), &manifest.to_string()).unwrap()[0]).unwrap()
    }

    async fn answer(expression: &str, kind: &str, name: &str) -> Answer {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}});
        let review = Request { object: Some(object), ..Request::default() }.to_review().unwrap();
        let evaluator = Evaluator::new(Fetcher::new(None, None, None));
        let prepared = policy(expression).prepare(&evaluator, &[]).await.unwrap();
        prepared.evaluate(&admission(&review).unwrap(), &BTreeMap::new()).await.unwrap()
    }

    #[tokio::test]
    async fn a_policy_answers_as_on_a_policy_server() {
        let expression = "object.metadata.name != 'root'";
        let allowed = answer(expression, "Pod", "web").await;
        assert!(allowed.verdict.allowed && allowed.skip_reason.is_none() && allowed.failure.is_none(), "{allowed:?}");
        let denied = answer(expression, "Pod", "root").await;
        assert_eq!((denied.verdict.allowed, denied.verdict.message.as_deref()), (false, Some("the name is reserved")));
        let not_covered = answer(expression, "Secret", "root").await;
        assert!(not_covered.verdict.allowed && not_covered.skip_reason.is_some(), "{not_covered:?}");
    }

    #[tokio::test]
    async fn a_failed_evaluation_is_a_denial_with_its_failure() {
        let failed = answer("object.spec.replicas > 1", "Pod", "web").await;
        assert_eq!((failed.verdict.allowed, failed.verdict.code), (false, Some(500)));
        assert!(failed.failure.is_some(), "{failed:?}");
    }

    #[tokio::test]
    async fn a_program_that_does_not_compile_is_refused_with_its_field() {
        let evaluator = Evaluator::new(Fetcher::new(None, None, None));
        let error = policy("object.").prepare(&evaluator, &[]).await.unwrap_err().to_string();
        assert!(error.starts_with("spec.program.cel: "), "{error}");
    }

    #[tokio::test]
    async fn a_policy_that_configures_components_cannot_be_evaluated() {
        let manifest = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "memory"},
            "spec": {"configuration": {"configName": "memory", "content": {"limit": 1}}},
        });
        let documents = documents::parse(Path::new("memory.yaml"), &manifest.to_string()).unwrap();
        let evaluator = Evaluator::new(Fetcher::new(None, None, None));
        let error = PolicyFile::of(&documents[0]).unwrap().prepare(&evaluator, &[]).await.unwrap_err().to_string();
        assert!(error.starts_with("spec.configuration: configures components"), "{error}");
    }
}
