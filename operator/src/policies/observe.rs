//! The objects of the cluster that concern one policy.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt as _};
use proviso_core::rollout::{self, Observed};
use proviso_core::{Endpoint, Failure};
use proviso_crds::conditions::outcome;
use proviso_crds::names::BREAK_GLASS;
use proviso_crds::reasons;
use proviso_crds::{ConditionType, Conditions as _};

use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::malformed::{Malformed, MaybeMalformed};
use crate::replicas::{ready_pods, replica};
use crate::revisions::Revision;
use crate::webhook;

/// A webhook configuration with the break-glass annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BreakGlass {
    /// The kind and name of the configuration, as kubectl takes them.
    pub configuration: String,
    pub reason: String,
}

pub(super) struct ObservedObjects {
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
        let (caches, name) = (&context.caches, webhook::name(&kinds::id(policy)?));
        let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
        let (revisions, malformed) = context.reports.partition(caches.revisions.reader().by_key(&uid)).await;
        Ok(Self {
            revisions,
            malformed,
            validating: caches.validating.reader().get(&name, None),
            mutating: caches.mutating.reader().get(&name, None),
            pods: caches.pods.reader().store().state(),
        })
    }

    /// Converts the objects to the input of a decision.
    pub fn observed<K: PolicyObject>(
        &self,
        policy: &MaybeMalformed<K>,
        now: Timestamp,
        retire_after: Duration,
    ) -> Observed {
        let live = self.live();
        let spec = policy.0.as_ref().ok().map(PolicyObject::spec);
        let server = spec.map(|spec| &spec.policy_server);
        let known = self.revisions.iter().map(|it| observe_revision(it, live, now));
        let unknown = self.malformed.iter().filter_map(|it| observe_malformed(policy, it));
        Observed {
            generation: policy.meta().generation.unwrap_or_default(),
            is_enabled: spec.is_some_and(|spec| spec.enabled),
            is_deleted: policy.meta().deletion_timestamp.is_some(),
            live,
            is_break_glass: self.break_glass().is_some(),
            revisions: known.chain(unknown).collect(),
            pods: server.map(|server| ready_pods(&self.pods, server)).unwrap_or_default(),
            history_limit: spec.map_or(usize::MAX, |spec| spec.revision_history_limit.try_into().unwrap_or(usize::MAX)),
            retire_after,
        }
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

    /// Returns the live generation: the one that the webhook calls or, if the webhook was deleted or changed by hand,
    /// the one that is marked live. While a policy turns from validating to mutating, there are two webhooks, and the
    /// newer generation counts.
    pub fn live(&self) -> Option<i64> {
        let validating = self.validating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let mutating = self.mutating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let in_webhook = validating.chain(mutating).filter_map(generation).max();
        in_webhook.or_else(|| self.revisions.iter().find(|it| it.is_marked_live()).map(|it| it.policy_ref.generation))
    }
}

/// Returns the ordinal of a pod of a `StatefulSet`, from its name.
fn ordinal(pod: &str) -> Option<i32> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// Returns the generation in the path of a webhook.
fn generation(config: &WebhookClientConfig) -> Option<i64> {
    let path = config.service.as_ref()?.path.as_deref()?;
    Endpoint::parse(path).ok()?.generation?.try_into().ok()
}

fn observe_revision(revision: &Revision, live: Option<i64>, now: Timestamp) -> rollout::Revision {
    let status = &revision.status;
    let generation = revision.policy_ref.generation;
    let was_live = status.conditions.condition(ConditionType::Live).filter(|_| live != Some(generation));
    rollout::Revision {
        generation,
        is_enabled: revision.enabled,
        initialized: status.conditions.condition(ConditionType::Initialized).and_then(outcome),
        replicas: status.replicas.iter().map(replica).collect(),
        retired_for: was_live.map(|condition| match condition.status.as_str() {
            // The webhook names another generation, and the condition is not updated yet.
            "True" => Duration::ZERO,
            _ => now.duration_since(condition.last_transition_time.0).try_into().unwrap_or_default(),
        }),
    }
}

/// Returns the generation in the name of a malformed revision.
pub(super) fn generation_in_name(policy: &impl Resource, revision: &Malformed) -> Option<i64> {
    let id = kinds::id(policy).ok()?;
    revision.metadata.name.as_deref()?.strip_prefix(id.as_str())?.strip_prefix('-')?.parse().ok()
}

/// Converts a malformed revision, of which only the metadata is known, to a failed revision, so that it is deleted like any
/// other revision.
fn observe_malformed(policy: &impl Resource, revision: &Malformed) -> Option<rollout::Revision> {
    let name = revision.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "its PolicyRevision is malformed: {}; delete {name}, and the operator creates it again",
        revision.error
    );
    Some(rollout::Revision {
        generation: generation_in_name(policy, revision)?,
        is_enabled: true,
        initialized: Some(Err(Failure { reason: reasons::MALFORMED, message })),
        replicas: Vec::new(),
        retired_for: None,
    })
}
