//! What there is in the cluster about one policy.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt as _};
use proviso_core::Endpoint;
use proviso_core::rollout::{Failure, Observed, Replica, Revision};
use proviso_crds::{PolicyRevision, Readiness, ReplicaStatus};

use super::build::webhook_name;
use super::object::PolicyObject;
use super::{Context, Error};
use crate::objects::{POLICY_LABEL, SERVER_LABEL};

pub(super) struct Seen {
    pub revisions: Vec<PolicyRevision>,
    pub validating: Option<ValidatingWebhookConfiguration>,
    pub mutating: Option<MutatingWebhookConfiguration>,
    /// Of all policy servers.
    pods: Vec<Pod>,
}

impl Seen {
    pub async fn fetch<K: PolicyObject>(policy: &K, context: &Context) -> Result<Self, Error> {
        let (client, name) = (&context.client, webhook_name(&policy.id()?));
        let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
        let of_policy = ListParams::default().labels(&format!("{POLICY_LABEL}={uid}"));
        let of_servers = ListParams::default().labels(SERVER_LABEL);
        let (revisions, pods) = (
            Api::<PolicyRevision>::namespaced(client.clone(), &context.namespace),
            Api::<Pod>::namespaced(client.clone(), &context.namespace),
        );
        let (validating, mutating) = (Api::all(client.clone()), Api::all(client.clone()));
        let (revisions, pods, validating, mutating) = tokio::try_join!(
            revisions.list(&of_policy),
            pods.list(&of_servers),
            validating.get_opt(&name),
            mutating.get_opt(&name),
        )?;
        Ok(Self { revisions: revisions.items, validating, mutating, pods: pods.items })
    }

    /// The same, as far as it matters to a decision.
    pub fn observed<K: PolicyObject>(&self, policy: &K, now: Timestamp, retire_after: Duration) -> Observed {
        let live = self.live();
        Observed {
            generation: policy.meta().generation.unwrap_or_default(),
            is_enabled: policy.spec().enabled,
            is_deleted: policy.meta().deletion_timestamp.is_some(),
            live,
            revisions: self.revisions.iter().map(|it| revision(it, live, now)).collect(),
            pods: self
                .pods
                .iter()
                .filter(|pod| pod.labels().get(SERVER_LABEL) == Some(&policy.spec().policy_server) && is_ready(pod))
                .filter_map(pod)
                .collect(),
            history_limit: policy.spec().revision_history_limit.try_into().unwrap_or(usize::MAX),
            retire_after,
        }
    }

    /// The replicas that speak in a revision's status and are no more. A pod of the same name speaks for itself.
    pub fn gone<'a>(&self, revision: &'a PolicyRevision) -> impl Iterator<Item = &'a str> {
        let replicas = revision.status.iter().flat_map(|status| &status.replicas).map(|replica| replica.name.as_str());
        replicas.filter(|name| !self.pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name)))
    }

    /// The generation that the API server asks; if the webhook was deleted or spoilt by hand, the one that it should ask.
    /// While a policy turns from validating to mutating there are two.
    fn live(&self) -> Option<i64> {
        let validating = self.validating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let mutating = self.mutating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let asked = validating.chain(mutating).filter_map(generation).max();
        asked.or_else(|| self.revisions.iter().find(|it| is_marked_live(it)).map(|it| it.spec.policy_ref.generation))
    }
}

fn is_marked_live(revision: &PolicyRevision) -> bool {
    let conditions = revision.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Live" && condition.status == "True")
}

/// The generation that a webhook's path names.
fn generation(config: &WebhookClientConfig) -> Option<i64> {
    let path = config.service.as_ref()?.path.as_deref()?;
    Endpoint::parse(path).ok()?.generation?.try_into().ok()
}

fn revision(revision: &PolicyRevision, live: Option<i64>, now: Timestamp) -> Revision {
    let status = revision.status.clone().unwrap_or_default();
    let generation = revision.spec.policy_ref.generation;
    let condition = |name: &str| status.conditions.iter().find(|condition| condition.type_ == name);
    let was_live = condition("Live").filter(|_| live != Some(generation));
    Revision {
        generation,
        is_enabled: revision.spec.enabled,
        initialized: condition("Initialized").and_then(outcome),
        replicas: status.replicas.iter().map(replica).collect(),
        replaced_for: was_live.map(|condition| match condition.status.as_str() {
            // The webhook has just moved on, or is about to.
            "True" => Duration::ZERO,
            _ => now.duration_since(condition.last_transition_time.0).try_into().unwrap_or_default(),
        }),
    }
}

fn outcome(condition: &Condition) -> Option<Result<(), Failure>> {
    match condition.status.as_str() {
        "True" => Some(Ok(())),
        "False" => Some(Err(Failure { reason: condition.reason.clone(), message: condition.message.clone() })),
        _ => None,
    }
}

fn replica(status: &ReplicaStatus) -> Replica {
    let failure = || Failure { reason: status.reason.clone(), message: status.message.clone() };
    Replica {
        pod: proviso_core::rollout::Pod { name: status.name.clone(), uid: status.pod_uid.clone() },
        result: match status.ready {
            Readiness::True => Some(Ok(())),
            Readiness::False => Some(Err(failure())),
            Readiness::Unknown => None,
        },
    }
}

fn pod(pod: &Pod) -> Option<proviso_core::rollout::Pod> {
    Some(proviso_core::rollout::Pod { name: pod.name_any(), uid: pod.uid()? })
}

/// Ready, and not on its way out.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_ready && pod.meta().deletion_timestamp.is_none()
}
