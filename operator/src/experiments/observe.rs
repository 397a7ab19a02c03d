//! What there is in the cluster about one experiment.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};
use proviso_core::experiment::rollout::{COMMIT_WITHIN, Candidate, MadeFor, Observed, Policy, Session};
use proviso_crds::conditions::outcome;
use proviso_crds::names::{COMMIT_INTENT, COMMITTED_EXPERIMENT, PREVIEW_START};
use proviso_crds::{Admission, ConditionType, Conditions as _, PreviewState, RevisedExperiment};

use crate::cascade;
use crate::context::{Context, Error};
use crate::guarded::{Guarded, Malformed};
use crate::kinds::{self, ExperimentObject, Kind as _, PolicyObject};
use crate::replicas::{ready_pods, replica};
use crate::revisions::Revision;
use crate::webhook;

pub(super) struct Seen<K: ExperimentObject> {
    /// None if there is none, and if it cannot be told which.
    pub policy: Option<Arc<Guarded<K::Policy>>>,
    /// The revision of the policy that is live.
    pub live: Option<Revision>,
    pub candidates: Vec<Revision>,
    /// Candidates that cannot be read.
    malformed: Vec<Malformed>,
    pub webhook: Option<Arc<ValidatingWebhookConfiguration>>,
    /// How many older experiments the policy has.
    older: usize,
    /// The pods of all policy servers.
    pods: Vec<Arc<Pod>>,
}

impl<K: ExperimentObject> Seen<K> {
    pub async fn read(experiment: &Guarded<K>, context: &Context) -> Result<Self, Error> {
        let caches = &context.caches;
        let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
        let (candidates, malformed) = context.reports.sort(caches.revisions.reader().by_key(&uid)).await;
        let webhook = caches.validating.reader().get(&webhook::preview_name(&kinds::id(experiment)?), None);
        let pods = caches.pods.reader().store().state();
        let mut seen = Self { policy: None, live: None, candidates, malformed, webhook, older: 0, pods };
        if let Ok(known) = &experiment.0 {
            seen.read_policy(known, context).await;
        }
        Ok(seen)
    }

    async fn read_policy(&mut self, experiment: &K, context: &Context) {
        let name = &experiment.spec().policy_ref.name;
        let policies = K::Policy::cache(&context.caches).reader();
        let found = policies.get(name, experiment.namespace().as_deref());
        // One that is being deleted takes its experiments with it.
        self.policy = found.filter(|policy| policy.meta().deletion_timestamp.is_none());
        if let Some(uid) = self.policy.as_ref().and_then(|policy| policy.uid()) {
            let (of_policy, _) = context.reports.sort(context.caches.revisions.reader().by_key(&uid)).await;
            self.live = of_policy.into_iter().find(Revision::is_marked_live);
        }
        let own = (experiment.creation_timestamp(), experiment.uid());
        let siblings = cascade::of::<K>(name, experiment.namespace().as_deref(), context);
        let counted = siblings.iter().filter(|it| it.meta().deletion_timestamp.is_none());
        self.older = counted.filter(|it| (it.creation_timestamp(), it.uid()) < own).count();
    }

    /// The same, as far as it matters to a decision.
    pub fn observed(&self, experiment: &Guarded<K>, now: Timestamp) -> Observed {
        let known = experiment.0.as_ref().ok();
        let preview = known.and_then(|known| known.status()?.preview_metadata.clone());
        let policy = self.policy.as_deref().and_then(|policy| self.of_policy(policy));
        let server = policy.as_ref().map(|policy| policy.server.clone());
        let malformed = self.malformed.iter().map(|it| Candidate {
            name: it.metadata.name.clone().unwrap_or_default(),
            made_for: None,
            initialized: None,
            replicas: Vec::new(),
        });
        Observed {
            generation: experiment.meta().generation.unwrap_or_default(),
            is_deleted: experiment.meta().deletion_timestamp.is_some(),
            auto_start: known.is_some_and(|known| known.spec().auto_start),
            session: preview.map(|preview| Session {
                is_active: preview.state == PreviewState::Active,
                generation: preview.generation,
                start: preview.start_time.0.to_string(),
            }),
            policy,
            older: self.older,
            is_committed: self.is_committed(experiment),
            intent: experiment.annotations().get(COMMIT_INTENT).map(|since| age(since, now)),
            rides: known.is_some_and(|known| self.rides(known)),
            candidates: self.candidates.iter().map(candidate).chain(malformed).collect(),
            has_webhook: self.webhook.is_some(),
            pods: server.map(|server| ready_pods(&self.pods, &server)).unwrap_or_default(),
        }
    }

    /// Who answers for the policy now, and not only once its newest generation is live.
    fn of_policy(&self, policy: &Guarded<K::Policy>) -> Option<Policy> {
        let live = self.live.as_ref().map(|live| &live.policy_server);
        let server = live.or(policy.0.as_ref().ok().map(|known| &known.spec().policy_server))?;
        Some(Policy { uid: policy.uid()?, server: server.clone() })
    }

    /// Whether every request about which the experiment says anything comes with a call of what is live.
    fn rides(&self, experiment: &K) -> bool {
        let spec = &experiment.spec().policy;
        let reach = |admission: &Option<Admission>| admission.as_ref().map(Admission::reach);
        !spec.enabled || self.live.as_ref().is_some_and(|live| reach(&live.admission) == reach(&spec.admission))
    }

    fn is_committed(&self, experiment: &Guarded<K>) -> bool {
        let named = self.policy.as_ref().and_then(|policy| policy.annotations().get(COMMITTED_EXPERIMENT));
        let named = named.and_then(|text| serde_json::from_str::<RevisedExperiment>(text).ok());
        named.is_some_and(|it| {
            Some(&it.uid) == experiment.meta().uid.as_ref() && Some(it.generation) == experiment.meta().generation
        })
    }
}

/// For how long somebody has been about to commit it. What is no time was said by nobody who commits.
fn age(since: &str, now: Timestamp) -> Duration {
    let Ok(since) = since.parse::<Timestamp>() else { return COMMIT_WITHIN };
    now.duration_since(since).try_into().unwrap_or_default()
}

fn candidate(revision: &Revision) -> Candidate {
    let status = &revision.status;
    let initialized = status.conditions.condition(ConditionType::Initialized);
    let (policy, server) = (&revision.policy_ref, &revision.policy_server);
    Candidate {
        name: revision.name_any(),
        made_for: revision.experiment_ref.as_ref().map(|experiment| MadeFor {
            generation: experiment.generation,
            policy: Policy { uid: policy.uid.clone(), server: server.clone() },
            start: revision.annotations().get(PREVIEW_START).cloned().unwrap_or_default(),
        }),
        initialized: initialized.and_then(outcome),
        replicas: status.replicas.iter().map(replica).collect(),
    }
}
