//! The commit of an experiment. It changes two objects, and Kubernetes has no transaction over both, so the commit has these steps:
//! (a) a compare-and-swap writes the intent of the commit into the status of the experiment; (b) the commit waits until the operator
//! reports that the experiment is prepared; (c) a second compare-and-swap copies the spec to the policy, and records the intent there;
//! (d) the experiment is deleted.
//!
//! Each step checks that the intent is still there. The operator aborts an intent that it has observed for a minute: it first changes
//! the policy, so that the write of a caller who has stalled before (c) fails. A commit that is interrupted before (c) has changed no
//! policy. After (c), the operator finishes the commit.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use proviso_core::Failure;
use proviso_crds::conditions::outcome;
use proviso_crds::names::COMMITTED_EXPERIMENT;
use proviso_crds::{
    CommitIntent, CommittedExperiment, ConditionType, Conditions as _, ExperimentStatus, PolicySpec, PolicyStatus,
};
use serde_json::json;
use tokio::time::Instant;

use super::object::{self, Kind};
use super::write::Write;
use super::{ATTEMPTS, Authorizer, Kubernetes, Result};
use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::store::{Caller, CommitPreconditions, StoredExperiment, StoredPolicy};

/// The time for which a commit waits for the preparation of the experiment. It is shorter than the time after which the operator
/// aborts the commit.
const PREPARATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which a commit reads the status of the preparation.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The reason of the error after a write of the policy that may still succeed.
const UNKNOWN_OUTCOME: &str = "UNKNOWN_OUTCOME";

/// One commit. Its steps are separate methods, so that tests can simulate a stall or a crash between any two steps.
#[derive(Debug)]
pub struct Commit<'a, A> {
    store: &'a Kubernetes<A>,
    caller: Option<&'a Caller>,
    name: &'a ExperimentName,
    committing: &'a CommitPreconditions,
}

/// An experiment that is marked with the intent of this commit.
#[derive(Debug)]
pub struct MarkedExperiment {
    stored: StoredExperiment,
    /// The uid of the policy that the commit changes.
    policy_uid: Option<String>,
    intent: CommitIntent,
}

impl<'a, A: Authorizer> Commit<'a, A> {
    #[must_use]
    pub fn new(
        store: &'a Kubernetes<A>,
        caller: Option<&'a Caller>,
        name: &'a ExperimentName,
        committing: &'a CommitPreconditions,
    ) -> Self {
        Self { store, caller, name, committing }
    }

    pub(super) async fn run(&self) -> Result<StoredPolicy> {
        let marked = self.mark().await?;
        let copied = match self.prepare(&marked, PREPARATION_TIMEOUT).await {
            Ok(()) => self.copy(&marked).await,
            Err(error) => Err(error),
        };
        match copied {
            Ok(policy) => {
                if let Err(error) = self.delete(&marked).await {
                    // The commit has succeeded. The operator deletes the experiment.
                    tracing::warn!(experiment = %self.name, %error, "failed to delete a committed experiment");
                }
                Ok(policy)
            }
            Err(error) => {
                // While the write of the policy may still arrive, the intent must stay: the operator completes or aborts the commit.
                if error.reason() != UNKNOWN_OUTCOME {
                    self.unmark(&marked).await;
                }
                Err(error)
            }
        }
    }

