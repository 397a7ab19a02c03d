//! The controller of the leader of a policy server. The replicas elect their leader by a Lease, which this controller
//! creates. The status of the policy server reports the leader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use proviso_crds::conditions::status_patch;
use proviso_crds::names::field_managers;
use proviso_crds::{ConditionState, ConditionType, PolicyServer, reasons};
use serde_json::json;

use super::build;
use super::context::{Context, of_label};
use super::names;
use crate::context::Error;
use crate::controller::Controller;
use crate::malformed::MaybeMalformed;
use crate::objects::{RESYNC, duration_until};

/// The first observation of a renewal of a Lease. The operator computes the age of the renewal with its own clock, because
/// the clock of the holder may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObservedRenewal {
    renewed: Timestamp,
    at: Timestamp,
}

/// The result of the election.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leadership {
    /// The replica that leads until this time, if it does not renew its Lease.
    HeldBy(String, Timestamp),
    /// The Lease of the last leader expired at this time.
    Ended(Timestamp),
    /// No leader has been elected, or the leader has resigned.
    Vacant,
}

#[derive(Default)]
struct ObservedRenewals(Mutex<HashMap<String, ObservedRenewal>>);

/// Watches the Leases of all policy servers until the future is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let caches = &context.caches;
    let controller = Controller::new("policyservers-leaders", &caches.servers, &context.metrics);
    controller.trigger_on(&caches.leases, of_label);
    caches.listed().await;
    let renewals = ObservedRenewals::default();
    let reconcile = |server: Arc<MaybeMalformed<PolicyServer>>, context: Arc<Context>| {
        let renewals = &renewals;
        async move { reconcile(&server, renewals, &context).await }
    };
    controller.run(context, stream::pending(), reconcile).await;
}

async fn reconcile(
    server: &MaybeMalformed<PolicyServer>,
    renewals: &ObservedRenewals,
    context: &Context,
) -> Result<Action, Error> {
    // The other controller reports a malformed policy server.
    let Ok(server) = &server.0 else { return Ok(Action::await_change()) };
    let name = names::name(&server.name_any());
    let lease = match context.caches.leases.reader().get(&name, Some(&context.namespace)) {
        Some(lease) => Lease::clone(&lease),
        // The Lease was deleted with its policy server, which the cache may still have.
        None if is_deleted(server, context).await? => return Ok(Action::await_change()),
        None => create(server, &name, context).await?,
    };
    let now = Timestamp::now();
    let leadership = renewals.evaluate(&server.name_any(), &lease.spec.unwrap_or_default(), now);
    write(server, &leadership, context).await?;
    Ok(Action::requeue(match leadership {
        Leadership::HeldBy(_, end) => duration_until(end, now).saturating_add(Duration::from_millis(100)),
        Leadership::Ended(_) | Leadership::Vacant => RESYNC,
    }))
}

/// Creates an empty Lease, which the replicas then acquire. If the Lease exists without the label, adds the label.
async fn create(server: &PolicyServer, name: &str, context: &Context) -> Result<Lease, Error> {
    let leases = context.namespaced::<Lease>();
    let desired = lease(server, name)?;
    match leases.create(&PostParams::default(), &desired).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let labels = json!({"metadata": {"labels": desired.metadata.labels}});
            Ok(leases.patch(name, &PatchParams::default(), &Patch::Merge(labels)).await?)
        }
        created => Ok(created?),
    }
}

/// Returns whether the policy server is being deleted, or is gone.
async fn is_deleted(server: &PolicyServer, context: &Context) -> Result<bool, Error> {
    let found = context.servers().get_metadata_opt(&server.name_any()).await?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some() || found.uid() != server.uid()))
}

fn lease(server: &PolicyServer, name: &str) -> Result<Lease, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Lease { metadata, spec: Some(LeaseSpec::default()) })
}

impl ObservedRenewals {
    fn evaluate(&self, server: &str, lease: &LeaseSpec, now: Timestamp) -> Leadership {
        // The map is consistent even if a thread panicked while it held the lock.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (leadership, observed) = evaluate(lease, known.get(server).copied(), now);
        match observed {
            Some(observed) => known.insert(server.to_owned(), observed),
            None => known.remove(server),
        };
        leadership
    }
}

