//! The controller of policies, the same for both kinds. Every reconcile has the same steps: read the caches (`observe`), decide
//! (`proviso_core::rollout`), build what there should be (`build`), apply it (`apply`), tell people (`status`).

mod apply;
mod build;
mod observe;
mod rollback;
mod status;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt as _};
use proviso_core::rollout;
use proviso_crds::RevisionRole;
use proviso_crds::names::{POLICY_LABEL, SERVER_LABEL, finalizers};

use crate::authority;
use crate::cache::{self, Reader};
use crate::context::{Context, Error};
use crate::controller::Controller;
use crate::guarded::Guarded;
use crate::kinds::{self, ExperimentObject as _, Kind as _, PolicyObject};
use crate::objects::{self, RESYNC};
use crate::revisions::Revision;

/// Reconciles the policies of one kind until it is dropped.
pub(crate) async fn run<K: PolicyObject>(name: &'static str, context: Arc<Context>) {
    let caches = &context.caches;
    let policies = K::cache(caches).reader();
    let controller = Controller::new(name, K::cache(caches), &context.metrics);
    controller
        .add_on(&caches.revisions, of_revision(policies.clone()))
        .add_on(K::Experiment::cache(caches), of_experiment::<K>)
        .add_on(&caches.pods, of_pod(policies.clone()))
        .add_on(&caches.validating, of_label(policies.clone()))
        .add_on(&caches.mutating, of_label(policies));
    caches.listed().await;
    let authority = authority::changes(context.authority.clone());
    controller.run(context, authority, reconcile::<K>).await;
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
    if is_deleted && !policy.finalizers().iter().any(|finalizer| finalizer == finalizers::REVISIONS) {
        return Ok(Action::await_change());
    }
    let api = kinds::api::<K>(&context.client, &*policy);
    if let Ok(known) = &policy.0
        && !is_deleted
        && (objects::add_finalizer(&api, &*policy, finalizers::REVISIONS).await?
            || rollback::wanted(known, &context).await?)
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

#[cfg(test)]
mod tests;
