//! The controller of policies, the same for both kinds. Every reconcile has the same steps: see what there is
//! (`observe`), decide (`proviso_core::rollout`), build what there should be (`build`), apply it (`apply`), tell people
//! (`status`).

pub(crate) mod apply;
pub(crate) mod build;
pub(crate) mod object;
pub(crate) mod observe;
mod rollback;
mod status;

use std::sync::Arc;

use futures_util::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::rollout;
use proviso_crds::{PolicyRevision, RevisionRole};

use crate::authority;
use crate::context::{Context, Error};
use crate::experiments::ExperimentObject as _;
use crate::guarded::Guarded;
use crate::objects::{self, RESYNC, RETRY};
use object::PolicyObject;
use proviso_crds::names::{POLICY_LABEL, SERVER_LABEL};

/// On a policy: its revisions go before it does.
const FINALIZER: &str = "proviso.dev/revisions";

/// Follows the policies of one kind until it is dropped.
pub(crate) async fn run<K: PolicyObject>(context: Arc<Context>) {
    let client = context.client.clone();
    let changes = objects::watching();
    let ours = changes.clone().labels(POLICY_LABEL);
    let controller = Controller::new(Api::<Guarded<K>>::all(client.clone()), changes.clone());
    let policies = controller.store();
    controller
        .reconcile_all_on(authority::changes(context.authority.clone()))
        .watches(
            Api::<Guarded<PolicyRevision>>::namespaced(client.clone(), &context.namespace),
            changes.clone(),
            of_revision(policies.clone()),
        )
        .watches(Api::<Guarded<K::Experiment>>::all(client.clone()), changes.clone(), of_experiment::<K>)
        .watches(
            Api::<Pod>::namespaced(client.clone(), &context.namespace),
            changes.labels(SERVER_LABEL),
            of_pod(policies.clone()),
        )
        .watches(Api::<ValidatingWebhookConfiguration>::all(client.clone()), ours.clone(), of_label(policies.clone()))
        .watches(Api::<MutatingWebhookConfiguration>::all(client), ours, of_label(policies))
        .run(reconcile::<K>, on_error::<K>, context)
        // Each error was reported where it came up.
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The policy that a revision is of; by name, since it may stand in the way of another policy's. What becomes of candidates
/// is nothing to it.
fn of_revision<K: PolicyObject>(
    policies: Store<Guarded<K>>,
) -> impl Fn(Guarded<PolicyRevision>) -> Option<ObjectRef<Guarded<K>>> {
    let of_label = of_label(policies);
    move |revision| {
        let Ok(known) = &revision.0 else { return of_label(revision) };
        let policy = &known.spec.policy_ref;
        let reference = ObjectRef::new(&policy.name);
        let reference = policy.namespace.as_deref().map_or(reference.clone(), |namespace| reference.within(namespace));
        (policy.kind == K::KIND && known.spec.role == RevisionRole::Live).then_some(reference)
    }
}

/// The policy that waits for the end of an experiment.
fn of_experiment<K: PolicyObject>(experiment: Guarded<K::Experiment>) -> Option<ObjectRef<Guarded<K>>> {
    let going = experiment.0.ok().filter(|it| it.meta().deletion_timestamp.is_some())?;
    let reference = ObjectRef::new(&going.spec().policy_ref.name);
    Some(going.namespace().map_or(reference.clone(), |namespace| reference.within(&namespace)))
}

/// The policies of a pod's policy server.
fn of_pod<K: PolicyObject>(policies: Store<Guarded<K>>) -> impl Fn(Pod) -> Vec<ObjectRef<Guarded<K>>> {
    move |pod| {
        let server = pod.labels().get(SERVER_LABEL).cloned().unwrap_or_default();
        let of_server = |policy: &Guarded<K>| policy.0.as_ref().is_ok_and(|it| it.spec().policy_server == server);
        policies
            .state()
            .iter()
            .filter(|policy| of_server(policy))
            .map(|policy| ObjectRef::from_obj(&**policy))
            .collect()
    }
}

/// The policy that an object was made for.
fn of_label<K: PolicyObject, W: Resource>(policies: Store<Guarded<K>>) -> impl Fn(W) -> Option<ObjectRef<Guarded<K>>> {
    move |object| {
        let uid = object.labels().get(POLICY_LABEL)?.clone();
        policies.find(|policy| policy.uid().as_ref() == Some(&uid)).map(|policy| ObjectRef::from_obj(&*policy))
    }
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
    let seen = observe::Seen::fetch(&*policy, &context).await?;
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
