//! The controller of who leads a policy server. The replicas elect the leader among themselves, by the Lease that is made
//! here; whether one leads is said in the policy server's status.

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
use proviso_core::Reason;
use proviso_crds::conditions::status_patch;
use proviso_crds::names::field_managers;
use proviso_crds::{ConditionState, ConditionType, PolicyServer};
use serde_json::json;

use super::build;
use super::context::{Context, of_label};
use super::names;
use crate::context::Error;
use crate::controller::Controller;
use crate::guarded::Guarded;
use crate::objects::{RESYNC, until};

/// When a Lease was first seen as it is: how old it is by our own clock, whatever its holder's clock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sighting {
    renewed: Timestamp,
    at: Timestamp,
}

/// Whether somebody leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leadership {
    /// This replica, if it does not renew its Lease, until then.
    Of(String, Timestamp),
    /// The last leader was one until then.
    Ended(Timestamp),
    /// Nobody has been elected, or the leader has resigned.
    Vacant,
}

#[derive(Default)]
struct Sightings(Mutex<HashMap<String, Sighting>>);

/// Follows the Leases of all policy servers until it is dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let caches = &context.caches;
    let controller = Controller::new("policyservers-leaders", &caches.servers, &context.metrics);
    controller.add_on(&caches.leases, of_label);
    caches.listed().await;
    let sightings = Sightings::default();
    let reconcile = |server: Arc<Guarded<PolicyServer>>, context: Arc<Context>| {
        let sightings = &sightings;
        async move { reconcile(&server, sightings, &context).await }
    };
    controller.run(context, stream::pending(), reconcile).await;
}

async fn reconcile(server: &Guarded<PolicyServer>, sightings: &Sightings, context: &Context) -> Result<Action, Error> {
    // Another controller reports a policy server that nobody can read.
    let Ok(server) = &server.0 else { return Ok(Action::await_change()) };
    let name = names::name(&server.name_any());
    let lease = match context.caches.leases.reader().get(&name, Some(&context.namespace)) {
        Some(lease) => Lease::clone(&lease),
        // It went with its policy server. What is known here may be older than that.
        None if is_going(server, context).await? => return Ok(Action::await_change()),
        None => create(server, &name, context).await?,
    };
    let now = Timestamp::now();
    let leadership = sightings.judge(&server.name_any(), &lease.spec.unwrap_or_default(), now);
    write(server, &leadership, context).await?;
    Ok(Action::requeue(match leadership {
        Leadership::Of(_, end) => until(end, now).saturating_add(Duration::from_millis(100)),
        Leadership::Ended(_) | Leadership::Vacant => RESYNC,
    }))
}

/// Creates the Lease, empty: its first words are the replicas'. One that is there without the label is given it.
async fn create(server: &PolicyServer, name: &str, context: &Context) -> Result<Lease, Error> {
    let leases = context.namespaced::<Lease>();
    let wanted = lease(server, name)?;
    match leases.create(&PostParams::default(), &wanted).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let labels = json!({"metadata": {"labels": wanted.metadata.labels}});
            Ok(leases.patch(name, &PatchParams::default(), &Patch::Merge(labels)).await?)
        }
        created => Ok(created?),
    }
}

/// Returns whether the policy server is being deleted, or is gone.
async fn is_going(server: &PolicyServer, context: &Context) -> Result<bool, Error> {
    let found = context.servers().get_metadata_opt(&server.name_any()).await?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some() || found.uid() != server.uid()))
}

fn lease(server: &PolicyServer, name: &str) -> Result<Lease, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Lease { metadata, spec: Some(LeaseSpec::default()) })
}

impl Sightings {
    fn judge(&self, server: &str, lease: &LeaseSpec, now: Timestamp) -> Leadership {
        // What is in it is whole even if somebody panicked.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (leadership, sighting) = judge(lease, known.get(server).copied(), now);
        match sighting {
            Some(sighting) => known.insert(server.to_owned(), sighting),
            None => known.remove(server),
        };
        leadership
    }
}

