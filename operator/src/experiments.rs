//! The controller of experiments (AIP-236), the same for both kinds. Every reconcile has the same steps: read the caches
//! (`observe`), decide (`proviso_core::experiment::rollout`), build what there should be (`build`), apply it (`apply`),
//! tell people (`status`). What people or the API started and stopped it only looks at, but for what starts by itself and what
//! an update suspends.

mod apply;
mod build;
mod observe;
mod status;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt as _};
use proviso_core::experiment::rollout;
use proviso_crds::names::{EXPERIMENT_LABEL, finalizers};

use crate::authority;
use crate::cache::{self, Reader};
use crate::context::{Context, Error};
use crate::controller::Controller;
use crate::guarded::Guarded;
use crate::kinds::{self, ExperimentObject, Kind as _, PolicyObject as _, experiments_of};
use crate::objects::{self, RESYNC, RETRY};
use crate::revisions::Revision;

/// Reconciles the experiments of one kind until it is dropped.
pub(crate) async fn run<K: ExperimentObject>(name: &'static str, context: Arc<Context>) {
    let caches = &context.caches;
    let experiments = K::cache(caches).reader();
    let controller = Controller::new(name, K::cache(caches), &context.metrics);
    controller
        .add_on(K::cache(caches), siblings(experiments.clone()))
        .add_on(&caches.revisions, of_revision(experiments.clone()))
        .add_on(K::Policy::cache(caches), of_policy(experiments.clone()))
        .add_on(&caches.pods, of_pod(experiments.clone()))
        .add_on(&caches.validating, of_label(experiments));
    caches.listed().await;
    let authority = authority::changes(context.authority.clone());
    controller.run(context, authority, reconcile::<K>).await;
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
    if is_deleted && !experiment.finalizers().iter().any(|finalizer| finalizer == finalizers::PREVIEW) {
        return Ok(Action::await_change());
    }
    if experiment.0.is_err() && !is_deleted {
        // What it asks for cannot be told. Until it can, what is previewed goes on.
        return Ok(Action::requeue(RESYNC));
    }
    let api = kinds::api::<K>(&context.client, &*experiment);
    if !is_deleted && objects::add_finalizer(&api, &*experiment, finalizers::PREVIEW).await? {
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
