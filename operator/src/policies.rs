//! The controller of policies, for both kinds. A reconcile reads the caches (`observe`), decides
//! (`proviso_core::rollout`), builds the desired objects (`build`), applies them (`apply`), and reports (`status`).

mod apply;
mod build;
mod observe;
mod rollback;
mod status;
mod words;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt as _};
use proviso_core::rollout::{self, Progress};
use proviso_crds::names::{POLICY_LABEL, SERVER_LABEL, finalizers};
use proviso_crds::uniqueness::{InUse, SECTION};
use proviso_crds::{PolicyServer, RevisionRole};

use crate::ca;
use crate::cache::{self, Reader};
use crate::caller_tokens;
use crate::configurations::{self, RETRY_VALIDATION, Validation};
use crate::context::{Context, Error};
use crate::controller::Controller;
use crate::kinds::{self, ExperimentObject as _, Kind as _, PolicyObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{self, RESYNC};
use crate::revisions::Revision;
use crate::uniqueness::Uniqueness;
use rollback::Refusals;

/// The interval between reconciles of a policy whose newest generation may not become live.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// Reconciles the policies of one kind until the future is dropped.
pub(crate) async fn run<K: PolicyObject>(name: &'static str, context: Arc<Context>) {
    let caches = &context.caches;
    let policies = K::cache(caches).reader();
    let controller = Controller::new(name, K::cache(caches), &context.metrics);
    let uniqueness = Uniqueness::<K>::new(caches);
    controller
        .trigger_on(K::cache(caches), uniqueness.of_policy())
        .trigger_on(&caches.namespaces, uniqueness.of_namespace())
        .trigger_on(&caches.revisions, of_revision(policies.clone()))
        .trigger_on(K::Experiment::cache(caches), of_experiment::<K>)
        .trigger_on(&caches.pods, of_pod(policies.clone()))
        .trigger_on(&caches.servers, of_server(policies.clone()))
        .trigger_on(&caches.namespaces, of_namespace(policies.clone()))
        .trigger_on(&caches.secrets, caller_tokens::of_secret(policies.clone()))
        .trigger_on(&caches.validating, of_label(policies.clone()))
        .trigger_on(&caches.mutating, of_label(policies));
    caches.listed().await;
    context.usage.listed().await;
    let ca_changes = ca::changes(context.ca.clone());
    let refusals = Refusals::default();
    let reconcile = |policy: Arc<MaybeMalformed<K>>, context: Arc<Context>| {
        let (refusals, uniqueness) = (&refusals, &uniqueness);
        async move { reconcile(&policy, refusals, uniqueness, &context).await }
    };
    controller.run(context, ca_changes, reconcile).await;
}

/// Maps a revision to the policy with its name, also if the uid differs: the revision of a deleted policy may block the
/// revision of a new policy of the same name. Candidate revisions do not trigger a reconcile.
fn of_revision<K: PolicyObject>(
    policies: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<Revision>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    let of_label = of_label(policies);
    move |revision| {
        let Ok(known) = &revision.0 else { return of_label(revision) };
        let policy = &known.policy_ref;
        let is_ours = policy.kind == K::KIND && known.role == RevisionRole::Live;
        is_ours.then(|| cache::reference(&policy.name, policy.namespace.as_deref())).into_iter().collect()
    }
}

/// Maps an experiment that is being deleted to its policy, whose own deletion may wait for the experiment.
fn of_experiment<K: PolicyObject>(experiment: &MaybeMalformed<K::Experiment>) -> Option<ObjectRef<MaybeMalformed<K>>> {
    let deleted = experiment.0.as_ref().ok().filter(|it| it.meta().deletion_timestamp.is_some())?;
    Some(cache::reference(&deleted.spec().policy_ref.name, deleted.namespace().as_deref()))
}

/// Maps a pod to the policies of its policy server.
fn of_pod<K: PolicyObject>(policies: Reader<MaybeMalformed<K>>) -> impl Fn(&Pod) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |pod| {
        let server = pod.labels().get(SERVER_LABEL).cloned().unwrap_or_default();
        let of_server =
            |policy: &MaybeMalformed<K>| policy.0.as_ref().is_ok_and(|it| it.spec().is_evaluated_by(&server));
        policies.store().state_filter(of_server).iter().map(|policy| ObjectRef::from_obj(&**policy)).collect()
    }
}

