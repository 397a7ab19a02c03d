//! The controller of experiments (AIP-236), for both kinds. A reconcile reads the caches (`observe`), decides
//! (`proviso_core::experiment::rollout`), builds the desired objects (`build`), applies them (`apply`), and reports
//! (`status`). Users and the API start and stop previews. The controller starts an experiment with `autoStart`, and
//! suspends a preview that has ended, has failed to start, or was updated (`session`).

mod apply;
mod build;
mod commit;
mod conditions;
mod configuration;
mod events;
mod observe;
mod session;
mod status;
mod timers;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt as _};
use proviso_core::experiment::rollout;
use proviso_crds::PolicyServer;
use proviso_crds::names::{EXPERIMENT_LABEL, finalizers};

use crate::ca;
use crate::cache::{self, Reader};
use crate::caller_tokens;
use crate::configurations::{RETRY_VALIDATION, Validation};
use crate::context::{Context, Error};
use crate::controller::Controller;
use crate::kinds::{self, ExperimentObject, Kind as _, PolicyObject as _, experiments_of};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, RESYNC, RETRY};
use crate::revisions::Revision;
use timers::Timers;

/// Reconciles the experiments of one kind until the future is dropped.
pub(crate) async fn run<K: ExperimentObject>(name: &'static str, context: Arc<Context>) {
    let caches = &context.caches;
    let experiments = K::cache(caches).reader();
    let controller = Controller::new(name, K::cache(caches), &context.metrics);
    controller
        .trigger_on(K::cache(caches), siblings(experiments.clone()))
        .trigger_on(&caches.revisions, of_revision(experiments.clone()))
        .trigger_on(&caches.subscriptions, configuration::of_subscription)
        .trigger_on(K::Policy::cache(caches), of_policy(experiments.clone()))
        .trigger_on(&caches.pods, of_pod(experiments.clone()))
        .trigger_on(&caches.servers, namespaced(experiments.clone()))
        .trigger_on(&caches.namespaces, of_namespace(experiments.clone()))
        .trigger_on(&caches.secrets, caller_tokens::of_secret(experiments.clone()))
        .trigger_on(&caches.validating, of_label(experiments));
    caches.listed().await;
    context.usage.listed().await;
    let ca_changes = ca::changes(context.ca.clone());
    let timers = Timers::default();
    let reconcile = |experiment: Arc<MaybeMalformed<K>>, context: Arc<Context>| {
        let timers = &timers;
        async move { reconcile(&experiment, timers, &context).await }
    };
    controller.run(context, ca_changes, reconcile).await;
}

/// Maps a candidate to its experiment, and a live revision to all experiments of its policy, which are compared with
/// the live revision.
fn of_revision<K: ExperimentObject>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<Revision>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
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
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<K::Policy>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |policy| experiments.references(&experiments_of(&policy.name_any(), policy.namespace().as_deref()))
}

/// Maps an experiment that is being deleted to the experiments of the same policy: one that exceeded the maximum number
/// may now be accepted.
fn siblings<K: ExperimentObject>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<K>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |experiment| match &experiment.0 {
        Ok(known) if known.meta().deletion_timestamp.is_some() => {
            experiments.references(&experiments_of(&known.spec().policy_ref.name, experiment.namespace().as_deref()))
        }
        _ => Vec::new(),
    }
}

/// Maps a pod to all experiments with a status. The experiment does not name the policy server of its preview: the live
/// revision of its policy does.
fn of_pod<K: ExperimentObject>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&Pod) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |_| {
        let has_status = |it: &MaybeMalformed<K>| it.0.as_ref().is_ok_and(|known| known.status().is_some());
        experiments.store().state_filter(has_status).iter().map(|it| ObjectRef::from_obj(&**it)).collect()
    }
}

/// Maps a policy server to all namespaced experiments: it may permit other uses than before.
fn namespaced<K: ExperimentObject>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<PolicyServer>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |_| {
        let is_namespaced = |it: &MaybeMalformed<K>| it.namespace().is_some();
        experiments.store().state_filter(is_namespaced).iter().map(|it| ObjectRef::from_obj(&**it)).collect()
    }
}

/// Maps a namespace to its experiments: its labels may allow other policy servers than before.
fn of_namespace<K: ExperimentObject>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&PartialObjectMeta<Namespace>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |namespace| {
        let is_in = |it: &MaybeMalformed<K>| it.namespace() == namespace.metadata.name;
        experiments.store().state_filter(is_in).iter().map(|it| ObjectRef::from_obj(&**it)).collect()
    }
}

/// Maps an object to the experiment that its label names.
fn of_label<K: ExperimentObject, O: Resource>(
    experiments: Reader<MaybeMalformed<K>>,
) -> impl Fn(&O) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |object| object.labels().get(EXPERIMENT_LABEL).map(|uid| experiments.references(uid)).unwrap_or_default()
}

async fn reconcile<K: ExperimentObject>(
    experiment: &MaybeMalformed<K>,
    timers: &Timers,
    context: &Context,
) -> Result<Action, Error> {
    context.reports.report(experiment).await;
    if context.ca_bundle().is_none() {
        // The first CA triggers another reconcile.
        return Ok(Action::await_change());
    }
    let is_deleted = experiment.meta().deletion_timestamp.is_some();
    if is_deleted && !experiment.finalizers().iter().any(|finalizer| finalizer == finalizers::PREVIEW) {
        return Ok(Action::await_change());
    }
    if experiment.0.is_err() && !is_deleted {
        // The spec cannot be read. Until it can, the current preview continues.
        return Ok(Action::requeue(RESYNC));
    }
    let api = kinds::api::<K>(&context.client, experiment);
    if !is_deleted && objects::add_finalizer(&api, experiment, finalizers::PREVIEW).await? {
        // The change triggers another reconcile.
        return Ok(Action::await_change());
    }
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let mut found = observe::ObservedObjects::read(experiment, context).await?;
    let validated = if is_deleted { Ok(Validation::Unchanged) } else { found.validate(context).await };
    if !matches!(validated, Ok(Validation::Unchanged | Validation::Busy)) {
        found = observe::ObservedObjects::read(experiment, context).await?;
    }
    let now = Instant::now();
    let observed = found.observed(experiment, jiff::Timestamp::now(), timers.elapsed(&uid, now));
    let decision = rollout::decide(&observed);
    timers.keep(&uid, &decision.timers, now);
    if let ControlFlow::Break(action) = apply::decision(experiment, &found, &observed, &decision, context).await? {
        return Ok(action);
    }
    if decision.is_cleaned_up {
        context.with_counts_written(|counts| counts.remove(&uid));
        return Ok(Action::await_change());
    }
    let mut requeue_after = decision.requeue_after;
    if let Ok(known) = &experiment.0
        && !is_deleted
    {
        let later = status::write(known, &found, &decision, context).await?;
        requeue_after = requeue_after.into_iter().chain(later).min();
        apply::after_status(known, &found, &decision, context).await?;
    }
    // Last, so that a validation that fails for now delays nothing else.
    let default_delay = match validated? {
        Validation::Busy => RETRY_VALIDATION,
        _ if is_deleted => RETRY,
        Validation::Unchanged | Validation::Written => RESYNC,
    };
    Ok(Action::requeue(requeue_after.map_or(default_delay, |after| after.min(default_delay))))
}

#[cfg(test)]
mod tests;
