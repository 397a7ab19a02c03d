//! The commit of an experiment. It changes two objects, and Kubernetes has no transaction over both, so the commit has
//! three steps: (a) a compare-and-swap marks the experiment with a commit intent, (b) a second compare-and-swap copies the
//! spec to the policy and records the committed experiment there, (c) the experiment is deleted. A commit that is
//! interrupted before (b) has changed no policy. After (b), the operator or the next call can finish the commit.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_crds::names::{COMMIT_INTENT, COMMITTED_EXPERIMENT};
use serde_json::{Value, json};

use super::object::{self, Kind};
use super::{ATTEMPTS, Authorizer, Kubernetes, Result};
use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::store::{CommitPreconditions, StoredExperiment, StoredPolicy};

/// The time after which a commit intent expires, so that another commit may start.
const INTENT_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

/// One commit. Its steps are separate methods, so that tests can simulate a crash between any two steps.
#[derive(Debug)]
pub struct Commit<'a, A> {
    store: &'a Kubernetes<A>,
    name: &'a ExperimentName,
    committing: &'a CommitPreconditions,
}

/// An experiment that is marked with the intent of this commit.
#[derive(Debug)]
pub struct MarkedExperiment {
    object: DynamicObject,
    stored: StoredExperiment,
    intent: String,
}

impl<'a, A: Authorizer> Commit<'a, A> {
    #[must_use]
    pub fn new(store: &'a Kubernetes<A>, name: &'a ExperimentName, committing: &'a CommitPreconditions) -> Self {
        Self { store, name, committing }
    }

    pub(super) async fn run(&self) -> Result<StoredPolicy> {
        let marked = self.mark().await?;
        let policy = match self.copy(&marked).await {
            Ok(policy) => policy,
            Err(error) => {
                self.unmark(&marked).await;
                return Err(error);
            }
        };
        if let Err(error) = self.delete(&marked).await {
            // The commit has succeeded. The operator or the next call deletes the experiment.
            tracing::warn!(experiment = %self.name, %error, "failed to delete a committed experiment");
        }
        Ok(policy)
    }

    /// Step (a): marks the version of the experiment that the caller wants to commit.
    ///
    /// # Errors
    /// Fails if the experiment or its policy does not exist or is malformed, if an etag does not match, if another commit
    /// of the experiment is in progress, or if the API server fails. An experiment that is committed already counts as not
    /// found.
    pub async fn mark(&self) -> Result<MarkedExperiment> {
        for _ in 0..ATTEMPTS {
            let mut object = self.store.get_experiment(self.name).await?;
            let policy = self.store.get_policy(&self.name.policy).await?;
            if is_committed(&policy, &object) {
                // An earlier commit was interrupted after (b).
                self.delete_object(&object).await?;
                return Err(Error::not_found(&self.name.to_string()));
            }
            let stored = object::experiment(&object)?;
            if stored.meta.etag != self.committing.etag {
                return Err(Error::etag_mismatch(&self.name.to_string(), &self.committing.etag));
            }
            self.check_parent(&policy)?;
            let now = Timestamp::now();
            let other = object.annotations().get(COMMIT_INTENT).and_then(|intent| intent.parse::<Timestamp>().ok());
            if other.is_some_and(|since| now.duration_since(since) < INTENT_TIMEOUT) {
                let message = format!("{} is being committed by another call", self.name);
                return Err(Error::new(Code::Aborted, "COMMIT_UNDER_WAY", message));
            }
            let intent = now.to_string();
            object.annotations_mut().insert(COMMIT_INTENT.to_owned(), intent.clone());
            match self.replace_experiment(&object).await {
                Ok(object) => return Ok(MarkedExperiment { object, stored, intent }),
                Err(error) if error.code == Code::Aborted => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&self.name.to_string()))
    }

    /// Step (b): copies the spec of the experiment to the policy, and records the experiment in an annotation of the policy.
    ///
    /// # Errors
    /// Fails if the policy does not exist or is malformed, if the parent etag does not match, or if the API server fails.
    pub async fn copy(&self, marked: &MarkedExperiment) -> Result<StoredPolicy> {
        let (policy, stored) = (&self.name.policy, &marked.stored);
        let name = format!("policies/{policy}");
        let committed = stored.committed();
        for _ in 0..ATTEMPTS {
            let mut object = self.store.get_policy(policy).await?;
            self.check_parent(&object)?;
            object.data["spec"] = json!(stored.spec);
            object.annotations_mut().insert(COMMITTED_EXPERIMENT.to_owned(), committed.clone());
            match self.store.replace(Kind::Policy, policy.namespace(), &object, &name).await {
                Ok(object) => return object::policy(&object),
                Err(error) if error.code == Code::Aborted => {}
                Err(error) if error.code == Code::Unavailable => {
                    // The API server may have applied the change, although its response did not arrive.
                    let object = self.store.get_policy(policy).await?;
                    if !is_committed(&object, &marked.object) {
                        return Err(error);
                    }
                    return object::policy(&object);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name))
    }

    /// Step (c): deletes the experiment, even if it was changed after step (a), because it is committed.
    ///
    /// # Errors
    /// Fails if the API server fails to delete the experiment. An experiment that does not exist any more is no error.
    pub async fn delete(&self, marked: &MarkedExperiment) -> Result<()> {
        self.delete_object(&marked.object).await
    }

    async fn delete_object(&self, object: &DynamicObject) -> Result<()> {
        match self.store.delete(Kind::Experiment, object, &self.name.to_string(), false).await {
            // The experiment is deleted already. A conflict means that another experiment now has its name.
            Err(error) if [Code::NotFound, Code::Aborted].contains(&error.code) => Ok(()),
            result => result,
        }
    }

    /// Removes the mark of step (a), if the experiment still has it. A mark that cannot be removed expires.
    async fn unmark(&self, marked: &MarkedExperiment) {
        let mut object = marked.object.clone();
        for _ in 0..ATTEMPTS {
            if object.annotations().get(COMMIT_INTENT) != Some(&marked.intent) {
                return;
            }
            object.annotations_mut().remove(COMMIT_INTENT);
            match self.replace_experiment(&object).await {
                Err(error) if error.code == Code::Aborted => match self.store.get_experiment(self.name).await {
                    Ok(found) => object = found,
                    Err(_) => return,
                },
                _ => return,
            }
        }
    }

    async fn replace_experiment(&self, object: &DynamicObject) -> Result<DynamicObject> {
        let namespace = self.name.policy.namespace();
        self.store.replace(Kind::Experiment, namespace, object, &self.name.to_string()).await
    }

    /// Checks that the policy has the parent etag of the caller, if the caller gave one.
    fn check_parent(&self, policy: &DynamicObject) -> Result<()> {
        let etag = object::policy(policy)?.meta.etag;
        match self.committing.parent_etag.as_ref().filter(|given| **given != etag) {
            Some(given) => Err(Error::etag_mismatch(&format!("policies/{}", self.name.policy), given)),
            None => Ok(()),
        }
    }
}

/// Returns true if the policy records this experiment, identified by its uid, as committed.
fn is_committed(policy: &DynamicObject, experiment: &DynamicObject) -> bool {
    let recorded = policy.annotations().get(COMMITTED_EXPERIMENT);
    let recorded: Option<Value> = recorded.and_then(|json| serde_json::from_str(json).ok());
    recorded
        .is_some_and(|recorded| recorded["uid"].as_str() == experiment.uid().as_deref() && experiment.uid().is_some())
}
