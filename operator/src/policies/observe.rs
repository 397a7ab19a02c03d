//! The objects of the cluster that concern one policy.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{Resource, ResourceExt as _};
use proviso_core::caller_token::split_token;
use proviso_core::rollout::{self, Mark, Observed, WebhookKind};
use proviso_core::{Endpoint, Failure, PolicyId};
use proviso_crds::conditions::outcome;
use proviso_crds::names::BREAK_GLASS;
use proviso_crds::reasons;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, MAX_REVISION_HISTORY};

use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::malformed::{Malformed, MaybeMalformed};
use crate::replicas::{elapsed, ready_pods, replica};
use crate::revisions::Revision;
use crate::tenants;
use crate::usage::CountedKind;
use crate::webhook;

/// The precision of the times in conditions, which are rounded down.
const PRECISION: Duration = Duration::from_secs(1);

/// A webhook configuration with the break-glass annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BreakGlass {
    /// The kind and name of the configuration, as kubectl takes them.
    pub configuration: String,
    pub reason: String,
}

pub(super) struct ObservedObjects {
    pub id: PolicyId,
    pub revisions: Vec<Revision>,
    /// Revisions that cannot be read.
    pub malformed: Vec<Malformed>,
    pub validating: Option<Arc<ValidatingWebhookConfiguration>>,
    pub mutating: Option<Arc<MutatingWebhookConfiguration>>,
    /// The pods of all policy servers.
    pods: Vec<Arc<Pod>>,
}

impl ObservedObjects {
    pub async fn read<O: Resource>(policy: &O, context: &Context) -> Result<Self, Error> {
        let (caches, id) = (&context.caches, kinds::id(policy)?);
        let name = webhook::name(&id);
        let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
        let (revisions, malformed) = context.reports.partition(caches.revisions.reader().by_key(&uid)).await;
        Ok(Self {
            id,
            revisions,
            malformed,
            validating: caches.validating.reader().get(&name, None),
            mutating: caches.mutating.reader().get(&name, None),
            pods: caches.pods.reader().store().state(),
        })
    }

    /// Returns the revision of the newest generation; `None` if there is none, or if it is malformed.
    pub fn newest(&self, policy: &impl Resource) -> Option<&Revision> {
        self.revisions.iter().find(|revision| Some(revision.policy_ref.generation) == policy.meta().generation)
    }

    /// Converts the objects to the input of a decision. `not_unique` is the failure of a request policy whose name or priority another
    /// policy has.
    pub fn observed<K: PolicyObject>(
        &self,
        policy: &MaybeMalformed<K>,
        not_unique: Option<Failure>,
        now: Timestamp,
        context: &Context,
    ) -> Observed {
        let spec = policy.0.as_ref().ok().map(PolicyObject::spec);
        let needs_replicas = spec.is_none_or(|spec| spec.configuration.is_none());
        let server = spec.map(|spec| &spec.policy_server).filter(|_| needs_replicas);
        let reported_live = policy.0.as_ref().ok().and_then(|policy| policy.status()?.live_generation);
        let known = self.revisions.iter().map(|it| observe_revision(it, now));
        // The status of a malformed revision is unknown, but the status of the policy reports the live generation.
        let has_record = self.revisions.iter().any(Revision::is_marked_live);
        let malformed_live = reported_live.filter(|_| !has_record);
        let unknown = self.malformed.iter().filter_map(|it| observe_malformed(policy, it, malformed_live));
        Observed {
            generation: policy.meta().generation.unwrap_or_default(),
            needs_replicas,
            is_enabled: spec.is_some_and(|spec| spec.enabled),
            is_deleted: policy.meta().deletion_timestamp.is_some(),
            refusal: policy.0.as_ref().ok().and_then(|known| self.refusal(known, context)).or(not_unique),
            reported_live,
            webhooks: self.webhooks(now),
            is_break_glass: needs_replicas && self.break_glass().is_some(),
            revisions: known.chain(unknown).collect(),
            pods: server.map(|server| ready_pods(&self.pods, server, now)).unwrap_or_default(),
            history_limit: spec.map_or(usize::MAX, |spec| {
                spec.revision_history_limit.min(MAX_REVISION_HISTORY).try_into().unwrap_or(usize::MAX)
            }),
            retire_after: context.retire_after,
        }
    }

    /// Returns the reason why the newest generation may not become live. The limits of the namespace matter only while the
    /// generation has no revision.
    fn refusal<K: PolicyObject>(&self, policy: &K, context: &Context) -> Option<Failure> {
        let spec = policy.spec();
        if let Some(failure) = tenants::refusal(policy, "spec", &spec.policy_server, spec, context) {
            return Some(failure);
        }
        let (namespace, generation) = (policy.namespace()?, policy.meta().generation);
        let is_new = self.revisions.iter().all(|revision| Some(revision.policy_ref.generation) != generation);
        if !is_new {
            return None;
        }
        let age = (policy.creation_timestamp().map(|time| time.0), policy.uid().unwrap_or_default());
        context.usage.refusal_of_revision(CountedKind::Policy, &namespace, (&policy.name_any(), &age), spec)
    }

    fn webhooks(&self, now: Timestamp) -> Vec<rollout::Webhook> {
        let validating = self.validating.iter().map(|it| {
            let configs = it.webhooks.iter().flatten().map(|webhook| &webhook.client_config);
            self.webhook(WebhookKind::Validating, it.meta(), configs, now)
        });
        let mutating = self.mutating.iter().map(|it| {
            let configs = it.webhooks.iter().flatten().map(|webhook| &webhook.client_config);
            self.webhook(WebhookKind::Mutating, it.meta(), configs, now)
        });
        validating.chain(mutating).collect()
    }

