//! Publishes the state of the folder: writes the state file, then the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::Failure;

use super::object::Object;
use super::{FolderSource, SAVE_RETRY_DELAY};
use crate::lifecycle::{Publication, Role, View};
use crate::manifests::{ExperimentId, ObjectId, Problem};
use crate::state::{NewObject, Record, State};
use crate::table::{Experiment, IdleReason};

impl FolderSource {
    /// Follows the previews, writes the state file, then the table, and records the results of operations. If the state file cannot be
    /// written, the server keeps serving, and `/readyz?verbose` shows the error.
    pub(super) async fn publish(&mut self) {
        if self.is_changed {
            self.follow_previews();
        }
        self.save_if_due().await;
        if std::mem::take(&mut self.is_changed) {
            let snapshot = self.publication().into_snapshot();
            self.publish_configuration();
            let problems = self.problems.len() + self.conflicts.problems().count();
            self.metrics.manifest_problems.set(problems.try_into().unwrap_or(i64::MAX));
            if let Some(used) = self.publisher.publish(snapshot) {
                self.lifecycle.preparer().modules.retain(&used);
            }
        }
        // A result contains the counts, which begin with the table.
        self.finish_operations();
        self.save_if_due().await;
    }

    async fn save_if_due(&mut self) {
        if self.save_due.is_none_or(|due| Instant::now() < due) {
            return;
        }
        let Some(state) = self.state.clone() else {
            self.save_due = None;
            return;
        };
        let content = self.to_state();
        let written = tokio::task::spawn_blocking(move || state.write(&content).map_err(|error| error.to_string()));
        let error = written.await.unwrap_or_else(|panic| Err(panic.to_string())).err();
        self.save_due = error.is_some().then(|| Instant::now() + SAVE_RETRY_DELAY);
        if self.save_error != error {
            if let Some(error) = &error {
                tracing::error!(error, "cannot write the state file: a restart would lose generations");
            }
            self.save_error = error;
            self.is_changed = true;
        }
    }

    fn to_state(&self) -> State {
        let mut state = State { operations: self.operations.to_state(), ..State::default() };
        for (id, object) in &self.objects {
            if let Some(record) = object.record.clone() {
                let (preview, previewed_start_time) = object.preview.to_state();
                state.records.insert(id.to_string(), Record { preview, previewed_start_time, ..record });
            } else {
                let (uid, created) = (object.uid.clone(), object.created.clone());
                state.new_objects.insert(id.to_string(), NewObject { uid, created });
            }
        }
        state
    }

    fn publication(&self) -> Publication<'_> {
        let (obstacles, now) = (self.obstacles(), Time(Timestamp::now()));
        // If a refused document still names its object, its problem is the failure of that object.
        let mut refused: BTreeMap<&ObjectId, &Problem> = BTreeMap::new();
        let mut publication = Publication {
            problems: self.save_error.iter().cloned().collect(),
            namespaces: Arc::new(self.namespaces.iter().map(|(name, it)| (name.clone(), it.spec.clone())).collect()),
            // Unlike in a cluster, the server waits for experiments too: no other server previews them.
            has_listed: self.has_listed && self.objects.values().all(|object| self.is_tried(object)),
            modules: self.objects.values().flat_map(Object::modules).collect(),
            ..Publication::default()
        };
        for problem in self.problems.iter().chain(self.conflicts.problems()) {
            match &problem.object {
                Some(object @ (ObjectId::Policy(_) | ObjectId::Experiment(_))) if !refused.contains_key(object) => {
                    refused.insert(object, problem);
                }
                _ => publication.problems.push(problem.to_string()),
            }
        }
        for (id, object) in &self.objects {
            let failure = self.failure(object);
            publication.failing += usize::from(failure.is_some());
            let failure = refused.remove(id).map(Problem::to_failure).or(failure);
            match id {
                ObjectId::Policy(policy) => {
                    publication.revisions.extend(self.views(object));
                    publication.failures.extend(failure.map(|failure| (policy.clone(), failure)));
                }
                ObjectId::Experiment(experiment) => {
                    match self.candidate(experiment, object, failure, obstacles.get(id)) {
                        Ok(view) => publication.revisions.push(view),
                        Err(reason) => publication.idle_experiments.push((experiment.clone(), reason)),
                    }
                    let end = object.preview.announced_end(&now);
                    publication.ending_experiments.extend(end.map(|end| (experiment.clone(), end.0)));
                }
                // The deliveries report subscriptions.
                ObjectId::Subscription(_) | ObjectId::Namespace(_) => {}
            }
        }
        for (id, problem) in refused {
            match id {
                ObjectId::Policy(policy) => publication.failures.push((policy.clone(), problem.to_failure())),
                _ => publication.problems.push(problem.to_string()),
            }
        }
        publication
    }

    /// Returns the revisions of a policy.
    fn views<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = View<'a>> {
        let (newest, accepted) = (object.newest(), object.accepted());
        let next = newest.filter(|newest| accepted.as_ref() != Some(newest)).map(|key| (key, Role::Other));
        let retired = object.retired().cloned().map(|key| (key, Role::Other));
        let keys = accepted.map(|key| (key, Role::Live)).into_iter().chain(next).chain(retired);
        keys.filter_map(|(key, role)| {
            let slot = self.lifecycle.get(&key)?;
            Some(View { policy: object.policy()?, generation: key.generation, role, slot: Some(slot) })
        })
    }

    /// Returns the preview of an experiment, or the reason why it previews nothing.
    pub(super) fn candidate<'a>(
        &'a self,
        id: &ExperimentId,
        object: &'a Object,
        failure: Option<Failure>,
        obstacle: Option<&IdleReason>,
    ) -> Result<View<'a>, IdleReason> {
        let failure_or = |reason| failure.clone().map_or(reason, IdleReason::Failed);
        let revision = self.live(object).ok_or_else(|| failure_or(IdleReason::Preparing))?;
        let record = object.record.as_ref().and_then(|record| record.experiment.as_ref());
        let (Some(counter), Some(record)) = (object.preview.counter(), record) else {
            let auto_start = object.experiment_record().is_some_and(|record| record.auto_start);
            return Err(failure_or(object.preview.idle_reason(obstacle, auto_start)));
        };
        let experiment = Experiment {
            id: id.clone(),
            revision: Arc::clone(revision),
            metrics: self.metrics.experiment(id),
            settings: record.preview,
            counter: Some(Arc::clone(counter)),
            failure,
        };
        let role = Role::Candidate(Some(Arc::new(experiment)));
        let slot = object.accepted().and_then(|accepted| self.lifecycle.get(&accepted));
        Ok(View { policy: &revision.policy, generation: revision.generation, role, slot })
    }
}
