//! Publishes the state of the folder: writes the state file, then the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use proviso_core::Failure;

use super::object::Object;
use super::{FolderSource, SAVE_RETRY_DELAY};
use crate::lifecycle::{Publication, Role, View};
use crate::manifests::{ExperimentId, ObjectId, Problem};
use crate::state::{Record, Records};
use crate::table::{Experiment, IdleReason};

impl FolderSource {
    /// Writes the state file, then the table. If the state file cannot be written, the server keeps serving, and
    /// `/readyz?verbose` shows the error.
    pub(super) async fn publish(&mut self) {
        if self.save_due.is_some_and(|due| Instant::now() >= due) {
            self.save().await;
        }
        if std::mem::take(&mut self.is_changed) {
            self.follow_previews();
            let snapshot = self.publication().into_snapshot();
            self.metrics.manifest_problems.set(self.problems.len().try_into().unwrap_or(i64::MAX));
            if let Some(used) = self.publisher.publish(snapshot) {
                self.lifecycle.preparer().modules.retain(&used);
            }
        }
    }

    async fn save(&mut self) {
        let Some(state) = self.state.clone() else {
            self.save_due = None;
            return;
        };
        let records = self.records();
        let written = tokio::task::spawn_blocking(move || state.write(records).map_err(|error| error.to_string()));
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

    fn records(&self) -> Records {
        let recorded = self.objects.iter().filter_map(|(id, object)| {
            let record = object.record.clone()?;
            Some((id.to_string(), Record { preview: object.preview.clone(), ..record }))
        });
        recorded.collect()
    }

    fn follow_previews(&mut self) {
        for object in self.objects.values_mut() {
            let live = object.accepted().and_then(|accepted| self.lifecycle.get(&accepted)?.loaded());
            if let Some(live) = live {
                object.follow_preview(&live.revision);
            }
        }
    }

    fn publication(&self) -> Publication<'_> {
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
        for problem in &self.problems {
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
                ObjectId::Experiment(experiment) => match self.candidate(experiment, object, failure) {
                    Ok(view) => publication.revisions.push(view),
                    Err(reason) => publication.idle_experiments.push((experiment.clone(), reason)),
                },
                ObjectId::Namespace(_) => {}
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
    fn candidate<'a>(
        &'a self,
        id: &ExperimentId,
        object: &'a Object,
        failure: Option<Failure>,
    ) -> Result<View<'a>, IdleReason> {
        let failure_or = |reason| failure.clone().map_or(reason, IdleReason::Failed);
        let revision = self.live(object).ok_or_else(|| failure_or(IdleReason::Preparing))?;
        if !object.is_active(revision.generation) {
            let reason = if object.preview.is_some() { IdleReason::Suspended } else { IdleReason::NotStarted };
            return Err(failure_or(reason));
        }
        let policy = &revision.policy;
        if !self.objects.contains_key(&ObjectId::Policy(policy.clone())) {
            return Err(IdleReason::PolicyNotFound(policy.clone()));
        }
        let experiment = Experiment {
            id: id.clone(),
            revision: Arc::clone(revision),
            metrics: self.metrics.experiment(id),
            counter: object.session.as_ref().map(|session| Arc::clone(&session.counter)),
            failure,
        };
        let role = Role::Candidate(Some(Arc::new(experiment)));
        let slot = object.accepted().and_then(|accepted| self.lifecycle.get(&accepted));
        Ok(View { policy, generation: revision.generation, role, slot })
    }
}
