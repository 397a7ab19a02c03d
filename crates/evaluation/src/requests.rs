//! Requests to services, evaluated with the request policies of a folder, as a policy server evaluates them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proviso_core::matching::Labels;
use proviso_core::request::{Chain, ConstraintCache, Outcome, Progress, Request, RequestPolicy, RevisionId};
use proviso_core::{Failure, PolicyId};
use proviso_crds::uniqueness::{Claim, SECTION, UniqueFields, arbitrate};
use proviso_crds::validation::FieldError;
use proviso_engines::{Deadline, Program};
use walkdir::WalkDir;

use crate::documents::{self, Document, DocumentError};
use crate::error::PrepareError;
use crate::evaluator::{Evaluator, timeout};
use crate::policy_file::{PolicyFile, namespaces};

/// The generation of the policies of a folder: a manifest has none.
const GENERATION: i64 = 1;

/// The compiled request policies of a folder.
#[derive(Debug)]
pub struct RequestPolicies {
    policies: Vec<RequestPolicy>,
    programs: HashMap<RevisionId, (Program, Duration)>,
    cache: Arc<ConstraintCache>,
}

/// The error of request policies that cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum RequestPoliciesError {
    #[error("{} cannot be searched: {error}", path.display())]
    Walk { path: PathBuf, error: walkdir::Error },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("{policy}: {error}")]
    Prepare { policy: PolicyId, error: PrepareError },
    #[error("there is no policy with `spec.request` in {0}")]
    None(String),
    #[error("{0}: is there twice: remove one of the documents")]
    Twice(PolicyId),
}

impl RequestPolicies {
    /// Reads and compiles the enabled request policies of a file, or of the files `*.yaml`, `*.yml` and `*.json` in a folder and its
    /// subfolders. Namespaces in these files have the labels that name tenants.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, a policy is not valid or does not compile, two policies have the same name or priority
    /// in one scope, or there is no request policy.
    pub async fn read(path: &Path, evaluator: &Evaluator) -> Result<Self, RequestPoliciesError> {
        Self::read_all(std::slice::from_ref(&path.to_owned()), evaluator).await
    }

    /// Reads and compiles the enabled request policies of several files and folders: see [`Self::read`].
    ///
    /// # Errors
    /// The errors of [`Self::read`]. Also returns an error if a policy is in two of the files.
    pub async fn read_all(paths: &[PathBuf], evaluator: &Evaluator) -> Result<Self, RequestPoliciesError> {
        let mut documents = Vec::new();
        for path in paths {
            documents.extend(documents_of(path)?);
        }
        let objects: Vec<_> = documents.iter().map(|document| document.value.clone()).collect();
        let namespaces = namespaces(&objects);
        check_uniqueness(&documents, &namespaces)?;
        let mut read = Self { policies: Vec::new(), programs: HashMap::new(), cache: Arc::default() };
        for document in documents.iter().filter(|document| PolicyFile::is(document)) {
            let file = PolicyFile::of(document)?;
            let Some(policy) = place(document, &file, &namespaces)? else { continue };
            let limit = timeout(&file.spec);
            let (id, revision) = (policy.revision.policy.clone(), policy.revision.clone());
            if read.programs.contains_key(&revision) {
                return Err(RequestPoliciesError::Twice(id));
            }
            let prepared = file.prepare(evaluator, &[]).await;
            let prepared = prepared.map_err(|error| RequestPoliciesError::Prepare { policy: id, error })?;
            read.programs.insert(revision, (prepared.into_program(), limit));
            read.policies.push(policy);
        }
        if read.policies.is_empty() {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            return Err(RequestPoliciesError::None(paths.join(", ")));
        }
        Ok(read)
    }

    /// Evaluates a request. A policy that fails ends the chain: see [`Outcome`].
    pub async fn evaluate(&self, request: Request) -> Outcome {
        let mut progress = Chain::start(request, self.policies.iter().cloned(), Arc::clone(&self.cache));
        loop {
            progress = match progress {
                Progress::Done(outcome) => return *outcome,
                Progress::Next(chain) => {
                    let result = match self.programs.get(&chain.policy().revision) {
                        Some((program, limit)) => program
                            .evaluate_request(&chain, Deadline::after(*limit))
                            .await
                            .map_err(|error| Failure::from(&error)),
                        None => Err(Failure::new("Internal", "the policy has no program")),
                    };
                    chain.apply(result)
                }
            }
        }
    }
}