/// Maps a policy server to its namespaced policies: it may permit other uses than before.
fn of_server<K: PolicyObject>(
    policies: Reader<MaybeMalformed<K>>,
) -> impl Fn(&MaybeMalformed<PolicyServer>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |server| {
        let name = server.name_any();
        let is_served = |policy: &MaybeMalformed<K>| {
            policy.namespace().is_some() && policy.0.as_ref().is_ok_and(|it| it.spec().is_evaluated_by(&name))
        };
        policies.store().state_filter(is_served).iter().map(|policy| ObjectRef::from_obj(&**policy)).collect()
    }
}

/// Maps a namespace to its policies: its labels may allow other policy servers than before.
fn of_namespace<K: PolicyObject>(
    policies: Reader<MaybeMalformed<K>>,
) -> impl Fn(&PartialObjectMeta<Namespace>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |namespace| {
        let is_in = |policy: &MaybeMalformed<K>| policy.namespace() == namespace.metadata.name;
        policies.store().state_filter(is_in).iter().map(|policy| ObjectRef::from_obj(&**policy)).collect()
    }
}

/// Maps an object to the policy that its label names.
fn of_label<K: PolicyObject, W: Resource>(
    policies: Reader<MaybeMalformed<K>>,
) -> impl Fn(&W) -> Vec<ObjectRef<MaybeMalformed<K>>> {
    move |object| object.labels().get(POLICY_LABEL).map(|uid| policies.references(uid)).unwrap_or_default()
}

async fn reconcile<K: PolicyObject>(
    policy: &MaybeMalformed<K>,
    refusals: &Refusals,
    uniqueness: &Uniqueness<K>,
    context: &Context,
) -> Result<Action, Error> {
    context.reports.report(policy).await;
    if context.ca_bundle().is_none() {
        // The first CA triggers another reconcile.
        return Ok(Action::await_change());
    }
    let is_deleted = policy.meta().deletion_timestamp.is_some();
    if is_deleted && !policy.finalizers().iter().any(|finalizer| finalizer == finalizers::REVISIONS) {
        return Ok(Action::await_change());
    }
    let api = kinds::api::<K>(&context.client, policy);
    let mut rollback = Ok(false);
    if let Ok(known) = &policy.0
        && !is_deleted
    {
        if objects::add_finalizer(&api, policy, finalizers::REVISIONS).await? {
            // The change triggers another reconcile.
            return Ok(Action::await_change());
        }
        rollback = rollback::handle_request(known, refusals, context).await;
        if matches!(rollback, Ok(true)) {
            return Ok(Action::await_change());
        }
    }
    let mut found = observe::ObservedObjects::read(policy, context).await?;
    let validated = match found.newest(policy).filter(|_| !is_deleted) {
        Some(revision) => configurations::validate(revision, context).await,
        None => Ok(Validation::Unchanged),
    };
    if !matches!(validated, Ok(Validation::Unchanged | Validation::Busy)) {
        found = observe::ObservedObjects::read(policy, context).await?;
    }
    let losses = uniqueness.losses(policy);
    let not_unique = InUse::to_failure(&losses, SECTION);
    let observed = found.observed(policy, not_unique, jiff::Timestamp::now(), context);
    if policy.0.is_err() && !is_deleted {
        // The spec cannot be read. Until it can, the live generation keeps answering.
        let requeue_after = apply::restore_webhook(policy, &found, &observed, context).await?;
        return Ok(Action::requeue(requeue_after.unwrap_or(RESYNC)));
    }
    let decision = rollout::decide(&observed);
    let applied = apply::decision(policy, &found, &observed, &decision, context).await;
    if let Err(error) = &applied
        && error.needs_person()
        && let Ok(known) = &policy.0
        && !is_deleted
    {
        // The first error is the cause, and the log has it.
        let _ = status::write_refusal(known, error, context).await;
    }
    applied?;
    if let Ok(known) = &policy.0
        && !is_deleted
    {
        status::write(known, &found, &observed, &decision, context).await?;
    }
    // Last, so that a rollback or a validation that fails for now delays nothing else.
    rollback?;
    let validated = validated?;
    // A namespace that is full has room after a deletion of any of its objects.
    let resync = match (validated, &decision.progress) {
        (Validation::Busy, _) => RETRY_VALIDATION,
        (_, Progress::Refused(_)) => RETRY_REFUSED,
        _ => RESYNC,
    };
    Ok(Action::requeue(decision.requeue_after.unwrap_or(resync).min(resync)))
}

#[cfg(test)]
mod tests;
