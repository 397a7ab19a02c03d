//! The steps that both forms of the API share: reading a policy, changing it despite concurrent changes, and waiting until a change is
//! served.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_crds::{DEFAULT_TTL, PolicySpec, PreviewSettings};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, Progress};
use crate::resources::input::policy_change;
use crate::resources::visible_annotations;
use crate::store::{Caller, Change, PolicyStore, StoredPolicy};

/// The number of attempts of a change that conflicts with the changes of other clients.
const ATTEMPTS: usize = 5;
/// The delay before a waiting change looks for the first time if it is served. Each delay is twice the previous one.
const FIRST_DELAY: Duration = Duration::from_millis(20);
/// The maximum delay.
const MAX_DELAY: Duration = Duration::from_millis(500);

pub(super) type Result<T> = std::result::Result<T, Error>;

/// The request policies of a store.
#[derive(Debug)]
pub(super) struct Policies<S> {
    pub store: Arc<S>,
}

impl<S> Clone for Policies<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

/// The key of a policy in one form of the API.
#[derive(Clone, Debug)]
pub(super) enum Key {
    /// The id in the store.
    Id(PolicyId),
    /// The uid that the store made.
    Uid(String),
}

impl<S: PolicyStore> Policies<S> {
    pub(super) fn new(store: Arc<S>) -> Self {
        Self { store }
    }

    /// Reads a request policy.
    ///
    /// # Errors
    /// Returns an error if there is no such policy, or if it is not a request policy.
    pub(super) async fn get(&self, caller: Option<&Caller>, key: &Key) -> Result<StoredPolicy> {
        let not_found = || Error::not_found(&key.name());
        let stored = match key {
            Key::Id(id) => self.store.policy(caller, id).await,
            Key::Uid(uid) => {
                let id = self.store.policy_with_uid(uid).await?.ok_or_else(not_found)?;
                self.store.policy(caller, &id).await
            }
        };
        let stored = stored.map_err(|error| if error.code == Code::NotFound { not_found() } else { error })?;
        // Another policy of the same name may have replaced the one with the uid.
        let is_same = !matches!(key, Key::Uid(uid) if *uid != stored.meta.uid);
        if is_same && stored.spec.request.is_some() { Ok(stored) } else { Err(not_found()) }
    }

    /// Creates a policy, and waits until it is served.
    pub(super) async fn create(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        spec: &PolicySpec,
    ) -> Result<StoredPolicy> {
        let content = policy_change(json!({"spec": spec}))?;
        let stored = self.store.create_policy(caller, id, content).await?;
        Ok(self.served(caller, Effect::Create, stored).await)
    }

    /// Replaces the spec of a policy by the result of `change`, and waits until it is served. If another client changes the policy at
    /// the same time, `change` is called again with the new version, so that neither change is lost.
    pub(super) async fn update(
        &self,
        caller: Option<&Caller>,
        key: &Key,
        change: impl Fn(&StoredPolicy) -> Result<PolicySpec> + Send,
    ) -> Result<StoredPolicy> {
        for _ in 0..ATTEMPTS {
            let stored = self.get(caller, key).await?;
            let spec = change(&stored)?;
            if spec == stored.spec {
                return Ok(stored);
            }
            let content = Change { spec, ..content(&stored) };
            policy_change(json!({"spec": content.spec}))?;
            match self.store.update_policy(caller, &stored.id, &stored.meta.revision, content).await {
                Ok(stored) => return Ok(self.served(caller, Effect::Update, stored).await),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&key.name()))
    }

    /// Deletes a policy if `check` accepts it, and waits until it is not served any more.
    pub(super) async fn delete(
        &self,
        caller: Option<&Caller>,
        key: &Key,
        check: impl Fn(&StoredPolicy) -> Result<()> + Send,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let stored = self.get(caller, key).await?;
            check(&stored)?;
            // The etag has the uid, so that no other policy of the same name is deleted.
            match self.store.delete_policy(caller, &stored.id, Some(&stored.meta.etag)).await {
                Ok(deleted) => {
                    self.wait(caller, Effect::Delete, &deleted).await;
                    return Ok(());
                }
                Err(error) if error.code == Code::Aborted => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::concurrent_change(&key.name()))
    }

    /// Waits until a change is served, and returns the policy as it is then.
    async fn served(&self, caller: Option<&Caller>, effect: Effect, written: StoredPolicy) -> StoredPolicy {
        self.wait(caller, effect, &written).await;
        match self.store.policy(caller, &written.id).await {
            Ok(stored) if stored.meta.uid == written.meta.uid && stored.spec == written.spec => stored,
            // The caller may not read the policy, or another client has changed it already: the answer is about this change.
            _ => written,
        }
    }

    /// Waits until a change is served, has failed, or the time of the store has passed. A client that evaluates a request after the
    /// answer then meets the changed policy.
    async fn wait(&self, caller: Option<&Caller>, effect: Effect, policy: &StoredPolicy) {
        let (uid, version) = (policy.meta.uid.clone(), policy.meta.version.clone());
        let awaited = AwaitedEffect { effect, policy: policy.id.clone(), experiment: None, uid, version, start: None };
        let until = Instant::now() + self.store.serving_timeout();
        let mut delay = FIRST_DELAY;
        while let Ok(Progress::Running(event)) = self.store.progress(caller, &awaited).await {
            if Instant::now() + delay > until {
                tracing::info!(policy = %policy.id, event, "a changed request policy is not served yet");
                return;
            }
            sleep(delay).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }
}

impl Key {
    /// Returns the name of the policy for errors.
    fn name(&self) -> String {
        let id = match self {
            Self::Id(id) => id.name(),
            Self::Uid(uid) => uid,
        };
        format!("policies/{}", id.chars().take(300).collect::<String>())
    }
}

/// Returns the content of a stored policy.
fn content(stored: &StoredPolicy) -> Change {
    Change {
        spec: stored.spec.clone(),
        annotations: visible_annotations(stored.meta.annotations.clone()),
        auto_start: false,
        preview_settings: PreviewSettings::default(),
        ttl: DEFAULT_TTL.to_owned(),
    }
}

/// Returns true if the change conflicted with the change of another client, and can be tried again.
fn is_conflict(error: &Error) -> bool {
    error.code == Code::Aborted && error.reason() == "CONCURRENT_CHANGE"
}
