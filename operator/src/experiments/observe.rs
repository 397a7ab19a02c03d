//! The objects of the cluster that concern one experiment.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource as _, ResourceExt as _};
use proviso_core::experiment::preview::StopReason;
use proviso_core::experiment::rollout::{Candidate, CandidateSession, Commit, Observed, Policy, Session, Timer};
use proviso_core::{Failure, Reason, rollout};
use proviso_crds::conditions::outcome;
use proviso_crds::names::PREVIEW_START;
use proviso_crds::{
    Admission, Canary, CommittedExperiment, ConditionStatus, ConditionType, Conditions as _, ExperimentSpec,
    PreviewMetadata, PreviewState, ReplicaStatus, reasons, time_to_live_or_longest,
};

use super::commit::Intent;
use super::configuration;
use crate::cascade;
use crate::configurations::{self, Validation};
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject, Kind as _, PolicyObject};
use crate::malformed::{Malformed, MaybeMalformed};
use crate::replicas::{ready_pods, replica};
use crate::revisions::Revision;
use crate::tenants;
use crate::usage::CountedKind;
use crate::webhook;

pub(super) struct ObservedObjects<K: ExperimentObject> {
    /// The policy of the experiment; `None` if it does not exist, or if a malformed experiment does not name it.
    pub policy: Option<Arc<MaybeMalformed<K::Policy>>>,
    /// The live revision of the policy.
    pub live: Option<Revision>,
    pub candidates: Vec<Revision>,
    /// Candidates that cannot be read.
    malformed: Vec<Malformed>,
    pub webhook: Option<Arc<ValidatingWebhookConfiguration>>,
    /// The canaries of the current generation, if the policy configures components.
    pub canaries: Vec<Canary>,
    /// The number of older experiments of the policy.
    older: usize,
    /// The reason why the policy server may not preview the experiment.
    pub refusal: Option<Failure>,
    /// The pods of all policy servers.
    pods: Vec<Arc<Pod>>,
}

impl<K: ExperimentObject> ObservedObjects<K> {
    pub async fn read(experiment: &MaybeMalformed<K>, context: &Context) -> Result<Self, Error> {
        let caches = &context.caches;
        let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
        let (candidates, malformed) = context.reports.partition(caches.revisions.reader().by_key(&uid)).await;
        let webhook = caches.validating.reader().get(&webhook::preview_name(&kinds::id(experiment)?), None);
        let pods = caches.pods.reader().store().state();
        let mut found = Self {
            policy: None,
            live: None,
            candidates,
            malformed,
            webhook,
            canaries: Vec::new(),
            older: 0,
            refusal: None,
            pods,
        };
        match &experiment.0 {
            Ok(known) => found.read_policy(known, context).await,
            // The deletion of a malformed experiment needs only the policy, for the end of a commit.
            Err(Malformed { policy_ref: Some(name), .. }) => {
                found.policy = find_policy::<K>(name, experiment.namespace().as_deref(), context);
            }
            Err(_) => {}
        }
        Ok(found)
    }

    async fn read_policy(&mut self, experiment: &K, context: &Context) {
        let name = &experiment.spec().policy_ref.name;
        self.policy = find_policy::<K>(name, experiment.namespace().as_deref(), context);
        if let Some(uid) = self.policy.as_ref().and_then(|policy| policy.uid()) {
            let (revisions, _) = context.reports.partition(context.caches.revisions.reader().by_key(&uid)).await;
            // During a switch, two revisions may be marked live, and the newer one counts.
            let live = revisions.into_iter().filter(Revision::is_marked_live);
            self.live = live.max_by_key(|revision| revision.policy_ref.generation);
        }
        let own = (experiment.creation_timestamp(), experiment.uid());
        let siblings = cascade::cached::<K>(name, experiment.namespace().as_deref(), context);
        let active = siblings.iter().filter(|it| it.meta().deletion_timestamp.is_none());
        self.older = active.filter(|it| (it.creation_timestamp(), it.uid()) < own).count();
        let server = self.policy.as_deref().and_then(|policy| self.observe_policy(policy)).map(|policy| policy.server);
        let refused = || server.and_then(|server| self.find_refusal(experiment, &server, context));
        self.refusal = self.other_point(experiment).or_else(refused);
        if experiment.spec().policy.configuration.is_some()
            && let (Ok(policy), Some(generation)) = (kinds::policy_id(experiment, name), experiment.meta().generation)
        {
            self.canaries = configuration::canaries(&policy, &experiment.name_any(), generation, context);
        }
    }