/// Returns the place of a policy in the chain; `None` if it is no request policy, or disabled.
fn place(
    document: &Document,
    file: &PolicyFile,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Option<RequestPolicy>, DocumentError> {
    let Some(request) = file.spec.request.as_ref().filter(|_| file.spec.enabled) else { return Ok(None) };
    let wrong = |field: &str, message: String| document.error(FieldError::new(field, message));
    let namespace = file.namespace.as_deref();
    let id = PolicyId::new(namespace, &file.name).map_err(|error| wrong("metadata.name", error.to_string()))?;
    let criteria = request
        .criteria(tenant(namespace, namespaces))
        .map_err(|error| wrong("spec.request.selector", error.to_string()))?;
    Ok(Some(RequestPolicy {
        revision: RevisionId { policy: id, generation: GENERATION },
        level: request.level(SECTION, namespace).map_err(|error| document.error(error))?,
        priority: request.priority,
        criteria,
    }))
}

/// Checks that no two request policies have the same display name or the same priority in one scope, disabled policies included: a
/// policy server would serve neither of them.
fn check_uniqueness(documents: &[Document], namespaces: &BTreeMap<String, Labels>) -> Result<(), DocumentError> {
    let (mut found, mut claims) = (Vec::new(), Vec::new());
    for document in documents.iter().filter(|document| PolicyFile::is(document)) {
        let file = PolicyFile::of(document)?;
        let Some(request) = &file.spec.request else { continue };
        let namespace = file.namespace.as_deref();
        let newest =
            UniqueFields::new(request, SECTION, namespace, &file.name).map_err(|error| document.error(error))?;
        let policy = PolicyId::new(namespace, &file.name);
        let policy = policy.map_err(|error| document.error(FieldError::new("metadata.name", error.to_string())))?;
        let tenant = tenant(namespace, namespaces);
        found.push(document);
        claims.push(Claim { policy, tenant, live: None, newest: Some(newest), age: None });
    }
    let losses = arbitrate(&claims);
    let first =
        found.into_iter().zip(losses).find_map(|(document, losses)| Some((document, losses.into_iter().next()?)));
    let Some((document, loss)) = first else { return Ok(()) };
    Err(document.error(loss.to_field_error(SECTION)))
}

/// Returns the tenant of a policy in this namespace; `None` for a `ClusterPolicy`.
fn tenant(namespace: Option<&str>, namespaces: &BTreeMap<String, Labels>) -> Option<String> {
    namespace.map(|namespace| proviso_crds::tenant(namespace, namespaces.get(namespace)).to_owned())
}

fn documents_of(path: &Path) -> Result<Vec<Document>, RequestPoliciesError> {
    if !path.is_dir() {
        return Ok(documents::read(path)?);
    }
    let mut all = Vec::new();
    for entry in WalkDir::new(path).sort_by_file_name() {
        let entry = entry.map_err(|error| RequestPoliciesError::Walk { path: path.to_owned(), error })?;
        let extension = entry.path().extension().and_then(|it| it.to_str()).unwrap_or_default();
        if entry.file_type().is_file() && ["yaml", "yml", "json"].contains(&extension) {
            all.extend(documents::read(entry.path())?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proviso_artifacts::Fetcher;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, fields: &Value) -> String {
        let mut object = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {"request": {}, "program": {"cel": {"validations": [{"expression": "true"}]}}},
        });
        for (field, value) in fields.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        object.to_string()
    }

    async fn error(policies: &[String]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (index, policy) in policies.iter().enumerate() {
            std::fs::write(folder.path().join(format!("{index}.json")), policy).unwrap();
        }
        let evaluator = Evaluator::new(Fetcher::new(None, None, None));
        RequestPolicies::read(folder.path(), &evaluator).await.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn two_policies_with_the_same_name_or_priority_are_an_error_that_names_both() {
        let first = policy("a", &json!({}));
        for (second, words) in [
            (json!({}), Some("spec.request.priority: 500 is in use by policy cluster.b among the Global policies")),
            (json!({"enabled": false}), Some("spec.request.priority: 500")),
            (
                json!({"request": {"displayName": "a", "priority": 7}}),
                Some("spec.request.displayName: \"a\" is in use by policy cluster.b"),
            ),
            (json!({"request": {"priority": 7}}), None),
            (json!({"request": {"user": "ana"}}), None),
        ] {
            let error = error(&[first.clone(), policy("b", &second)]).await;
            match words {
                Some(words) => {
                    let error = error.unwrap();
                    assert!(error.contains("0.json") && error.contains(words), "{second}: {error}");
                }
                None => assert_eq!(error, None, "{second}"),
            }
        }
    }
}
