//! The controller of policy servers. Every reconcile has the same steps: renew the Secrets (`secrets`), build what there should be
//! (`build`), apply it (`apply`), tell people (`status`). Another controller says who leads (`leader`).

mod apply;
mod build;
mod context;
pub(crate) mod leader;
pub(crate) mod names;
mod observe;
mod secrets;
mod signing;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::finalizers;

use crate::authority;
use crate::cache::{Cached, Reader};
use crate::context::Error;
use crate::controller::Controller;
use crate::guarded::Guarded;
use crate::objects::{self, RESYNC};
use context::of_label;

pub(crate) use context::{Context, Settings};
pub(crate) use names::Place;

/// Reconciles the policy servers until it is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let caches = &context.caches;
    let servers = caches.servers.reader();
    let controller = Controller::new("policyservers", &caches.servers, &context.metrics);
    controller
        .add_on(&caches.stateful_sets, of_label)
        .add_on(&caches.pods, of_label)
        .add_on(&caches.services, of_label)
        .add_on(&caches.secrets, of_label)
        .add_on(&caches.config_maps, of_label)
        .add_on(&caches.claims, of_label)
        .add_on(&caches.disruption_budgets, of_label)
        .add_on(&caches.service_accounts, of_label)
        .add_on(&caches.roles, of_label)
        .add_on(&caches.role_bindings, of_label)
        .add_on(&caches.cluster_role_bindings, of_label)
        .add_on(&caches.policies, of_policy(servers.clone()))
        .add_on(&caches.cluster_policies, of_policy(servers.clone()))
        .add_on(&caches.revisions, of_policy(servers));
    caches.listed().await;
    let authority = authority::changes(context.authority.clone());
    controller.run(context, authority, reconcile).await;
}

/// The policy servers that wait for the end of policies: a policy matters also to one that it does not name any more.
fn of_policy<K: Cached>(
    servers: Reader<Guarded<PolicyServer>>,
) -> impl Fn(&K) -> Vec<ObjectRef<Guarded<PolicyServer>>> {
    move |_| {
        let is_deleted = |server: &Guarded<PolicyServer>| server.meta().deletion_timestamp.is_some();
        servers.store().state_filter(is_deleted).iter().map(|server| ObjectRef::from_obj(&**server)).collect()
    }
}

async fn reconcile(server: Arc<Guarded<PolicyServer>>, context: Arc<Context>) -> Result<Action, Error> {
    context.reports.tell(&*server).await;
    let result = steps(&server, &context).await;
    if let Err(error) = &result
        && let Ok(server) = &server.0
        && !error.is_race()
    {
        // The log has it too.
        let _ = context.record(server, EventType::Warning, error.reason(), &error.to_string()).await;
    }
    result
}

async fn steps(object: &Guarded<PolicyServer>, context: &Context) -> Result<Action, Error> {
    let name = object.name_any();
    let is_deleted = object.meta().deletion_timestamp.is_some();
    if is_deleted && !object.finalizers().iter().any(|finalizer| finalizer == finalizers::POLICIES) {
        return Ok(Action::await_change());
    }
    let servers = context.servers();
    if !is_deleted && object.0.is_ok() && objects::add_finalizer(&servers, object, finalizers::POLICIES).await? {
        // The change comes back as an event.
        return Ok(Action::await_change());
    }
    let users = if is_deleted { observe::users(&name, context).await? } else { Vec::new() };
    if is_deleted && users.is_empty() {
        apply::delete(&name, context).await?;
        objects::ignore_gone(objects::remove_finalizer(&servers, object, finalizers::POLICIES).await)?;
        return Ok(Action::await_change());
    }
    // What is made for a policy server that nobody can read stays as it is.
    let Ok(server) = &object.0 else { return Ok(Action::await_change()) };
    // While a policy needs it, a policy server that is to go is kept up like any other.
    let renewed = secrets::renew(server, context).await?;
    apply::objects(server, &build::objects(server, &context.settings.place), context).await?;
    apply::leave_out(server, context).await?;
    status::write(server, &renewed, &users, context).await?;
    Ok(Action::requeue(objects::until(renewed.look_again, Timestamp::now()).min(RESYNC)))
}

#[cfg(test)]
mod tests;
