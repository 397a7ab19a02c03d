//! Deletes webhook configurations and revisions whose policy or experiment does not exist any more: somebody removed
//! its finalizer, or an operator that had lost its leadership wrote them late. No operator would reconcile them. Also deletes
//! old operations of the REST API.

mod operations;

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::rollout::DELETION_GRACE_PERIOD;
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::cache::{Cache, Cached, Reader};
use crate::caches::Caches;
use crate::context::Context;
use crate::kinds::Kind as _;
use crate::malformed::MaybeMalformed;
use crate::objects::{self, RESYNC, RETRY, ignore_not_found};
use crate::revisions::Revision;
use crate::webhook;

/// The caches of the objects that own webhook configurations and revisions.
#[derive(Clone, Debug)]
struct Owners {
    policies: Reader<MaybeMalformed<Policy>>,
    cluster_policies: Reader<MaybeMalformed<ClusterPolicy>>,
    experiments: Reader<MaybeMalformed<PolicyExperiment>>,
    cluster_experiments: Reader<MaybeMalformed<ClusterPolicyExperiment>>,
}

impl Owners {
    fn new(caches: &Caches) -> Self {
        Self {
            policies: caches.policies.reader(),
            cluster_policies: caches.cluster_policies.reader(),
            experiments: caches.experiments.reader(),
            cluster_experiments: caches.cluster_experiments.reader(),
        }
    }

    /// Returns whether the labels of the object name an owner that the caches do not have.
    fn is_orphan(&self, object: &impl Resource) -> bool {
        let lacks = |label: &str, has: &dyn Fn(&str) -> bool| object.labels().get(label).is_some_and(|uid| !has(uid));
        let has_policy =
            |uid: &str| !self.policies.references(uid).is_empty() || !self.cluster_policies.references(uid).is_empty();
        let has_experiment = |uid: &str| {
            !self.experiments.references(uid).is_empty() || !self.cluster_experiments.references(uid).is_empty()
        };
        lacks(POLICY_LABEL, &has_policy) || lacks(EXPERIMENT_LABEL, &has_experiment)
    }
}

/// The policy or the experiment that an object belongs to, by the name of the object.
struct Owner {
    id: PolicyId,
    is_experiment: bool,
}

impl Owner {
    fn of_webhook(name: &str) -> Option<Self> {
        let of_experiment = webhook::experiment_of(name).map(|id| Self { id, is_experiment: true });
        of_experiment.or_else(|| webhook::policy_of(name).map(|id| Self { id, is_experiment: false }))
    }

    fn of_revision(name: &str) -> Option<Self> {
        let (id, generation) = name.rsplit_once('-')?;
        generation.parse::<i64>().ok()?;
        match id.strip_prefix("experiment.") {
            Some(id) => Some(Self { id: id.parse().ok()?, is_experiment: true }),
            None => Some(Self { id: id.parse().ok()?, is_experiment: false }),
        }
    }

    /// Reads the owner from the API server, because a cache may be late.
    async fn find(&self, client: &Client) -> kube::Result<Option<ObjectMeta>> {
        let name = self.id.name();
        match (self.is_experiment, self.id.namespace()) {
            (false, Some(namespace)) => find(&Policy::all(client, namespace), name).await,
            (false, None) => find(&ClusterPolicy::all(client, ""), name).await,
            (true, Some(namespace)) => find(&PolicyExperiment::all(client, namespace), name).await,
            (true, None) => find(&ClusterPolicyExperiment::all(client, ""), name).await,
        }
    }
}

async fn find<K>(api: &Api<K>, name: &str) -> kube::Result<Option<ObjectMeta>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    match api.get_metadata(name).await {
        Ok(found) => Ok(Some(found.metadata)),
        // An API server that does not serve the kind, for example because it is starting, does not name the object.
        Err(kube::Error::Api(status))
            if status.is_not_found() && status.details.as_ref().is_some_and(|details| details.name == name) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Deletes orphans and old operations. Runs until the future is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    tokio::join!(delete_orphans(&context), operations::delete_old(&context));
}