    /// Step (a): writes the intent into the status of the version of the experiment that the caller wants to commit.
    ///
    /// # Errors
    /// Fails if the experiment or its policy does not exist or is malformed, if an etag does not match, if another commit
    /// of the experiment is in progress, or if the API server fails. An experiment that is committed already, or is being
    /// deleted, counts as not found.
    pub async fn mark(&self) -> Result<MarkedExperiment> {
        let (name, id) = (self.name.to_string(), uuid::Uuid::new_v4().simple().to_string());
        for _ in 0..ATTEMPTS {
            let object = self.store.get_experiment(self.name).await?;
            if object.metadata.deletion_timestamp.is_some() {
                // For example, an earlier commit has deleted it, and it waits for the finalizer of the operator.
                return Err(Error::not_found(&name));
            }
            let policy = self.store.get_policy(&self.name.policy).await?;
            let stored = object::experiment(&object)?;
            let status: ExperimentStatus = object::status(&object)?;
            if let Some(intent) = status.commit {
                let marked = MarkedExperiment { stored, policy_uid: policy.uid(), intent };
                if marked.intent.id == id {
                    // The response to the write of the intent was lost.
                    return Ok(marked);
                }
                let is_edited = object::generation(&object) != marked.intent.generation;
                if !is_edited && marked.is_copied_to(&policy) {
                    // An earlier commit was interrupted after (c).
                    self.delete(&marked).await?;
                    return Err(Error::not_found(&name));
                }
                self.check_etags(&marked.stored, &policy)?;
                if is_edited {
                    // The experiment was edited in spite of the intent. The earlier commit is about another version, so it cannot
                    // delete the experiment any more.
                    self.unmark(&marked).await;
                    continue;
                }
                let message = format!("{name} is being committed by another call");
                return Err(Error::new(Code::Aborted, "COMMIT_UNDER_WAY", message));
            }
            self.check_etags(&stored, &policy)?;
            let intent = CommitIntent {
                id: id.clone(),
                generation: object::generation(&object),
                policy_generation: object::generation(&policy),
                since: Time(Timestamp::now()),
            };
            match self.store.patch_status(&object, json!({"commit": intent}), &name).await {
                Ok(_) => return Ok(MarkedExperiment { stored, policy_uid: policy.uid(), intent }),
                Err(error) if [Code::Aborted, Code::Unavailable].contains(&error.code) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name))
    }

    /// Step (b): waits until the operator reports that the version is prepared: its program was compiled, and has accepted its
    /// settings.
    ///
    /// # Errors
    /// Fails if the version does not work, if it is not prepared within `timeout`, if the intent is not there any more, or if the API
    /// server fails.
    pub async fn prepare(&self, marked: &MarkedExperiment, timeout: Duration) -> Result<()> {
        let until = Instant::now() + timeout;
        loop {
            let object = self.store.get_experiment(self.name).await?;
            self.check_intent(marked, &object)?;
            let status: ExperimentStatus = object::status(&object)?;
            let name = self.name;
            match preparation(&status, marked.intent.generation) {
                Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => {
                    return Err(Error::new(Code::FailedPrecondition, "DOES_NOT_WORK", format!("{name}: {failure}")));
                }
                None if Instant::now() >= until => {
                    let accepted = status.conditions.condition(ConditionType::Accepted);
                    let refused = accepted.filter(|accepted| accepted.status == "False").map(|it| &it.message);
                    let cause = refused.map(|message| format!(": {message}")).unwrap_or_default();
                    let message =
                        format!("{name} is still being prepared: try again, or start the preview first{cause}");
                    return Err(Error::new(Code::FailedPrecondition, "NOT_PREPARED", message));
                }
                None => tokio::time::sleep_until(until.min(Instant::now() + POLL_INTERVAL)).await,
            }
        }
    }

