//! What others see of the rollout: the state file, the table, the gauges.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::{Failure, PolicyId};

use super::slot::Slot;
use super::{Rollout, WRITE_AGAIN};
use crate::manifests::{ExperimentId, ObjectId, Problem};
use crate::state::{Record, Records};
use crate::table::{Entry, Experiment, Idle, Origin, Table};

impl Rollout {
    /// Writes the state, then the table. Where the state cannot be written, serving goes on, and `/readyz?verbose`
    /// says so.
    pub(super) async fn publish(&mut self) {
        if self.unsaved.is_some_and(|since| Instant::now() >= since) {
            self.save().await;
        }
        if std::mem::take(&mut self.is_changed) {
            self.is_complete |= self.slots.values().all(Slot::is_idle);
            for slot in self.slots.values_mut() {
                slot.follow_preview();
            }
            self.table.store(self.to_table());
            self.count();
            self.forget_modules();
        }
    }

    async fn save(&mut self) {
        let Some(state) = self.state.clone() else {
            self.unsaved = None;
            return;
        };
        let records = self.records();
        let written = tokio::task::spawn_blocking(move || state.write(records).map_err(|error| error.to_string()));
        let trouble = written.await.unwrap_or_else(|panic| Err(panic.to_string())).err();
        self.unsaved = trouble.is_some().then(|| Instant::now() + WRITE_AGAIN);
        if self.state_trouble != trouble {
            if let Some(error) = &trouble {
                tracing::error!(error, "generations would not survive a restart");
            }
            self.state_trouble = trouble;
            self.is_changed = true;
        }
    }

    fn records(&self) -> Records {
        let recorded = self.slots.iter().filter_map(|(id, slot)| {
            let record = slot.record.clone()?;
            Some((id.to_string(), Record { preview: slot.preview.clone(), ..record }))
        });
        recorded.collect()
    }

    fn count(&self) {
        let failing = self.slots.values().filter(|slot| slot.failure().is_some()).count();
        self.metrics.failing.set(failing.try_into().unwrap_or(i64::MAX));
        self.metrics.manifest_problems.set(self.problems.len().try_into().unwrap_or(i64::MAX));
        for (id, slot) in &self.slots {
            if let (ObjectId::Policy(policy), Some(live)) = (id, &slot.live) {
                self.metrics.live(policy, Some(live.generation));
            }
        }
    }

    /// Lets go of modules that nothing needs. Not before everything was tried once: what a restart is about to load
    /// again must not be compiled twice.
    fn forget_modules(&self) {
        if self.is_complete {
            let used: HashSet<_> = self.slots.values().flat_map(Slot::modules).collect();
            self.preparations.preparer().modules.retain(&used);
        }
    }

    fn to_table(&self) -> Table {
        // What is wrong with the manifest of an object is that object's failure.
        let mut refused: BTreeMap<&ObjectId, &Problem> = BTreeMap::new();
        let mut problems: Vec<String> = self.state_trouble.iter().cloned().collect();
        for problem in &self.problems {
            match &problem.object {
                Some(object @ (ObjectId::Policy(_) | ObjectId::Experiment(_))) if !refused.contains_key(object) => {
                    refused.insert(object, problem);
                }
                _ => problems.push(problem.to_string()),
            }
        }
        let mut policies: HashMap<PolicyId, Entry> = HashMap::new();
        let mut experiments: HashMap<PolicyId, Vec<Arc<Experiment>>> = HashMap::new();
        let mut idle_experiments = Vec::new();
        for (id, slot) in &self.slots {
            let refusal = refused.remove(id).map(Problem::to_failure);
            match id {
                ObjectId::Policy(policy) => {
                    let entry = slot.to_entry();
                    policies.insert(policy.clone(), Entry { failure: refusal.or(entry.failure), ..entry });
                }
                ObjectId::Experiment(experiment) => match self.activate(experiment, slot, refusal) {
                    Ok(active) => experiments.entry(active.revision.policy.clone()).or_default().push(active),
                    Err(why) => idle_experiments.push((experiment.clone(), why)),
                },
                ObjectId::Namespace(_) => {}
            }
        }
        for (id, problem) in refused {
            match id {
                ObjectId::Policy(policy) => {
                    let entry = Entry { failure: Some(problem.to_failure()), ..Entry::default() };
                    policies.insert(policy.clone(), entry);
                }
                _ => problems.push(problem.to_string()),
            }
        }
        for (policy, mut active) in experiments {
            let (excess, why) = match policies.get_mut(&policy) {
                Some(entry) => {
                    let excess = active.split_off(active.len().min(MAX_EXPERIMENTS));
                    entry.experiments = active.into();
                    (excess, Idle::TooMany(policy))
                }
                None => (active, Idle::PolicyNotFound(policy)),
            };
            idle_experiments.extend(excess.iter().map(|experiment| (experiment.id.clone(), why.clone())));
        }
        let labels = self.namespaces.iter().map(|(name, namespace)| (name.clone(), namespace.spec.clone()));
        Table {
            policies,
            namespaces: Arc::new(labels.collect()),
            origin: Origin::Folder,
            problems,
            idle_experiments,
            is_complete: self.is_complete,
            unready: None,
        }
    }

    /// The experiment, if it is to be previewed; else why not.
    fn activate(&self, id: &ExperimentId, slot: &Slot, refusal: Option<Failure>) -> Result<Arc<Experiment>, Idle> {
        let failure = refusal.or_else(|| slot.failure().cloned());
        let idle = |why| failure.clone().map_or(why, Idle::Failed);
        let revision = slot.live.clone().ok_or_else(|| idle(Idle::Preparing))?;
        if !slot.is_active(revision.generation) {
            return Err(idle(if slot.preview.is_some() { Idle::Suspended } else { Idle::NotStarted }));
        }
        Ok(Arc::new(Experiment {
            id: id.clone(),
            revision,
            metrics: self.metrics.experiment(id),
            tally: slot.tally.as_ref().map(|session| Arc::clone(&session.tally)),
            failure,
        }))
    }
}