    /// Validates the candidates that configure components and have no result yet: see [`configurations::validate`].
    pub async fn validate(&self, context: &Context) -> Result<Validation, Error> {
        let mut validated = Validation::Unchanged;
        for candidate in &self.candidates {
            validated = validated.max(configurations::validate(candidate, context).await?);
        }
        Ok(validated)
    }

    /// Returns the failure of an experiment with another enforcement point than its policy.
    fn other_point(&self, experiment: &K) -> Option<Failure> {
        let policy = self.policy.as_deref()?.0.as_ref().ok()?;
        let mismatch = experiment.spec().policy.check_experiment_of(&kinds::id(policy).ok()?, policy.spec()).err()?;
        Some(Failure::new(Reason::INVALID, format!("spec.policy: {mismatch}")))
    }

    /// Returns the reason why a policy server may not preview the experiment. The limits of the namespace matter only while the
    /// experiment has no candidate.
    fn find_refusal(&self, experiment: &K, server: &str, context: &Context) -> Option<Failure> {
        let spec = &experiment.spec().policy;
        if let Some(failure) = tenants::refusal(experiment, "spec.policy", server, spec, context) {
            return Some(failure);
        }
        let namespace = experiment.namespace().filter(|_| self.candidates.is_empty())?;
        let age = (experiment.creation_timestamp().map(|time| time.0), experiment.uid().unwrap_or_default());
        context.usage.refusal_of_revision(CountedKind::Experiment, &namespace, (&experiment.name_any(), &age), spec)
    }

    /// Converts the objects to the input of a decision. `elapsed` has the times of the running timers.
    pub fn observed(
        &self,
        experiment: &MaybeMalformed<K>,
        now: Timestamp,
        elapsed: Vec<(Timer, Duration)>,
    ) -> Observed {
        let known = experiment.0.as_ref().ok();
        let policy = self.policy.as_deref().and_then(|policy| self.observe_policy(policy));
        let is_policy_malformed = self.policy.is_some() && policy.is_none();
        let needs_replicas = known.is_none_or(|known| known.spec().policy.configuration.is_none());
        let server = policy.as_ref().map(|policy| policy.server.clone()).filter(|_| needs_replicas);
        let malformed = self.malformed.iter().map(|it| Candidate {
            name: it.metadata.name.clone().unwrap_or_default(),
            session: None,
            is_enabled: true,
            initialized: None,
            replicas: Vec::new(),
            stopped: Vec::new(),
        });
        Observed {
            generation: experiment.meta().generation.unwrap_or_default(),
            is_deleted: experiment.meta().deletion_timestamp.is_some(),
            needs_replicas,
            auto_start: known.is_some_and(|known| known.spec().auto_start),
            session: known.and_then(|known| session(known, now)),
            policy,
            is_policy_malformed,
            older: self.older,
            is_refused: self.refusal.is_some(),
            commit: self.observe_commit(experiment),
            shares_webhook: known.is_some_and(|known| self.shares_webhook(known)),
            candidates: self.candidates.iter().map(candidate).chain(malformed).collect(),
            has_webhook: self.webhook.is_some(),
            pods: server.map(|server| self.ready_pods(&server, now)).unwrap_or_default(),
            elapsed,
        }
    }

    fn ready_pods(&self, server: &str, now: Timestamp) -> Vec<rollout::Pod> {
        ready_pods(&self.pods, server, now).into_iter().map(|ready| ready.pod).collect()
    }

    /// Returns the policy with the policy server of its live revision or, if it has none, of its newest generation.
    fn observe_policy(&self, policy: &MaybeMalformed<K::Policy>) -> Option<Policy> {
        let live = self.live.as_ref().map(|live| &live.policy_server);
        let server = live.or(policy.0.as_ref().ok().map(|known| &known.spec().policy_server))?;
        Some(Policy { uid: policy.uid()?, server: server.clone() })
    }

    /// Returns whether the webhook of the live revision covers every request that the experiment decides about. Requests to services come
    /// to no webhook, and a configuration policy has no requests.
    fn shares_webhook(&self, experiment: &K) -> bool {
        let spec = &experiment.spec().policy;
        if spec.admission.is_none() {
            return true;
        }
        let coverage = |admission: &Option<Admission>| admission.as_ref().map(Admission::coverage);
        !spec.enabled || self.live.as_ref().is_some_and(|live| coverage(&live.admission) == coverage(&spec.admission))
    }