/// Deletes orphans at the start, when an owner disappears, when a new orphan appears, and with each resync. Never
/// returns.
async fn delete_orphans(context: &Context) {
    let caches = &context.caches;
    let (owners, changed) = (Owners::new(caches), Arc::new(Notify::new()));
    notify_of_removals(&caches.policies, &changed);
    notify_of_removals(&caches.cluster_policies, &changed);
    notify_of_removals(&caches.experiments, &changed);
    notify_of_removals(&caches.cluster_experiments, &changed);
    notify_of_orphans(&caches.revisions, &owners, &changed);
    notify_of_orphans(&caches.validating, &owners, &changed);
    notify_of_orphans(&caches.mutating, &owners, &changed);
    caches.listed().await;
    loop {
        let pause = if sweep(&owners, context).await { RESYNC } else { RETRY };
        tokio::select! {
            // The revisions of a deleted webhook still answer for a while.
            () = changed.notified() => tokio::time::sleep(DELETION_GRACE_PERIOD).await,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn notify_of_removals<K: Cached>(cache: &Cache<K>, changed: &Arc<Notify>) {
    let (objects, changed) = (cache.reader(), Arc::clone(changed));
    cache.listen(move |object| {
        let found = objects.get(&object.name_any(), object.namespace().as_deref());
        if found.is_none_or(|found| found.uid() != object.uid()) {
            changed.notify_one();
        }
    });
}

fn notify_of_orphans<K: Cached>(cache: &Cache<K>, owners: &Owners, changed: &Arc<Notify>) {
    let (owners, changed) = (owners.clone(), Arc::clone(changed));
    cache.listen(move |object| {
        if owners.is_orphan(object) {
            changed.notify_one();
        }
    });
}

/// Deletes the orphans that the caches have. Returns whether no request failed.
async fn sweep(owners: &Owners, context: &Context) -> bool {
    // First, so that the revisions of a webhook that is deleted now stay until the next sweep.
    let revisions = sweep_revisions(owners, context).await;
    let validating = sweep_webhooks(&context.caches.validating, owners, context).await;
    let mutating = sweep_webhooks(&context.caches.mutating, owners, context).await;
    revisions && validating && mutating
}

async fn sweep_webhooks<W>(cache: &Cache<W>, owners: &Owners, context: &Context) -> bool
where
    W: Cached<Sent = W> + DeserializeOwned,
{
    let (api, mut is_complete) = (Api::<W>::all(context.client.clone()), true);
    for webhook in cache.reader().store().state().iter().filter(|webhook| owners.is_orphan(&***webhook)) {
        let name = webhook.name_any();
        // A configuration of another name is not from the operator.
        let Some(owner) = Owner::of_webhook(&name) else { continue };
        let result = async {
            // The controller of a new owner of the same name reconciles the webhook.
            if owner.find(&context.client).await?.is_some() {
                return Ok(false);
            }
            // Only this version: somebody may have created the owner again in the meantime.
            let only = Preconditions { uid: webhook.uid(), resource_version: webhook.resource_version() };
            let delete = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
            ignore_not_found(api.delete(&name, &delete).await).map(|()| true)
        };
        is_complete &= log(&name, &owner, &result.await);
    }
    is_complete
}

/// Deletes the revisions without an owner that no webhook configuration of the same owner calls any more.
async fn sweep_revisions(owners: &Owners, context: &Context) -> bool {
    let caches = &context.caches;
    let (validating, mutating) = (caches.validating.reader(), caches.mutating.reader());
    let has_webhook = |uid: &String| !validating.references(uid).is_empty() || !mutating.references(uid).is_empty();
    let api = Api::<MaybeMalformed<PolicyRevision>>::namespaced(context.client.clone(), &context.namespace);
    let mut is_complete = true;
    for revision in caches.revisions.reader().store().state().iter().filter(|it| owners.is_orphan(&***it)) {
        let (name, uids) = (revision.name_any(), uids(revision));
        let Some(owner) = Owner::of_revision(&name).filter(|_| !uids.iter().any(has_webhook)) else { continue };
        let result = async {
            let found = owner.find(&context.client).await?;
            if found.and_then(|found| found.uid).is_some_and(|uid| uids.contains(&uid)) {
                return Ok(false);
            }
            objects::delete(&api, &**revision).await.map(|()| true)
        };
        is_complete &= log(&name, &owner, &result.await);
    }
    is_complete
}

/// Returns the uids of the owner of a revision: those in its labels and in its spec, because somebody may have changed
/// the labels.
fn uids(revision: &MaybeMalformed<Revision>) -> Vec<String> {
    let labels = [POLICY_LABEL, EXPERIMENT_LABEL].into_iter().filter_map(|label| revision.labels().get(label));
    let known = revision.0.as_ref().ok();
    let policy = known.map(|known| &known.policy_ref.uid);
    let experiment = known.and_then(|known| known.experiment_ref.as_ref()).map(|experiment| &experiment.uid);
    labels.chain(policy).chain(experiment).cloned().collect()
}

/// Logs the result of an attempt to delete an orphan. Returns whether the attempt did not fail.
fn log(object: &str, owner: &Owner, result: &kube::Result<bool>) -> bool {
    let policy = owner.id.as_str();
    match result {
        Ok(true) => tracing::info!(object, policy, "deleted: its policy or experiment does not exist"),
        Ok(false) => {}
        Err(error) => tracing::warn!(object, policy, %error, "cannot delete an object without a policy; trying again"),
    }
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::mock_api::MockApi;

    const WEBHOOK: &str = "proviso-cluster.gone";

    fn webhook(name: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {POLICY_LABEL: "gone"}}})
    }

    fn revision(name: &str, label: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "proviso", "labels": {label: "gone"}},
            "spec": {"data": "malformed"},
        })
    }

    async fn calls(api: &MockApi, context: &Context) -> Vec<String> {
        assert!(sweep(&Owners::new(&context.caches), context).await, "a request failed");
        api.calls()
    }

    #[tokio::test]
    async fn orphans_are_deleted_webhooks_first() {
        let api = MockApi::default();
        let context = api.context();
        let configuration = api.put(&context.caches.validating, webhook(WEBHOOK));
        api.put(&context.caches.revisions, revision("cluster.gone-1", POLICY_LABEL));
        api.put(&context.caches.revisions, revision("experiment.ns.team.e-2", EXPERIMENT_LABEL));
        // All of them have the same uid, so the webhook keeps both revisions.
        let delete_webhook = format!("DELETE validatingwebhookconfigurations/{WEBHOOK}");
        assert_eq!(calls(&api, &context).await, ["GET clusterpolicies/gone", &delete_webhook]);
        context.caches.validating.apply_event(Event::Delete((*configuration).clone()));
        let mut revisions = calls(&api, &context).await;
        revisions.sort_unstable();
        let expected = [
            "DELETE policyrevisions/cluster.gone-1",
            "DELETE policyrevisions/experiment.ns.team.e-2",
            "GET clusterpolicies/gone",
            "GET policyexperiments/e",
        ];
        assert_eq!(revisions, expected);
    }

    #[tokio::test]
    async fn an_owner_that_only_the_cache_lacks_keeps_its_objects() {
        let api = MockApi::default();
        let context = api.context();
        api.put(&context.caches.mutating, webhook(WEBHOOK));
        api.put(&context.caches.revisions, revision("cluster.gone-1", POLICY_LABEL));
        // A cache that no controller reads.
        let elsewhere = Cache::<MaybeMalformed<ClusterPolicy>>::default();
        api.put(&elsewhere, json!({"metadata": {"name": "gone", "uid": "gone"}}));
        assert_eq!(calls(&api, &context).await, ["GET clusterpolicies/gone"]);
        let configuration = context.caches.mutating.reader().get(WEBHOOK, None).unwrap();
        context.caches.mutating.apply_event(Event::Delete((*configuration).clone()));
        assert_eq!(calls(&api, &context).await, ["GET clusterpolicies/gone"]);
    }

    #[tokio::test]
    async fn objects_with_an_owner_or_of_other_tools_cause_no_request() {
        let api = MockApi::default();
        let context = api.context();
        api.put(&context.caches.validating, webhook("of-another-tool"));
        api.put(&context.caches.validating, json!({"metadata": {"name": "proviso-operator"}}));
        api.put(&context.caches.cluster_policies, json!({"metadata": {"name": "a", "uid": "here"}}));
        let mut owned = webhook("proviso-cluster.a");
        owned["metadata"]["labels"][POLICY_LABEL] = "here".into();
        api.put(&context.caches.validating, owned);
        assert!(calls(&api, &context).await.is_empty());
    }
}
