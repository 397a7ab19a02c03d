//! The controller of policies, the same for both kinds. Every reconcile has the same steps: read the caches (`observe`), decide (`proviso_core::rollout`), build what there should be (`build`), apply it (`apply`), tell people
//! (`status`).

pub(crate) mod apply;
pub(crate) mod build;
pub(crate) mod object;
pub(crate) mod observe;
mod rollback;
mod status;

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{self, Action};
use kube::runtime::{applier, reflector::ObjectRef};
use kube::{Resource, ResourceExt as _};
use proviso_core::rollout;
use proviso_crds::RevisionRole;
use proviso_crds::names::{POLICY_LABEL, SERVER_LABEL};

use crate::authority;
use crate::cache::{self, Queue, Reader};
use crate::context::{CONCURRENCY, Context, DEBOUNCE, Error};
use crate::experiments::ExperimentObject as _;
use crate::guarded::Guarded;
use crate::metrics::ControllerLabels;
use crate::objects::{self, RESYNC, RETRY};
use crate::revisions::Revision;
use object::PolicyObject;

/// On a policy: its revisions go before it does.
const FINALIZER: &str = "proviso.dev/revisions";

/// Follows the policies of one kind until it is dropped.
pub(crate) async fn run<K: PolicyObject>(context: Arc<Context>) {
    let caches = &context.caches;
    let policies = K::cache(caches).reader();
    let name = K::plural(&()).into_owned();
    let labels = ControllerLabels { controller: name.clone() };
    let queue = Queue::new(context.metrics.queues.get_or_create(&labels).clone());
    let waiting = queue.waiting();
    queue
        .add_on(K::cache(caches), |policy| vec![ObjectRef::from_obj(policy)])
        .add_on(&caches.revisions, of_revision(policies.clone()))
        .add_on(K::Experiment::cache(caches), |experiment| of_experiment::<K>(experiment).into_iter().collect())
        .add_on(&caches.pods, of_pod(policies.clone()))
        .add_on(&caches.validating, of_label(policies.clone()))
        .add_on(&caches.mutating, of_label(policies.clone()));
    let queue = queue.stream(policies.store(), authority::changes(context.authority.clone()));
    caches.listed().await;
    let config = controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
    let metrics = Arc::clone(&context.metrics);
    let reconcile = |policy: Arc<Guarded<K>>, context| {
        waiting.begin(&policy);
        let (metrics, name) = (Arc::clone(&metrics), name.clone());
        async move { metrics.reconcile(&name, Box::pin(reconcile::<K>(policy, context))).await }.boxed()
    };
    applier(reconcile, on_error::<K>, Arc::clone(&context), policies.store(), queue, config)
        // Each error was reported where it came up.
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The policy of a revision, by its name: the revision may stand in the way of a policy of the same name. Candidate revisions do
/// not trigger a reconcile.
fn of_revision<K: PolicyObject>(
    policies: Reader<Guarded<K>>,
) -> impl Fn(&Guarded<Revision>) -> Vec<ObjectRef<Guarded<K>>> {
    let of_label = of_label(policies);
    move |revision| {
        let Ok(known) = &revision.0 else { return of_label(revision) };
        let policy = &known.policy_ref;
        let is_ours = policy.kind == K::KIND && known.role == RevisionRole::Live;
        is_ours.then(|| cache::reference(&policy.name, policy.namespace.as_deref())).into_iter().collect()
    }
}

/// The policy that waits for the end of an experiment.
fn of_experiment<K: PolicyObject>(experiment: &Guarded<K::Experiment>) -> Option<ObjectRef<Guarded<K>>> {
    let going = experiment.0.as_ref().ok().filter(|it| it.meta().deletion_timestamp.is_some())?;
    Some(cache::reference(&going.spec().policy_ref.name, going.namespace().as_deref()))
}

/// The policies of a pod's policy server.
fn of_pod<K: PolicyObject>(policies: Reader<Guarded<K>>) -> impl Fn(&Pod) -> Vec<ObjectRef<Guarded<K>>> {
    move |pod| {
        let server = pod.labels().get(SERVER_LABEL).cloned().unwrap_or_default();
        let of_server = |policy: &Guarded<K>| policy.0.as_ref().is_ok_and(|it| it.spec().policy_server == server);
        policies.store().state_filter(of_server).iter().map(|policy| ObjectRef::from_obj(&**policy)).collect()
    }
}

/// The policy that an object was made for.
fn of_label<K: PolicyObject, W: Resource>(policies: Reader<Guarded<K>>) -> impl Fn(&W) -> Vec<ObjectRef<Guarded<K>>> {
    move |object| object.labels().get(POLICY_LABEL).map(|uid| policies.references(uid)).unwrap_or_default()
}

async fn reconcile<K: PolicyObject>(policy: Arc<Guarded<K>>, context: Arc<Context>) -> Result<Action, Error> {
    context.reports.tell(&*policy).await;
    if context.bundle().is_none() {
        // That it is known comes as an event.
        return Ok(Action::await_change());
    }
    let is_deleted = policy.meta().deletion_timestamp.is_some();
    if is_deleted && !policy.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Action::await_change());
    }
    let api = object::api::<K>(&context.client, &*policy);
    if let Ok(known) = &policy.0
        && !is_deleted
        && (objects::add_finalizer(&api, &*policy, FINALIZER).await? || rollback::wanted(known, &context).await?)
    {
        // The change comes back as an event.
        return Ok(Action::await_change());
    }
    let seen = observe::Seen::read(&*policy, &context).await?;
    if policy.0.is_err() && !is_deleted {
        // What it asks for cannot be told. Until it can, what answers goes on.
        apply::keep(&*policy, &seen, &context).await?;
        return Ok(Action::requeue(RESYNC));
    }
    let observed = seen.observed(&policy, jiff::Timestamp::now(), context.retire_after);
    let decision = rollout::decide(&observed);
    apply::decision(&policy, &seen, &observed, &decision, &context).await?;
    if let Ok(known) = &policy.0
        && !is_deleted
    {
        status::write(known, &seen, &observed, &decision, &context).await?;
    }
    Ok(Action::requeue(decision.look_again.unwrap_or(RESYNC)))
}

#[allow(clippy::needless_pass_by_value, reason = "what a controller calls")]
fn on_error<K: PolicyObject>(policy: Arc<Guarded<K>>, error: &Error, _: Arc<Context>) -> Action {
    let policy = object::id(&*policy).map_or_else(|_| policy.name_any(), |id| id.to_string());
    tracing::warn!(policy, reason = error.reason(), %error, "reconcile failed; trying again");
    Action::requeue(RETRY)
}
