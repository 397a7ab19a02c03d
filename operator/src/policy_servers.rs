//! The controller of policy servers. A reconcile renews the Secrets (`secrets`), builds the desired objects
//! (`build`), applies them (`apply`), replaces the pods of lost nodes (`lost_pods`), and reports (`status`). Another
//! controller reports the leader (`leader`).

mod apply;
mod build;
mod context;
pub(crate) mod keys;
pub(crate) mod leader;
mod lost_pods;
pub(crate) mod names;
mod observe;
mod out_of_memory;
mod secrets;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use proviso_crds::PolicyServer;
use proviso_crds::names::finalizers;

use crate::ca;
use crate::cache::{Cached, Reader};
use crate::context::Error;
use crate::controller::Controller;
use crate::malformed::MaybeMalformed;
use crate::objects::{self, RESYNC};
use context::of_label;

pub(crate) use context::{Context, Settings};
pub(crate) use names::ServerDefaults;

/// Reconciles the policy servers until the future is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let caches = &context.caches;
    let servers = caches.servers.reader();
    let controller = Controller::new("policyservers", &caches.servers, &context.metrics);
    controller
        .trigger_on(&caches.stateful_sets, of_label)
        .trigger_on(&caches.pods, of_label)
        .trigger_on(&caches.services, of_label)
        .trigger_on(&caches.secrets, of_label)
        .trigger_on(&caches.config_maps, of_label)
        .trigger_on(&caches.claims, of_label)
        .trigger_on(&caches.disruption_budgets, of_label)
        .trigger_on(&caches.service_accounts, of_label)
        .trigger_on(&caches.roles, of_label)
        .trigger_on(&caches.role_bindings, of_label)
        .trigger_on(&caches.cluster_role_bindings, of_label)
        .trigger_on(&caches.policies, of_policy(servers.clone()))
        .trigger_on(&caches.cluster_policies, of_policy(servers.clone()))
        .trigger_on(&caches.revisions, of_policy(servers));
    caches.listed().await;
    let ca_changes = ca::changes(context.ca.clone());
    controller.run(context, ca_changes, reconcile).await;
}

/// Maps any policy to the policy servers that are being deleted: a policy may still need a policy server that its
/// spec no longer names.
fn of_policy<K: Cached>(
    servers: Reader<MaybeMalformed<PolicyServer>>,
) -> impl Fn(&K) -> Vec<ObjectRef<MaybeMalformed<PolicyServer>>> {
    move |_| {
        let is_deleted = |server: &MaybeMalformed<PolicyServer>| server.meta().deletion_timestamp.is_some();
        servers.store().state_filter(is_deleted).iter().map(|server| ObjectRef::from_obj(&**server)).collect()
    }
}

async fn reconcile(server: Arc<MaybeMalformed<PolicyServer>>, context: Arc<Context>) -> Result<Action, Error> {
    context.reports.report(&*server).await;
    let result = try_reconcile(&server, &context).await;
    if let Err(error) = &result
        && let Ok(server) = &server.0
        && !error.is_race()
        // Each refused object has an Event of its own.
        && !apply::is_refusal(error)
    {
        // The log has the error too.
        let _ = context.record(server, EventType::Warning, error.reason().as_str(), &error.to_string()).await;
    }
    result
}

async fn try_reconcile(object: &MaybeMalformed<PolicyServer>, context: &Context) -> Result<Action, Error> {
    let name = object.name_any();
    let is_deleted = object.meta().deletion_timestamp.is_some();
    if is_deleted && !object.finalizers().iter().any(|finalizer| finalizer == finalizers::POLICIES) {
        return Ok(Action::await_change());
    }
    let servers = context.servers();
    if !is_deleted && object.0.is_ok() && objects::add_finalizer(&servers, object, finalizers::POLICIES).await? {
        // The change triggers another reconcile.
        return Ok(Action::await_change());
    }
    let dependents = if is_deleted { observe::dependents(&name, context).await? } else { Vec::new() };
    if is_deleted && dependents.is_empty() {
        apply::delete(&name, context).await?;
        objects::ignore_not_found(objects::remove_finalizer(&servers, object, finalizers::POLICIES).await)?;
        return Ok(Action::await_change());
    }
    // The objects of a malformed policy server stay as they are.
    let Ok(server) = &object.0 else { return Ok(Action::await_change()) };
    // While a policy needs it, a policy server that is being deleted is reconciled like any other.
    let renewed = secrets::renew(server, context).await?;
    let refusals = apply::objects(server, &build::objects(server, &context.settings.defaults), context).await?;
    apply::report(server, &refusals, context).await;
    if refusals.is_empty() {
        apply::delete_unused_claim(server, context).await?;
    }
    // An error here must not keep the status from being written.
    let replaced = lost_pods::replace(server, context).await;
    status::write(server, &renewed, &dependents, &refusals, context).await?;
    let due = objects::duration_until(renewed.next_check, Timestamp::now()).min(RESYNC);
    let due = replaced?.map_or(due, |next_check| next_check.min(due));
    // The controller tries again later, as after any error. A race is tried again sooner.
    match refusals.into_iter().map(|refusal| refusal.error).min_by_key(Error::is_race) {
        Some(error) => Err(error),
        None => Ok(Action::requeue(due)),
    }
}

#[cfg(test)]
mod tests;