    fn webhook<'a>(
        &self,
        kind: WebhookKind,
        metadata: &ObjectMeta,
        configs: impl Iterator<Item = &'a WebhookClientConfig>,
        now: Timestamp,
    ) -> rollout::Webhook {
        let calls = configs.filter_map(|config| generation(config, &self.id)).collect();
        rollout::Webhook { kind, calls, age: elapsed(metadata.creation_timestamp.as_ref(), now) }
    }

    /// Returns the replicas in the status of a revision that will not come back: no pod has their name, and the
    /// policy server has too few replicas to create such a pod. A pod that is replaced writes its own item again.
    pub fn removed_replicas<'a>(&self, revision: &'a Revision, context: &Context) -> Vec<&'a str> {
        let server = context.caches.servers.reader().get(&revision.policy_server, None);
        let replicas = server.and_then(|server| Some(server.0.as_ref().ok()?.spec.replicas)).unwrap_or_default();
        let names = revision.status.replicas.iter().map(|replica| replica.name.as_str());
        let has_pod = |name: &str| self.pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name));
        names.filter(|name| !has_pod(name) && ordinal(name).is_none_or(|ordinal| ordinal >= replicas)).collect()
    }

    /// Returns the webhook configuration with the break-glass annotation, if there is one. The operator leaves the
    /// configurations of both kinds unchanged until the annotation is removed.
    pub fn break_glass(&self) -> Option<BreakGlass> {
        let validating = self.validating.as_ref().map(|it| ("validatingwebhookconfiguration", it.meta()));
        let mutating = self.mutating.as_ref().map(|it| ("mutatingwebhookconfiguration", it.meta()));
        validating.into_iter().chain(mutating).find_map(|(kind, metadata)| {
            Some(BreakGlass {
                configuration: format!("{kind}/{}", metadata.name.as_deref().unwrap_or_default()),
                reason: metadata.annotations.as_ref()?.get(BREAK_GLASS)?.clone(),
            })
        })
    }
}

/// Returns the ordinal of a pod of a `StatefulSet`, from its name.
fn ordinal(pod: &str) -> Option<i32> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// Returns the generation in the path of a webhook; `None` if the path is not of this policy.
fn generation(config: &WebhookClientConfig, policy: &PolicyId) -> Option<i64> {
    let path = config.service.as_ref()?.path.as_deref()?;
    // A token that is not current changes nothing about the generation that the webhook calls.
    let (_, path) = split_token(path);
    let endpoint = Endpoint::parse(path).ok().filter(|endpoint| endpoint.policy == *policy)?;
    endpoint.generation?.try_into().ok()
}

fn observe_revision(revision: &Revision, now: Timestamp) -> rollout::Revision {
    let status = &revision.status;
    let initialized = status.conditions.condition(ConditionType::Initialized);
    let (created, prepared) = (&revision.metadata.creation_timestamp, initialized.map(|it| &it.last_transition_time));
    let live = status.conditions.condition(ConditionType::Live);
    rollout::Revision {
        generation: revision.policy_ref.generation,
        is_enabled: revision.enabled,
        initialized: initialized.and_then(outcome),
        waiting_for: elapsed(created.iter().chain(prepared).max_by_key(|time| time.0), now),
        replicas: status.replicas.iter().map(replica).collect(),
        mark: live.map(mark),
        marked_for: live.map(|it| marked_for(it, now)).unwrap_or_default(),
        webhook: revision
            .admission
            .as_ref()
            .map(|admission| if admission.mutating { WebhookKind::Mutating } else { WebhookKind::Validating }),
    }
}

/// Returns the mark that the condition `Live` of a revision stores: see `mark_state` in `apply`.
fn mark(live: &Condition) -> Mark {
    if live.status == ConditionStatus::True.as_str() {
        Mark::Live
    } else if live.status == ConditionStatus::False.as_str() {
        Mark::Retired
    } else {
        Mark::Called
    }
}

/// Returns the time for which the condition certainly has its status.
fn marked_for(live: &Condition, now: Timestamp) -> Duration {
    elapsed(Some(&live.last_transition_time), now).saturating_sub(PRECISION)
}

/// Returns the generation in the name of a malformed revision.
pub(super) fn generation_in_name(policy: &impl Resource, revision: &Malformed) -> Option<i64> {
    let id = kinds::id(policy).ok()?;
    revision.metadata.name.as_deref()?.strip_prefix(id.as_str())?.strip_prefix('-')?.parse().ok()
}

/// Converts a malformed revision, of which only the metadata is known, to a failed revision, so that it is deleted like any
/// other revision. `live` is the live generation if no readable revision is live.
fn observe_malformed(policy: &impl Resource, revision: &Malformed, live: Option<i64>) -> Option<rollout::Revision> {
    let generation = generation_in_name(policy, revision)?;
    let name = revision.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "its PolicyRevision is malformed: {}; delete {name}, and the operator creates it again",
        revision.error
    );
    Some(rollout::Revision {
        generation,
        is_enabled: true,
        initialized: Some(Err(Failure { reason: reasons::MALFORMED, message })),
        waiting_for: Duration::ZERO,
        replicas: Vec::new(),
        mark: (live == Some(generation)).then_some(Mark::Live),
        marked_for: Duration::ZERO,
        webhook: None,
    })
}
