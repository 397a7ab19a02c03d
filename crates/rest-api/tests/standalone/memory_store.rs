//! A store of policies in memory. It has no experiments and no operations.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_rest_api::{
    AwaitedEffect, Caller, Change, CommitPreconditions, Error, ExperimentName, Meta, NamespaceTenants, OperationResult,
    OperationSummary, PolicyStore, Preview, Progress, State, StoredExperiment, StoredOperation, StoredPolicy,
};
use serde_json::json;

pub struct MemoryStore {
    policies: Mutex<BTreeMap<PolicyId, StoredPolicy>>,
    /// The number of writes so far.
    writes: AtomicUsize,
    /// The number of the next updates that conflict with another client, who changes the description.
    pub conflicts: AtomicUsize,
    /// The number of the next calls of `progress` that are answered with [`Progress::Running`].
    pub running: AtomicUsize,
    serving_timeout: Duration,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_serving_timeout(Duration::from_mins(1))
    }
}

type Result<T> = std::result::Result<T, Error>;
type MaybeCaller<'a> = Option<&'a Caller>;

/// Subtracts one, unless the number is zero. Returns true if it was not zero.
fn take(number: &AtomicUsize) -> bool {
    number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |number| number.checked_sub(1)).is_ok()
}

impl MemoryStore {
    pub fn with_serving_timeout(serving_timeout: Duration) -> Self {
        Self {
            policies: Mutex::default(),
            writes: AtomicUsize::default(),
            conflicts: AtomicUsize::default(),
            running: AtomicUsize::default(),
            serving_timeout,
        }
    }

    fn meta(&self, before: Option<&Meta>) -> Meta {
        let number = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let time = serde_json::from_value(json!(format!("2026-11-20T09:14:{number:02}Z"))).unwrap();
        Meta {
            uid: before.map_or_else(|| format!("uid-{number}"), |before| before.uid.clone()),
            etag: format!("\"{number}\""),
            revision: number.to_string(),
            version: number.to_string(),
            annotations: BTreeMap::new(),
            create_time: before.map_or(Some(time), |before| before.create_time.clone()),
            update_time: serde_json::from_value(json!(format!("2026-11-21T09:14:{number:02}Z"))).unwrap(),
        }
    }
}

impl PolicyStore for MemoryStore {
    async fn policies(&self, _: MaybeCaller<'_>, namespace: Option<&str>) -> Result<Vec<StoredPolicy>> {
        let policies = self.policies.lock().unwrap();
        let of_namespace = |policy: &&StoredPolicy| namespace.is_none() || policy.id.namespace() == namespace;
        Ok(policies.values().filter(of_namespace).cloned().collect())
    }
    async fn policy_with_uid(&self, uid: &str) -> Result<Option<PolicyId>> {
        let policies = self.policies.lock().unwrap();
        Ok(policies.values().find(|policy| policy.meta.uid == uid).map(|policy| policy.id.clone()))
    }
    async fn tenants(&self) -> Result<NamespaceTenants> {
        Ok(NamespaceTenants::new([("team-a".to_owned(), "blue".to_owned())]))
    }
    fn serving_timeout(&self) -> Duration {
        self.serving_timeout
    }
    async fn policy(&self, _: MaybeCaller<'_>, id: &PolicyId) -> Result<StoredPolicy> {
        let policies = self.policies.lock().unwrap();
        policies.get(id).cloned().ok_or_else(|| Error::not_found(&format!("policies/{id}")))
    }
    async fn create_policy(&self, _: MaybeCaller<'_>, id: &PolicyId, content: Change) -> Result<StoredPolicy> {
        let mut policies = self.policies.lock().unwrap();
        if policies.contains_key(id) {
            return Err(Error::already_exists(&format!("policies/{id}")));
        }
        let stored = StoredPolicy {
            id: id.clone(),
            meta: self.meta(None),
            spec: content.spec,
            state: State::Active,
            problem: None,
        };
        policies.insert(id.clone(), stored.clone());
        Ok(stored)
    }
    async fn update_policy(
        &self,
        _: MaybeCaller<'_>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> Result<StoredPolicy> {
        let mut policies = self.policies.lock().unwrap();
        let policy = policies.get_mut(id).unwrap();
        if take(&self.conflicts) {
            policy.spec.request.as_mut().unwrap().description = Some("of another client".to_owned());
            policy.meta = self.meta(Some(&policy.meta));
        }
        if policy.meta.revision != revision {
            return Err(Error::concurrent_change(&format!("policies/{id}")));
        }
        policy.spec = content.spec;
        policy.meta = self.meta(Some(&policy.meta));
        Ok(policy.clone())
    }
    async fn delete_policy(&self, _: MaybeCaller<'_>, id: &PolicyId, etag: Option<&str>) -> Result<StoredPolicy> {
        let mut policies = self.policies.lock().unwrap();
        let policy = policies.get(id).unwrap();
        if etag.is_some_and(|etag| etag != policy.meta.etag) {
            return Err(Error::etag_mismatch(id.as_str(), etag.unwrap()));
        }
        Ok(policies.remove(id).unwrap())
    }
    async fn progress(&self, _: MaybeCaller<'_>, _: &AwaitedEffect) -> Result<Progress> {
        Ok(if take(&self.running) { Progress::Running("an event".to_owned()) } else { Progress::Done })
    }
    async fn experiments(&self, _: MaybeCaller<'_>, _: Option<&PolicyId>) -> Result<Vec<StoredExperiment>> {
        panic!("there are no experiments")
    }
    async fn experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName) -> Result<StoredExperiment> {
        panic!("there are no experiments")
    }
    async fn create_experiment(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Change) -> Result<StoredExperiment> {
        panic!("there are no experiments")
    }
    async fn update_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: &str,
        _: Change,
    ) -> Result<StoredExperiment> {
        panic!("there are no experiments")
    }
    async fn delete_experiment(
        &self,
        _: MaybeCaller<'_>,
        _: &ExperimentName,
        _: Option<&str>,
    ) -> Result<StoredExperiment> {
        panic!("there are no experiments")
    }
    async fn preview(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: Preview) -> Result<StoredExperiment> {
        panic!("there are no experiments")
    }
    async fn commit(&self, _: MaybeCaller<'_>, _: &ExperimentName, _: &CommitPreconditions) -> Result<StoredPolicy> {
        panic!("there are no experiments")
    }
    async fn create_operation(&self, _: StoredOperation) -> Result<()> {
        panic!("there are no operations")
    }
    async fn operation(&self, _: MaybeCaller<'_>, _: &str) -> Result<StoredOperation> {
        panic!("there are no operations")
    }
    async fn operations(&self, _: MaybeCaller<'_>) -> Result<Vec<OperationSummary>> {
        panic!("there are no operations")
    }
    async fn finish_operation(&self, _: &str, _: OperationResult) -> Result<StoredOperation> {
        panic!("there are no operations")
    }
}
