//! The controller of policy servers. Every reconcile has the same steps: see what there is (`observe`), build what there
//! should be (`build`), apply it (`apply`, `secrets`), tell people (`status`). Who leads is another controller's duty
//! (`leader`).

mod apply;
pub(crate) mod build;
pub(crate) mod leader;
mod observe;
mod secrets;
mod signing;
mod status;

use std::sync::Arc;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_crds::{ClusterPolicy, Policy, PolicyRevision, PolicyServer};

use crate::authority;
use crate::config::Lifetimes;
use crate::guarded::{Guarded, Reports};
use crate::metrics::Metrics;
use crate::objects::{self, MANAGER, RESYNC, RETRY};
use proviso_crds::names::SERVER_LABEL;

/// On a policy server: it goes after the policies that name it.
const FINALIZER: &str = "proviso.dev/policies";

/// What every reconcile needs.
pub(crate) struct Context {
    client: Client,
    place: build::Place,
    lifetimes: Lifetimes,
    authority: authority::Receiver,
    recorder: Recorder,
    reports: Arc<Reports>,
    metrics: Arc<Metrics>,
}

impl Context {
    pub fn new(
        client: Client,
        place: build::Place,
        lifetimes: Lifetimes,
        authority: authority::Receiver,
        reports: Arc<Reports>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Self { client, place, lifetimes, authority, recorder, reports, metrics }
    }

    fn servers(&self) -> Api<Guarded<PolicyServer>> {
        Api::all(self.client.clone())
    }

    fn secrets(&self) -> Api<Secret> {
        self.namespaced()
    }

    fn namespaced<K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.place.namespace)
    }

    async fn publish(
        &self,
        server: &PolicyServer,
        type_: EventType,
        reason: &str,
        note: &str,
    ) -> Result<(), kube::Error> {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(objects::note(note)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        self.recorder.publish(&event, &server.object_ref(&())).await
    }
}

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", said(.0))]
    Kubernetes(#[from] kube::Error),
    #[error("{object}: {}", said(error))]
    Apply { object: String, error: kube::Error },
    #[error("a key cannot be made: {0}")]
    Key(#[from] rcgen::Error),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Stable name: of Events, and log field.
    fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Apply { .. } => "ApplyFailed",
            Self::Key(_) => "KeyError",
            Self::Json(_) => "InvalidObject",
        }
    }

    /// Whether another writer was faster, as it happens.
    fn is_race(&self) -> bool {
        let (Self::Kubernetes(error) | Self::Apply { error, .. }) = self else { return false };
        matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_already_exists())
    }
}

/// What the API server said, without all that it said it about.
fn said(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}

/// Follows the policy servers until it is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let client = context.client.clone();
    let changes = objects::watching();
    let ours = || objects::watching().labels(SERVER_LABEL);
    let controller = Controller::new(context.servers(), changes.clone());
    let servers = controller.store();
    controller
        .reconcile_all_on(authority::changes(context.authority.clone()))
        .watches(context.namespaced::<StatefulSet>(), ours(), of_label::<StatefulSet>)
        .watches(context.namespaced::<Pod>(), ours(), of_label::<Pod>)
        .watches(context.namespaced::<Service>(), ours(), of_label::<Service>)
        .watches(context.namespaced::<Secret>(), ours(), of_label::<Secret>)
        .watches(context.namespaced::<ConfigMap>(), ours(), of_label::<ConfigMap>)
        .watches(context.namespaced::<PersistentVolumeClaim>(), ours(), of_label::<PersistentVolumeClaim>)
        .watches(context.namespaced::<PodDisruptionBudget>(), ours(), of_label::<PodDisruptionBudget>)
        .watches(context.namespaced::<ServiceAccount>(), ours(), of_label::<ServiceAccount>)
        .watches(context.namespaced::<Role>(), ours(), of_label::<Role>)
        .watches(context.namespaced::<RoleBinding>(), ours(), of_label::<RoleBinding>)
        .watches(Api::<ClusterRoleBinding>::all(client.clone()), ours(), of_label::<ClusterRoleBinding>)
        .watches(Api::<Guarded<Policy>>::all(client.clone()), changes.clone(), of_policy(servers.clone()))
        .watches(Api::<Guarded<ClusterPolicy>>::all(client), changes.clone(), of_policy(servers.clone()))
        .watches(context.namespaced::<Guarded<PolicyRevision>>(), changes, of_policy(servers))
        .run(reconcile, on_error, context)
        // Each error was reported where it came up.
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The policy server that an object was made for.
#[allow(clippy::needless_pass_by_value, reason = "what a controller calls")]
fn of_label<K: Resource>(object: K) -> Option<ObjectRef<Guarded<PolicyServer>>> {
    object.labels().get(SERVER_LABEL).map(|server| ObjectRef::new(server))
}