    fn observe_commit(&self, experiment: &MaybeMalformed<K>) -> Option<Commit> {
        let Intent { id, generation } = Intent::of(experiment)?;
        // The spec of a malformed experiment cannot be compared with that of the policy. To abort a commit that has copied it changes
        // nothing.
        let is_copied = experiment.0.as_ref().is_ok_and(|known| self.is_copied(known));
        Some(Commit { id: id.to_owned(), generation, is_copied })
    }

    /// Returns whether the policy shows that the commit in progress has copied the spec of the experiment.
    fn is_copied(&self, experiment: &K) -> bool {
        let intent = experiment.status().and_then(|status| status.commit.as_ref());
        let policy = self.policy.as_deref().and_then(|policy| policy.0.as_ref().ok());
        let (uid, committed) = (experiment.uid().unwrap_or_default(), &experiment.spec().policy);
        intent.zip(policy).is_some_and(|(intent, policy)| {
            CommittedExperiment::proves(intent, (uid.as_str(), committed), (policy.annotations(), policy.spec()))
        })
    }
}

/// Returns the policy with this name in the namespace of the experiment. A policy that is being deleted counts as deleted: its deletion
/// deletes its experiments.
fn find_policy<K: ExperimentObject>(
    name: &str,
    namespace: Option<&str>,
    context: &Context,
) -> Option<Arc<MaybeMalformed<K::Policy>>> {
    let found = K::Policy::cache(&context.caches).reader().get(name, namespace);
    found.filter(|policy| policy.meta().deletion_timestamp.is_none())
}

/// Returns the time at which a preview that was started at `start` stops by itself.
pub(super) fn expire_time(spec: &ExperimentSpec, start: &Time) -> Option<Time> {
    start.0.checked_add(time_to_live_or_longest(&spec.ttl)).ok().map(Time)
}

/// Returns the metadata of the last start; `None` before the first start. An older version of the API starts a preview
/// by a merge patch that does not remove `expireTime` and `stopCause`. Those of an earlier start are left out.
pub(super) fn preview<K: ExperimentObject>(experiment: &K) -> Option<PreviewMetadata> {
    let preview = experiment.status()?.preview_metadata.clone()?;
    let second = |time: &Time| time.0.as_second();
    let end = expire_time(experiment.spec(), &preview.start_time);
    if preview.expire_time.as_ref().map(second) == end.as_ref().map(second) {
        return Some(preview);
    }
    Some(PreviewMetadata { expire_time: None, stop_cause: None, ..preview })
}

/// Returns the last preview session; `None` before the first start.
fn session<K: ExperimentObject>(experiment: &K, now: Timestamp) -> Option<Session> {
    let preview = preview(experiment)?;
    let loaded = experiment.status().and_then(|status| status.previewed_start_time.as_ref());
    Some(Session {
        is_active: preview.state == PreviewState::Active,
        generation: preview.generation,
        start: preview.start_time.0.to_string(),
        // An older version recorded neither the end of a preview nor that it was loaded.
        was_loaded: preview.expire_time.is_none() || loaded == Some(&preview.start_time),
        expiry: preview.expiry(now),
        stop_reason: preview.stop_reason().unwrap_or(StopReason::Lasting),
    })
}

fn candidate(revision: &Revision) -> Candidate {
    let status = &revision.status;
    let initialized = status.conditions.condition(ConditionType::Initialized);
    let (policy, server) = (&revision.policy_ref, &revision.policy_server);
    Candidate {
        name: revision.name_any(),
        session: revision.experiment_ref.as_ref().map(|experiment| CandidateSession {
            generation: experiment.generation,
            policy: Policy { uid: policy.uid.clone(), server: server.clone() },
            start: revision.annotations().get(PREVIEW_START).cloned().unwrap_or_default(),
        }),
        is_enabled: revision.enabled,
        initialized: initialized.and_then(outcome),
        replicas: status.replicas.iter().map(replica).collect(),
        stopped: status.replicas.iter().filter(|it| has_stopped(it)).map(|it| replica(it).pod).collect(),
    }
}

/// Returns whether a replica evaluates the candidate no more, and has written its final counts; or cannot load it, and so never
/// evaluates it.
fn has_stopped(replica: &ReplicaStatus) -> bool {
    replica.ready == ConditionStatus::False || replica.reason == reasons::SUSPENDED
}
