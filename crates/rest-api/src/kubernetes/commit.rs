//! Committing an experiment: two objects, and no transaction over both. So (a) the experiment is marked by a
//! compare-and-swap, (b) the policy is changed by another one, which also records what was committed, (c) the experiment
//! is deleted. Whatever breaks off before (b) has changed nothing; after it, anybody can finish.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_crds::names::{COMMIT_INTENT, COMMITTED_EXPERIMENT};
use serde_json::{Value, json};

use super::object::{self, Kind};
use super::{ATTEMPTS, Authorizer, Kubernetes, Result};
use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::store::{Committing, StoredExperiment, StoredPolicy};

/// How long a commit may take before another one does not wait for it.
const INTENT_LASTS: SignedDuration = SignedDuration::from_secs(30);

/// One commit. Its steps are apart so that a crash between any two can be tried.
#[derive(Debug)]
pub struct Commit<'a, A> {
    store: &'a Kubernetes<A>,
    name: &'a ExperimentName,
    committing: &'a Committing,
}

/// An experiment that carries the intent of this commit.
#[derive(Debug)]
pub struct Marked {
    object: DynamicObject,
    stored: StoredExperiment,
    intent: String,
}

impl<'a, A: Authorizer> Commit<'a, A> {
    #[must_use]
    pub fn new(store: &'a Kubernetes<A>, name: &'a ExperimentName, committing: &'a Committing) -> Self {
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
            // It is committed all the same; the operator, or the next call, finishes.
            tracing::warn!(experiment = %self.name, %error, "a committed experiment could not be deleted yet");
        }
        Ok(policy)
    }

    /// (a) Marks the version that is meant.
    pub async fn mark(&self) -> Result<Marked> {
        for _ in 0..ATTEMPTS {
            let mut object = self.store.get_experiment(self.name).await?;
            let policy = self.store.get_policy(&self.name.policy).await?;
            if is_committed(&policy, &object) {
                // An earlier commit broke off after (b).
                self.delete_object(&object).await?;
                return Err(Error::not_found(&self.name.to_string()));
            }
            let stored = object::experiment(&object)?;
            if stored.meta.etag != self.committing.etag {
                return Err(Error::stale(&self.name.to_string(), &self.committing.etag));
            }
            self.check_parent(&policy)?;
            let now = Timestamp::now();
            let other = object.annotations().get(COMMIT_INTENT).and_then(|intent| intent.parse::<Timestamp>().ok());
            if other.is_some_and(|since| now.duration_since(since) < INTENT_LASTS) {
                let message = format!("{} is being committed by another call", self.name);
                return Err(Error::new(Code::Aborted, "COMMIT_UNDER_WAY", message));
            }
            let intent = now.to_string();
            object.annotations_mut().insert(COMMIT_INTENT.to_owned(), intent.clone());
            match self.replace_experiment(&object).await {
                Ok(object) => return Ok(Marked { object, stored, intent }),
                Err(error) if error.code == Code::Aborted => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::busy(&self.name.to_string()))
    }

    /// (b) Copies the spec, and records where it comes from.
    pub async fn copy(&self, marked: &Marked) -> Result<StoredPolicy> {
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
                    // It may have been done all the same.
                    let object = self.store.get_policy(policy).await?;
                    if !is_committed(&object, &marked.object) {
                        return Err(error);
                    }
                    return object::policy(&object);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::busy(&name))
    }

    /// (c) Deletes the experiment, whatever has become of it since it was marked: it is committed.
    pub async fn delete(&self, marked: &Marked) -> Result<()> {
        self.delete_object(&marked.object).await
    }

    async fn delete_object(&self, object: &DynamicObject) -> Result<()> {
        match self.store.delete(Kind::Experiment, object, &self.name.to_string(), false).await {
            // Gone, or another one of the same name.
            Err(error) if [Code::NotFound, Code::Aborted].contains(&error.code) => Ok(()),
            result => result,
        }
    }

    /// Undoes (a), where it is still there. An intent that stays ends by itself.
    async fn unmark(&self, marked: &Marked) {
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

    /// The policy must be the version that the caller knows, if they say which.
    fn check_parent(&self, policy: &DynamicObject) -> Result<()> {
        let etag = object::policy(policy)?.meta.etag;
        match self.committing.parent_etag.as_ref().filter(|given| **given != etag) {
            Some(given) => Err(Error::stale(&format!("policies/{}", self.name.policy), given)),
            None => Ok(()),
        }
    }
}

/// Whether this very experiment was committed into the policy.
fn is_committed(policy: &DynamicObject, experiment: &DynamicObject) -> bool {
    let recorded = policy.annotations().get(COMMITTED_EXPERIMENT);
    let recorded: Option<Value> = recorded.and_then(|json| serde_json::from_str(json).ok());
    recorded
        .is_some_and(|recorded| recorded["uid"].as_str() == experiment.uid().as_deref() && experiment.uid().is_some())
}