/// Policies matter to policy servers that wait for their end, also to one that the policy does not name any more.
fn of_policy<K>(servers: Store<Guarded<PolicyServer>>) -> impl Fn(K) -> Vec<ObjectRef<Guarded<PolicyServer>>> {
    move |_| {
        let servers = servers.state();
        let deleted = servers.iter().filter(|server| server.meta().deletion_timestamp.is_some());
        deleted.map(|server| ObjectRef::from_obj(&**server)).collect()
    }
}

async fn reconcile(server: Arc<Guarded<PolicyServer>>, context: Arc<Context>) -> Result<Action, Error> {
    context.reports.tell(&*server).await;
    let result = context.metrics.reconcile("policyservers", Box::pin(steps(&server, &context))).await;
    if let Err(error) = &result
        && let Ok(server) = &server.0
        && !error.is_race()
    {
        // Where there is no Event there is still the log.
        let _ = context.publish(server, EventType::Warning, error.reason(), &error.to_string()).await;
    }
    result
}

async fn steps(object: &Guarded<PolicyServer>, context: &Context) -> Result<Action, Error> {
    let is_deleted = object.meta().deletion_timestamp.is_some();
    if is_deleted && !object.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Action::await_change());
    }
    if !is_deleted && object.0.is_ok() && objects::add_finalizer(&context.servers(), object, FINALIZER).await? {
        // The change comes back as an event.
        return Ok(Action::await_change());
    }
    let users = if is_deleted { observe::users(&object.name_any(), context).await? } else { Vec::new() };
    if is_deleted && users.is_empty() {
        apply::delete(&object.name_any(), context).await?;
        objects::ignore_gone(objects::remove_finalizer(&context.servers(), object, FINALIZER).await)?;
        return Ok(Action::await_change());
    }
    // What is made for a policy server that nobody can read stays as it is.
    let Ok(server) = &object.0 else { return Ok(Action::await_change()) };
    // While a policy needs it, a policy server that is to go is kept up like any other.
    let seen = observe::Seen::fetch(server, context).await?;
    let renewed = secrets::renew(server, &seen.secrets, context).await?;
    let applied = apply::objects(server, &build::objects(server, &context.place), context).await?;
    apply::leave_out(server, &seen, context).await?;
    status::write(
        server,
        &status::Facts { applied: &applied, pods: &seen.pods, renewed: &renewed, users: &users },
        context,
    )
    .await?;
    Ok(Action::requeue(objects::until(renewed.look_again, Timestamp::now()).min(RESYNC)))
}

#[allow(clippy::needless_pass_by_value, reason = "what a controller calls")]
fn on_error(server: Arc<Guarded<PolicyServer>>, error: &Error, _: Arc<Context>) -> Action {
    let server = server.name_any();
    if error.is_race() {
        tracing::info!(policy_server = server, %error, "another writer was faster; looking again");
        return Action::requeue(std::time::Duration::from_millis(100));
    }
    tracing::warn!(policy_server = server, reason = error.reason(), %error, "reconcile failed; trying again");
    Action::requeue(RETRY)
}