    /// Step (c): copies the spec of the experiment to the policy, and records the commit in an annotation of the policy.
    ///
    /// # Errors
    /// Fails if the policy does not exist, is malformed or has changed since step (a), if the experiment has changed, if the operator
    /// has aborted the commit, or if the API server fails.
    pub async fn copy(&self, marked: &MarkedExperiment) -> Result<StoredPolicy> {
        let id = &self.name.policy;
        let name = format!("policies/{id}");
        let committed = marked.stored.committed_by(&marked.intent.id);
        for _ in 0..ATTEMPTS {
            // The policy is read first: the operator, which aborts a commit, writes the policy before the experiment.
            let mut policy = self.store.get_policy(id).await?;
            if marked.is_copied_to(&policy) {
                return object::policy(&policy);
            }
            self.check_policy(marked, &policy)?;
            self.check_intent(marked, &self.store.get_experiment(self.name).await?)?;
            let before = object::policy(&policy)?.spec;
            policy.data["spec"] = json!(marked.stored.spec);
            policy.annotations_mut().insert(COMMITTED_EXPERIMENT.to_owned(), committed.clone());
            let rehearse = self.store.replace(self.caller, Kind::Policy, policy.clone(), &name, Write::DryRun);
            let replace = self.store.replace(self.caller, Kind::Policy, policy, &name, Write::Stored);
            let spec = &marked.stored.spec;
            match Box::pin(self.store.write_unique(id, Some(&before), spec, rehearse, replace)).await {
                Ok(policy) => return object::policy(&policy),
                Err(error) if [Code::Aborted, Code::Unavailable].contains(&error.code) => {
                    if let Some(policy) = self.after_error(marked, &error).await? {
                        return Ok(policy);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&name))
    }

    /// Returns the policy if the API server has applied the change in spite of this error, and `None` if the change can be tried
    /// again. An applied change can end with a lost response, and also with a conflict: the client repeats a request that is answered
    /// with 503 or 504, and the repeated request conflicts with the first one.
    async fn after_error(&self, marked: &MarkedExperiment, error: &Error) -> Result<Option<StoredPolicy>> {
        match self.store.get_policy(&self.name.policy).await {
            Ok(policy) if marked.is_copied_to(&policy) => object::policy(&policy).map(Some),
            // The policy has another version by now, so no request with the old version succeeds any more.
            Ok(_) if error.code == Code::Aborted => Ok(None),
            Err(missing) if missing.code == Code::NotFound => Err(missing),
            _ => {
                let message = format!("{error}: the operator completes or aborts the commit within two minutes");
                Err(Error::new(Code::Unavailable, UNKNOWN_OUTCOME, message))
            }
        }
    }

    /// Step (d): deletes the experiment. An experiment that was changed in spite of the intent stays, without the intent.
    ///
    /// # Errors
    /// Fails if the API server fails to delete the experiment. An experiment that does not exist any more is no error.
    pub async fn delete(&self, marked: &MarkedExperiment) -> Result<()> {
        let name = self.name.to_string();
        for _ in 0..ATTEMPTS {
            let object = match self.store.get_experiment(self.name).await {
                Ok(object) => object,
                Err(error) if error.code == Code::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            if let Err(changed) = self.check_intent(marked, &object) {
                tracing::info!(experiment = name, cause = %changed, "a committed experiment stays, because it was changed");
                self.unmark(marked).await;
                return Ok(());
            }
            match self.store.delete(self.caller, Kind::Experiment, &object, &name, true).await {
                // A conflict means that the experiment has changed, or that another one has its name.
                Err(error) if error.code == Code::Aborted => {}
                Err(error) if error.code == Code::NotFound => return Ok(()),
                result => return result,
            }
        }
        Err(Error::concurrent_change(&name))
    }

    /// Removes the intent, if the experiment still has it. The operator aborts an intent that cannot be removed.
    async fn unmark(&self, marked: &MarkedExperiment) {
        for _ in 0..ATTEMPTS {
            let Ok(object) = self.store.get_experiment(self.name).await else { return };
            if !marked.is_marked(&object) {
                return;
            }
            match self.store.patch_status(&object, json!({"commit": null}), &self.name.to_string()).await {
                Err(error) if error.code == Code::Aborted => {}
                _ => return,
            }
        }
    }

    /// Checks that the experiment and the policy have the etags of the caller.
    fn check_etags(&self, stored: &StoredExperiment, policy: &DynamicObject) -> Result<()> {
        if stored.meta.etag != self.committing.etag {
            return Err(Error::etag_mismatch(&self.name.to_string(), &self.committing.etag));
        }
        object::check_point(&self.name.policy, policy, &stored.spec)
            .map_err(|error| Error::uncommittable_point(&self.name.to_string(), &error))?;
        self.check_parent(policy)
    }

    /// Checks that the policy has the parent etag of the caller, if the caller gave one.
    fn check_parent(&self, policy: &DynamicObject) -> Result<()> {
        let etag = object::policy(policy)?.meta.etag;
        match self.committing.parent_etag.as_ref().filter(|given| **given != etag) {
            Some(given) => Err(Error::etag_mismatch(&format!("policies/{}", self.name.policy), given)),
            None => Ok(()),
        }
    }

    /// Checks that the policy is in the version that it had at step (a), and that the operator has not aborted the commit.
    fn check_policy(&self, marked: &MarkedExperiment, policy: &DynamicObject) -> Result<()> {
        self.check_parent(policy)?;
        let status: PolicyStatus = object::status(policy)?;
        if status.aborted_commit.as_ref() == Some(&marked.intent.id) {
            return Err(aborted(self.name));
        }
        if policy.uid() != marked.policy_uid || object::generation(policy) != marked.intent.policy_generation {
            let message =
                format!("policies/{} was changed since the commit began: nothing was committed", self.name.policy);
            return Err(Error::new(Code::Aborted, "POLICY_CHANGED", message));
        }
        Ok(())
    }

    /// Checks that the experiment is in the version of the commit, and has its intent.
    fn check_intent(&self, marked: &MarkedExperiment, object: &DynamicObject) -> Result<()> {
        let name = self.name.to_string();
        if object.uid().as_deref() != Some(&marked.stored.meta.uid) {
            return Err(Error::not_found(&name));
        }
        if object::generation(object) != marked.intent.generation {
            return Err(Error::etag_mismatch(&name, &self.committing.etag));
        }
        if marked.is_marked(object) { Ok(()) } else { Err(aborted(self.name)) }
    }
}

impl MarkedExperiment {
    /// Returns true if this is the marked experiment, and it has the intent. Its spec may be another one.
    fn is_marked(&self, object: &DynamicObject) -> bool {
        let status: Option<ExperimentStatus> = object::status(object).ok();
        let intent = status.and_then(|status| status.commit);
        object.uid().as_deref() == Some(&self.stored.meta.uid)
            && intent.is_some_and(|intent| intent.id == self.intent.id)
    }

    /// Returns true if the policy shows that this commit has copied this version of the experiment.
    fn is_copied_to(&self, policy: &DynamicObject) -> bool {
        let spec: Option<PolicySpec> = serde_json::from_value(policy.data["spec"].clone()).ok();
        spec.is_some_and(|spec| {
            let committed = (self.stored.meta.uid.as_str(), &self.stored.spec);
            CommittedExperiment::proves(&self.intent, committed, (policy.annotations(), &spec))
        })
    }
}

/// Returns the error of a commit that the operator has aborted.
fn aborted(experiment: &ExperimentName) -> Error {
    let message = format!(
        "the operator has aborted the commit of {experiment}: the commit took longer than a minute, or the experiment or its \
         policy was deleted; try again if both exist"
    );
    Error::new(Code::Aborted, "COMMIT_ABORTED", message)
}

/// Returns the result of the preparation of this generation; `None` while the preparation runs.
fn preparation(status: &ExperimentStatus, generation: i64) -> Option<std::result::Result<(), Failure>> {
    let initialized = status.conditions.condition(ConditionType::Initialized)?;
    if initialized.observed_generation == Some(generation) { outcome(initialized) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_aborted_commit_names_the_time_limit_and_a_deletion() {
        let name = ExperimentName { policy: "cluster.p".parse().unwrap(), name: "e".to_owned() };
        let error = aborted(&name);
        assert_eq!((error.code, error.reason()), (Code::Aborted, "COMMIT_ABORTED"));
        for words in ["experiments/e: ", "longer than a minute", "the experiment or its policy was deleted"] {
            assert!(error.message.contains(words), "{words}: {error}");
        }
    }
}