fn judge(lease: &LeaseSpec, known: Option<Sighting>, now: Timestamp) -> (Leadership, Option<Sighting>) {
    let holder = lease.holder_identity.as_ref().filter(|holder| !holder.is_empty());
    let seconds = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let (Some(holder), Some(seconds), Some(renewed)) = (holder, seconds, &lease.renew_time) else {
        return (Leadership::Vacant, None);
    };
    let sighting = match known {
        Some(known) if known.renewed == renewed.0 => known,
        Some(_) => Sighting { renewed: renewed.0, at: now },
        // At first there is nothing to go by but the holder's clock.
        None => Sighting { renewed: renewed.0, at: renewed.0.min(now) },
    };
    let end = sighting.at + Duration::from_secs(seconds);
    let leadership = if now < end { Leadership::Of(holder.clone(), end) } else { Leadership::Ended(end) };
    (leadership, Some(sighting))
}

/// Writes the condition, and the leader, if they are new.
async fn write(server: &PolicyServer, leadership: &Leadership, context: &Context) -> Result<(), Error> {
    let known = server.status.clone().unwrap_or_default();
    let goes_on = "policies that are live go on, new versions wait for a leader";
    let (leader, state) = match leadership {
        Leadership::Of(leader, _) => {
            (Some(leader), ConditionState::yes(Reason::new("Elected"), format!("{leader} leads")))
        }
        Leadership::Ended(end) => {
            let message = format!("nobody leads since {end:.0}; {goes_on}");
            (None, ConditionState::no(Reason::new("LeaseExpired"), message))
        }
        Leadership::Vacant => {
            (None, ConditionState::no(Reason::new("NoLeader"), format!("no replica leads; {goes_on}")))
        }
    };
    let generation = server.metadata.generation;
    let condition = state.into_condition(ConditionType::LeaderElected, &known.conditions, generation, Timestamp::now());
    if known.leader.as_ref() == leader && known.conditions.contains(&condition) {
        return Ok(());
    }
    let mut said = json!({"conditions": [&condition]});
    if let Some(leader) = leader {
        said["leader"] = json!(leader);
    }
    let apply = PatchParams::apply(field_managers::OPERATOR_LEADER).force();
    let patch = Patch::Apply(status_patch::<PolicyServer>(&said));
    let servers = context.servers();
    context.caches.servers.write(servers.patch_status(&server.name_any(), &apply, &patch)).await?;
    // A leader that is lost is news; that there was none yet is not.
    match leadership {
        Leadership::Of(..) => {
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
    fn a_leader_leads_for_as_long_as_its_lease_is_seen_to_change() {
        let sightings = Sightings::default();
        let of = |end: i64| Leadership::Of("a-0".to_owned(), at(end));
        for (renewed, now, expected) in [
            (0, 5, of(15)),
            (0, 14, of(15)),
            (0, 15, Leadership::Ended(at(15))),
            // The holder's clock is a minute behind: what counts is that it renews.
            (-60, 20, of(35)),
            (-50, 30, of(45)),
            (-50, 44, of(45)),
            (-50, 45, Leadership::Ended(at(45))),
            // And a minute ahead.
            (110, 50, of(65)),
            (110, 65, Leadership::Ended(at(65))),
        ] {
            assert_eq!(sightings.judge("a", &lease(renewed), at(now)), expected, "renewed at {renewed}, now {now}");
        }
    }

    #[test]
    fn what_names_no_leader_is_vacant() {
        let sightings = Sightings::default();
        let resigned = LeaseSpec { holder_identity: Some(String::new()), ..lease(0) };
        let endless = LeaseSpec { lease_duration_seconds: None, ..lease(0) };
        let negative = LeaseSpec { lease_duration_seconds: Some(-1), ..lease(0) };
        let never = LeaseSpec { renew_time: None, ..lease(0) };
        for vacant in [LeaseSpec::default(), resigned, endless, negative, never] {
            assert_eq!(sightings.judge("a", &vacant, at(0)), Leadership::Vacant);
        }
        // A future that the holder's clock invents does not lengthen the lease.
        assert_eq!(sightings.judge("a", &lease(500), at(0)), Leadership::Of("a-0".to_owned(), at(15)));
    }
}
