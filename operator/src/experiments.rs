//! The controller of experiments (AIP-236), the same for both kinds. Every reconcile has the same steps: read the caches
//! (`observe`), decide (`proviso_core::experiment::rollout`), build what there should be (`build`), apply it (`apply`),
//! tell people (`status`). What people or the API started and stopped it only looks at, but for what starts by itself and what
//! an update suspends.

mod apply;
pub(crate) mod build;
pub(crate) mod cascade;
mod object;
mod observe;
mod status;

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{self, Action};
use kube::runtime::{applier, reflector::ObjectRef};
use kube::{Resource, ResourceExt as _};
use proviso_core::experiment::rollout;
use proviso_crds::names::EXPERIMENT_LABEL;

use crate::authority;
use crate::cache::{self, Queue, Reader, experiments_of};
use crate::context::{CONCURRENCY, Context, DEBOUNCE, Error};
use crate::guarded::Guarded;
use crate::metrics::ControllerLabels;
use crate::objects::{self, RESYNC, RETRY};
use crate::policies::object::{PolicyObject, id as id_of};
use crate::revisions::Revision;

pub(crate) use object::ExperimentObject;

/// On an experiment: its candidate and its webhook go before it does.
const FINALIZER: &str = "proviso.dev/preview";

/// Follows the experiments of one kind until it is dropped.
pub(crate) async fn run<K: ExperimentObject>(context: Arc<Context>) {
    let caches = &context.caches;
    let experiments = K::cache(caches).reader();
    let name = K::plural(&()).into_owned();
    let labels = ControllerLabels { controller: name.clone() };
    let queue = Queue::new(context.metrics.queues.get_or_create(&labels).clone());
    let waiting = queue.waiting();
    queue
        .add_on(K::cache(caches), |experiment| vec![ObjectRef::from_obj(experiment)])
        .add_on(K::cache(caches), siblings(experiments.clone()))
        .add_on(&caches.revisions, of_revision(experiments.clone()))
        .add_on(K::Policy::cache(caches), of_policy(experiments.clone()))
        .add_on(&caches.pods, of_pod(experiments.clone()))
        .add_on(&caches.validating, of_label(experiments.clone()));
    let queue = queue.stream(experiments.store(), authority::changes(context.authority.clone()));
    caches.listed().await;
    let config = controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
    let metrics = Arc::clone(&context.metrics);
    let reconcile = |experiment: Arc<Guarded<K>>, context| {
        waiting.begin(&experiment);
        let (metrics, name) = (Arc::clone(&metrics), name.clone());
        async move { metrics.reconcile(&name, Box::pin(reconcile::<K>(experiment, context))).await }.boxed()
    };
    applier(reconcile, on_error::<K>, Arc::clone(&context), experiments.store(), queue, config)
        // Each error was reported where it came up.
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The experiment of a candidate; for a live revision, all experiments of its policy: they are compared with what is live.
fn of_revision<K: ExperimentObject>(
    experiments: Reader<Guarded<K>>,
) -> impl Fn(&Guarded<Revision>) -> Vec<ObjectRef<Guarded<K>>> {
    let of_label = of_label(experiments.clone());
    move |revision| {
        let Ok(known) = &revision.0 else { return of_label(revision) };
        let policy = &known.policy_ref;
        if policy.kind != K::Policy::KIND {
            return Vec::new();
        }
        match &known.experiment_ref {
            Some(experiment) if revision.labels().contains_key(EXPERIMENT_LABEL) => {
                vec![cache::reference(&experiment.name, policy.namespace.as_deref())]
            }
            _ => experiments.references(&experiments_of(&policy.name, policy.namespace.as_deref())),
        }
    }
}

fn of_policy<K: ExperimentObject>(
    experiments: Reader<Guarded<K>>,
) -> impl Fn(&Guarded<K::Policy>) -> Vec<ObjectRef<Guarded<K>>> {
    move |policy| experiments.references(&experiments_of(&policy.name_any(), policy.namespace().as_deref()))
}

/// The experiments of the same policy: an experiment that goes makes room for one of them.
fn siblings<K: ExperimentObject>(
    experiments: Reader<Guarded<K>>,
) -> impl Fn(&Guarded<K>) -> Vec<ObjectRef<Guarded<K>>> {
    move |going| match &going.0 {
        Ok(known) if known.meta().deletion_timestamp.is_some() => {
            experiments.references(&experiments_of(&known.spec().policy_ref.name, going.namespace().as_deref()))
        }
        _ => Vec::new(),
    }
}

/// The experiments that may be on the pod: the live revision of a policy says which policy server serves it.
fn of_pod<K: ExperimentObject>(experiments: Reader<Guarded<K>>) -> impl Fn(&Pod) -> Vec<ObjectRef<Guarded<K>>> {
    move |_| {
        let was_seen = |it: &Guarded<K>| it.0.as_ref().is_ok_and(|known| known.status().is_some());
        experiments.store().state_filter(was_seen).iter().map(|it| ObjectRef::from_obj(&**it)).collect()
    }
}

/// The experiment that an object was made for.
fn of_label<K: ExperimentObject, O: Resource>(
    experiments: Reader<Guarded<K>>,
) -> impl Fn(&O) -> Vec<ObjectRef<Guarded<K>>> {
    move |object| object.labels().get(EXPERIMENT_LABEL).map(|uid| experiments.references(uid)).unwrap_or_default()
}

async fn reconcile<K: ExperimentObject>(experiment: Arc<Guarded<K>>, context: Arc<Context>) -> Result<Action, Error> {
    context.reports.tell(&*experiment).await;
    if context.bundle().is_none() {
        // That it is known comes as an event.
        return Ok(Action::await_change());
    }
    let is_deleted = experiment.meta().deletion_timestamp.is_some();
    if is_deleted && !experiment.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Action::await_change());
    }
    if experiment.0.is_err() && !is_deleted {
        // What it asks for cannot be told. Until it can, what is previewed goes on.
        return Ok(Action::requeue(RESYNC));
    }
    let api = object::api::<K>(&context.client, &*experiment);
    if !is_deleted && objects::add_finalizer(&api, &*experiment, FINALIZER).await? {
        // The change comes back as an event.
        return Ok(Action::await_change());
    }
    let seen = observe::Seen::read(&*experiment, &context).await?;
    let observed = seen.observed(&experiment, jiff::Timestamp::now());
    let decision = rollout::decide(&observed);
    if apply::decision(&*experiment, &seen, &observed, &decision, &context).await?.is_break() {
        // The change comes back as an event.
        return Ok(Action::await_change());
    }
    if decision.is_gone {
        context.with_counted(|counted| counted.remove(&experiment.uid().unwrap_or_default()));
        return Ok(Action::await_change());
    }
    let mut look_again = decision.look_again;
    if let Ok(known) = &experiment.0
        && !is_deleted
    {
        let later = status::write(known, &seen, &decision, &context).await?;
        look_again = look_again.into_iter().chain(later).min();
    }
    let otherwise = if is_deleted { RETRY } else { RESYNC };
    Ok(Action::requeue(look_again.unwrap_or(otherwise)))
}

#[allow(clippy::needless_pass_by_value, reason = "what a controller calls")]
fn on_error<K: ExperimentObject>(experiment: Arc<Guarded<K>>, error: &Error, _: Arc<Context>) -> Action {
    let experiment = id_of(&*experiment).map_or_else(|_| experiment.name_any(), |id| id.to_string());
    tracing::warn!(experiment, reason = error.reason(), %error, "reconcile failed; trying again");
    Action::requeue(RETRY)
}
