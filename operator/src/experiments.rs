//! The controller of experiments (AIP-236), the same for both kinds. Every reconcile has the same steps: see what there is
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

use futures_util::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::experiment::rollout;
use proviso_crds::PolicyRevision;

use crate::authority;
use crate::context::{Context, Error};
use crate::guarded::Guarded;
use crate::objects::{self, RESYNC, RETRY};
use crate::policies::object::{PolicyObject, id as id_of};
use proviso_crds::names::{EXPERIMENT_LABEL, SERVER_LABEL};

pub(crate) use object::ExperimentObject;

/// On an experiment: its candidate and its webhook go before it does.
const FINALIZER: &str = "proviso.dev/preview";

/// Follows the experiments of one kind until it is dropped.
pub(crate) async fn run<K: ExperimentObject>(context: Arc<Context>) {
    let client = context.client.clone();
    let changes = objects::watching();
    let ours = changes.clone().labels(EXPERIMENT_LABEL);
    let controller = Controller::new(Api::<Guarded<K>>::all(client.clone()), changes.clone());
    let experiments = controller.store();
    controller
        .reconcile_all_on(authority::changes(context.authority.clone()))
        .watches(
            Api::<Guarded<PolicyRevision>>::namespaced(client.clone(), &context.namespace),
            changes.clone(),
            of_revision(experiments.clone()),
        )
        .watches(Api::<Guarded<K::Policy>>::all(client.clone()), changes.clone(), of_policy(experiments.clone()))
        .watches(Api::<Guarded<K>>::all(client.clone()), changes.clone(), siblings(experiments.clone()))
        .watches(
            Api::<Pod>::namespaced(client.clone(), &context.namespace),
            changes.labels(SERVER_LABEL),
            of_pod(experiments.clone()),
        )
        .watches(Api::<ValidatingWebhookConfiguration>::all(client), ours, of_label(experiments))
        .run(reconcile::<K>, on_error::<K>, context)
        // Each error was reported where it came up.
        .for_each(|_| std::future::ready(()))
        .await;
}

/// All that this is true of.
fn those<K: ExperimentObject>(
    experiments: &Store<Guarded<K>>,
    are: impl Fn(&Guarded<K>) -> bool,
) -> Vec<ObjectRef<Guarded<K>>> {
    let state = experiments.state();
    state.iter().filter(|it| are(it)).map(|it| ObjectRef::from_obj(&**it)).collect()
}

/// The experiments of the policy with this name.
fn named<K: ExperimentObject>(
    experiments: &Store<Guarded<K>>,
    namespace: Option<&str>,
    policy: &str,
) -> Vec<ObjectRef<Guarded<K>>> {
    those(experiments, |it| it.namespace().as_deref() == namespace && is_of(it, policy))
}

fn is_of<K: ExperimentObject>(experiment: &Guarded<K>, policy: &str) -> bool {
    experiment.0.as_ref().is_ok_and(|known| known.spec().policy_ref.name == policy)
}

/// The experiment of a candidate; of a live revision all of its policy: what is live makes a difference to them.
fn of_revision<K: ExperimentObject>(
    experiments: Store<Guarded<K>>,
) -> impl Fn(Guarded<PolicyRevision>) -> Vec<ObjectRef<Guarded<K>>> {
    let of_label = of_label(experiments.clone());
    move |revision| {
        let Ok(known) = &revision.0 else { return of_label(revision) };
        let policy = &known.spec.policy_ref;
        if policy.kind != K::Policy::KIND {
            return Vec::new();
        }
        match &known.spec.experiment_ref {
            Some(_) if revision.labels().contains_key(EXPERIMENT_LABEL) => {
                let named = |name: &str, it: &Guarded<K>| {
                    it.name_any() == name && it.namespace().as_deref() == policy.namespace.as_deref()
                };
                let name = known.spec.experiment_ref.as_ref().map_or("", |it| it.name.as_str());
                those(&experiments, |it| named(name, it))
            }
            _ => named(&experiments, policy.namespace.as_deref(), &policy.name),
        }
    }
}

fn of_policy<K: ExperimentObject>(
    experiments: Store<Guarded<K>>,
) -> impl Fn(Guarded<K::Policy>) -> Vec<ObjectRef<Guarded<K>>> {
    move |policy| named(&experiments, policy.namespace().as_deref(), &policy.name_any())
}

/// Those that an experiment which goes has stood in the way of.
fn siblings<K: ExperimentObject>(experiments: Store<Guarded<K>>) -> impl Fn(Guarded<K>) -> Vec<ObjectRef<Guarded<K>>> {
    move |going| match &going.0 {
        Ok(known) if known.meta().deletion_timestamp.is_some() => {
            named(&experiments, going.namespace().as_deref(), &known.spec().policy_ref.name)
        }
        _ => Vec::new(),
    }
}

/// Those that may be on the pod: which server answers for a policy its live revision says.
fn of_pod<K: ExperimentObject>(experiments: Store<Guarded<K>>) -> impl Fn(Pod) -> Vec<ObjectRef<Guarded<K>>> {
    move |_| those(&experiments, |it| it.0.as_ref().is_ok_and(|known| known.status().is_some()))
}

/// The experiment that an object was made for.
fn of_label<K: ExperimentObject, O: Resource>(
    experiments: Store<Guarded<K>>,
) -> impl Fn(O) -> Vec<ObjectRef<Guarded<K>>> {
    move |object| {
        let uid = object.labels().get(EXPERIMENT_LABEL);
        those(&experiments, |it| uid.is_some() && it.meta().uid.as_ref() == uid)
    }
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
    let seen = observe::Seen::fetch(&*experiment, &context).await?;
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
