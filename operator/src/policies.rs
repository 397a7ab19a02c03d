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
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::policy_id::PolicyIdError;
use proviso_core::rollout;
use proviso_crds::{PolicyRevision, RevisionRole};

use crate::authority;
use crate::experiments::ExperimentObject as _;
use crate::guarded::{Guarded, Reports};
use crate::objects::{self, MANAGER, RESYNC, RETRY, note};
use object::PolicyObject;
use proviso_crds::names::{POLICY_LABEL, SERVER_LABEL};

/// On a policy: its revisions go before it does.
const FINALIZER: &str = "proviso.dev/revisions";

/// What every reconcile needs.
pub struct Context {
    client: Client,
    namespace: String,
    authority: authority::Receiver,
    retire_after: Duration,
    reports: Arc<Reports>,
}

impl Context {
    pub fn new(
        client: Client,
        namespace: String,
        authority: authority::Receiver,
        retire_after: Duration,
        reports: Arc<Reports>,
    ) -> Self {
        Self { client, namespace, authority, retire_after, reports }
    }

    /// Tells the owner of a policy.
    async fn publish<K: PolicyObject>(&self, policy: &K, event: Event) -> kube::Result<()> {
        let event = Event { note: event.note.as_deref().map(note), ..event };
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        // A recorder counts what has the same reason as one Event, with the words of the first. Each of ours is about
        // another generation, or says something new about it.
        Recorder::new(self.client.clone(), reporter).publish(&event, &policy.object_ref(&())).await
    }

    /// The same, where something is to be done that must not wait for it: a namespace that ends takes no Events.
    async fn tell<K: PolicyObject>(&self, policy: &K, event: Event) {
        let reason = event.reason.clone();
        if let Err(error) = self.publish(policy, event).await {
            tracing::warn!(policy = policy.name_any(), reason, %error, "an Event cannot be written");
        }
    }

    /// Who vouches for the policy servers, in PEM; nothing before that is known.
    fn bundle(&self) -> Option<String> {
        self.authority.borrow().as_ref().map(|trusted| trusted.bundle.clone())
    }
}

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("an object of the API server's has no {0}")]
    Incomplete(&'static str),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("there is no authority yet that vouches for policy servers")]
    NoAuthority,
}

impl Error {
    /// Stable name: log field.
    fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Name(_) => "InvalidName",
            Self::Incomplete(_) => "IncompleteObject",
            Self::Json(_) => "InvalidObject",
            Self::NoAuthority => "NoAuthority",
        }
    }
}

/// Follows the policies of one kind until it is dropped.
pub async fn run<K: PolicyObject>(context: Arc<Context>) {
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
