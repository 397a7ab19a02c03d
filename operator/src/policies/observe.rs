//! What there is in the cluster about one policy.

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
use proviso_crds::conditions::{outcome, reasons};
use proviso_crds::names::BREAK_GLASS;
use proviso_crds::{ConditionType, Conditions as _};

use crate::context::{Context, Error};
use crate::guarded::{Guarded, Malformed};
use crate::kinds::{self, PolicyObject};
use crate::replicas::{ready_pods, replica};
use crate::revisions::Revision;
use crate::webhook;

/// A webhook configuration that is somebody's, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BreakGlass {
    /// As kubectl names it.
    pub configuration: String,
    pub why: String,
}

pub(super) struct Seen {
    pub revisions: Vec<Revision>,
    /// Revisions that cannot be read.
    pub malformed: Vec<Malformed>,
    pub validating: Option<Arc<ValidatingWebhookConfiguration>>,
    pub mutating: Option<Arc<MutatingWebhookConfiguration>>,
    /// The pods of all policy servers.
    pods: Vec<Arc<Pod>>,
}

impl Seen {
    pub async fn read<O: Resource>(policy: &O, context: &Context) -> Result<Self, Error> {
        let (caches, name) = (&context.caches, webhook::name(&kinds::id(policy)?));
        let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
        let (revisions, malformed) = context.reports.sort(caches.revisions.reader().by_key(&uid)).await;
        Ok(Self {
            revisions,
            malformed,
            validating: caches.validating.reader().get(&name, None),
            mutating: caches.mutating.reader().get(&name, None),
            pods: caches.pods.reader().store().state(),
        })
    }

    /// The same, as far as it matters to a decision.
    pub fn observed<K: PolicyObject>(&self, policy: &Guarded<K>, now: Timestamp, retire_after: Duration) -> Observed {
        let live = self.live();
        let spec = policy.0.as_ref().ok().map(PolicyObject::spec);
        let server = spec.map(|spec| &spec.policy_server);
        let known = self.revisions.iter().map(|it| observe(it, live, now));
        let unknown = self.malformed.iter().filter_map(|it| malformed(policy, it));
        Observed {
            generation: policy.meta().generation.unwrap_or_default(),
            is_enabled: spec.is_some_and(|spec| spec.enabled),
            is_deleted: policy.meta().deletion_timestamp.is_some(),
            live,
            is_held: self.break_glass().is_some(),
            revisions: known.chain(unknown).collect(),
            pods: server.map(|server| ready_pods(&self.pods, server)).unwrap_or_default(),
            history_limit: spec.map_or(usize::MAX, |spec| spec.revision_history_limit.try_into().unwrap_or(usize::MAX)),
            retire_after,
        }
    }

    /// The replicas in a revision's status that are gone for good: no pod has their name, and the policy server has not so many
    /// replicas that there will be one. A pod that is replaced writes its item itself.
    pub fn gone<'a>(&self, revision: &'a Revision, context: &Context) -> Vec<&'a str> {
        let server = context.caches.servers.reader().get(&revision.policy_server, None);
        let replicas = server.and_then(|server| Some(server.0.as_ref().ok()?.spec.replicas)).unwrap_or_default();
        let names = revision.status.replicas.iter().map(|replica| replica.name.as_str());
        let has_pod = |name: &str| self.pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name));
        names.filter(|name| !has_pod(name) && ordinal(name).is_none_or(|ordinal| ordinal >= replicas)).collect()
    }

    /// The webhook configuration that somebody has taken into their own hands, and why. The operator leaves both kinds as
    /// they are until the annotation is gone.
    pub fn break_glass(&self) -> Option<BreakGlass> {
        let validating = self.validating.as_ref().map(|it| ("validatingwebhookconfiguration", it.meta()));
        let mutating = self.mutating.as_ref().map(|it| ("mutatingwebhookconfiguration", it.meta()));
        validating.into_iter().chain(mutating).find_map(|(kind, metadata)| {
            Some(BreakGlass {
                configuration: format!("{kind}/{}", metadata.name.as_deref().unwrap_or_default()),
                why: metadata.annotations.as_ref()?.get(BREAK_GLASS)?.clone(),
            })
        })
    }

    /// The generation that the API server asks; if the webhook was deleted or spoilt by hand, the one that it should ask.
    /// While a policy turns from validating to mutating there are two.
    pub fn live(&self) -> Option<i64> {
        let validating = self.validating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let mutating = self.mutating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let asked = validating.chain(mutating).filter_map(generation).max();
        asked.or_else(|| self.revisions.iter().find(|it| it.is_marked_live()).map(|it| it.policy_ref.generation))
    }
}

/// The number at the end of the name of a `StatefulSet`'s pod.
fn ordinal(pod: &str) -> Option<i32> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// The generation that a webhook's path names.
fn generation(config: &WebhookClientConfig) -> Option<i64> {
    let path = config.service.as_ref()?.path.as_deref()?;
    Endpoint::parse(path).ok()?.generation?.try_into().ok()
}

fn observe(revision: &Revision, live: Option<i64>, now: Timestamp) -> rollout::Revision {
    let status = &revision.status;
    let generation = revision.policy_ref.generation;
    let was_live = status.conditions.condition(ConditionType::Live).filter(|_| live != Some(generation));
    rollout::Revision {
        generation,
        is_enabled: revision.enabled,
        initialized: status.conditions.condition(ConditionType::Initialized).and_then(outcome),
        replicas: status.replicas.iter().map(replica).collect(),
        replaced_for: was_live.map(|condition| match condition.status.as_str() {
            // The webhook has just moved on, or is about to.
            "True" => Duration::ZERO,
            _ => now.duration_since(condition.last_transition_time.0).try_into().unwrap_or_default(),
        }),
    }
}

/// The generation that a malformed revision has in its name.
pub(super) fn named(policy: &impl Resource, revision: &Malformed) -> Option<i64> {
    let id = kinds::id(policy).ok()?;
    revision.metadata.name.as_deref()?.strip_prefix(id.as_str())?.strip_prefix('-')?.parse().ok()
}

/// A revision of which nothing but its name is known: it does not work, and is let go like any other.
fn malformed(policy: &impl Resource, revision: &Malformed) -> Option<rollout::Revision> {
    let name = revision.metadata.name.as_deref().unwrap_or_default();
    let message = format!("its PolicyRevision is malformed: {}; delete {name}, and it is made again", revision.why);
    Some(rollout::Revision {
        generation: named(policy, revision)?,
        is_enabled: true,
        initialized: Some(Err(Failure { reason: reasons::MALFORMED, message })),
        replicas: Vec::new(),
        replaced_for: None,
    })
}