fn evaluate(
    lease: &LeaseSpec,
    known: Option<ObservedRenewal>,
    now: Timestamp,
) -> (Leadership, Option<ObservedRenewal>) {
    let holder = lease.holder_identity.as_ref().filter(|holder| !holder.is_empty());
    let seconds = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let (Some(holder), Some(seconds), Some(renewed)) = (holder, seconds, &lease.renew_time) else {
        return (Leadership::Vacant, None);
    };
    let observed = match known {
        Some(known) if known.renewed == renewed.0 => known,
        Some(_) => ObservedRenewal { renewed: renewed.0, at: now },
        // At the first observation, only the clock of the holder gives the age of the renewal.
        None => ObservedRenewal { renewed: renewed.0, at: renewed.0.min(now) },
    };
    let end = observed.at + Duration::from_secs(seconds);
    let leadership = if now < end { Leadership::HeldBy(holder.clone(), end) } else { Leadership::Ended(end) };
    (leadership, Some(observed))
}

/// Writes the condition and the leader if they have changed.
async fn write(server: &PolicyServer, leadership: &Leadership, context: &Context) -> Result<(), Error> {
    let known = server.status.clone().unwrap_or_default();
    let consequence = "live policies keep answering, new versions wait for a leader";
    let (leader, state) = match leadership {
        Leadership::HeldBy(leader, _) => {
            (Some(leader), ConditionState::yes(reasons::ELECTED, format!("{leader} leads")))
        }
        Leadership::Ended(end) => {
            let message = format!("no replica leads since {end:.0}; {consequence}");
            (None, ConditionState::no(reasons::LEASE_EXPIRED, message))
        }
        Leadership::Vacant => {
            (None, ConditionState::no(reasons::NO_LEADER, format!("no replica leads; {consequence}")))
        }
    };
    let generation = server.metadata.generation;
    let condition = state.into_condition(ConditionType::LeaderElected, &known.conditions, generation, Timestamp::now());
    if known.leader.as_ref() == leader && known.conditions.contains(&condition) {
        return Ok(());
    }
    let mut status = json!({"conditions": [&condition]});
    if let Some(leader) = leader {
        status["leader"] = json!(leader);
    }
    let apply = PatchParams::apply(field_managers::OPERATOR_LEADER).force();
    let patch = Patch::Apply(status_patch::<PolicyServer>(&status));
    let servers = context.servers();
    context.caches.servers.write(servers.patch_status(&server.name_any(), &apply, &patch)).await?;
    // Events report a new leader and the expiry of a Lease. A policy server without a leader so far is starting, and one
    // whose leader has resigned elects another leader soon.
    match leadership {
        Leadership::HeldBy(..) => {
            context.record(server, EventType::Normal, &condition.reason, &condition.message).await?;
        }
        Leadership::Ended(_) => {
            context.record(server, EventType::Warning, &condition.reason, &condition.message).await?;
        }
        Leadership::Vacant => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn lease(renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some("a-0".to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(at(renewed))),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_leader_leads_as_long_as_its_lease_is_renewed() {
        let renewals = ObservedRenewals::default();
        let of = |end: i64| Leadership::HeldBy("a-0".to_owned(), at(end));
        for (renewed, now, expected) in [
            (0, 5, of(15)),
            (0, 14, of(15)),
            (0, 15, Leadership::Ended(at(15))),
            // The clock of the holder is a minute behind: only the renewals count.
            (-60, 20, of(35)),
            (-50, 30, of(45)),
            (-50, 44, of(45)),
            (-50, 45, Leadership::Ended(at(45))),
            // The clock of the holder is a minute ahead.
            (110, 50, of(65)),
            (110, 65, Leadership::Ended(at(65))),
        ] {
            assert_eq!(renewals.evaluate("a", &lease(renewed), at(now)), expected, "renewed at {renewed}, now {now}");
        }
    }

    #[test]
    fn an_incomplete_lease_has_no_leader() {
        let renewals = ObservedRenewals::default();
        let resigned = LeaseSpec { holder_identity: Some(String::new()), ..lease(0) };
        let endless = LeaseSpec { lease_duration_seconds: None, ..lease(0) };
        let negative = LeaseSpec { lease_duration_seconds: Some(-1), ..lease(0) };
        let never = LeaseSpec { renew_time: None, ..lease(0) };
        for vacant in [LeaseSpec::default(), resigned, endless, negative, never] {
            assert_eq!(renewals.evaluate("a", &vacant, at(0)), Leadership::Vacant);
        }
        // A renewal in the future, by the clock of the holder, does not extend the Lease.
        assert_eq!(renewals.evaluate("a", &lease(500), at(0)), Leadership::HeldBy("a-0".to_owned(), at(15)));
    }
}
