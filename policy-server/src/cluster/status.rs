//! Computes the status of a revision that this replica and the leader must write. Pure functions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::reasons;
use proviso_crds::{ConditionState, ConditionStatus, ConditionType, ModuleStatus, PreviewReport, ReplicaStatus};
use serde_json::{Value, json};

use super::revision::ObservedRevision;
use crate::config::Replica;
use crate::lifecycle::Slot;

/// The version that this server reports.
const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The maximum length of a message, in characters. The limit exists because one object has a message of each replica.
const MAX_MESSAGE: usize = 1024;

/// A status update: the complete part of each of the two writers; `None` if the part is up to date.
#[derive(Debug)]
pub(super) struct Update {
    pub replica: Option<Value>,
    pub leader: Option<Value>,
}

impl Update {
    /// Returns the update to write; `None` if the status is up to date.
    pub(super) fn of(
        observed: &ObservedRevision,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        preview: Option<PreviewReport>,
        time: Timestamp,
    ) -> Option<Self> {
        let time = Time(Timestamp::from_second(time.as_second()).unwrap_or(time));
        let update = Self {
            replica: replica_part(observed, slot, replica, preview, &time),
            leader: is_leader.then(|| leader_part(observed, slot, &time)).flatten(),
        };
        (update.replica.is_some() || update.leader.is_some()).then_some(update)
    }
}

/// Returns the result of loading the revision; `None` if there is no result yet, or if the revision is disabled.
fn result(slot: Option<&Slot>) -> Option<Result<(), Failure>> {
    let slot = slot?;
    if slot.loaded().is_some() {
        return Some(Ok(()));
    }
    let Failure { reason, message } = slot.failure()?;
    let message = message.chars().take(MAX_MESSAGE).collect();
    Some(Err(Failure { reason: reason.clone(), message }))
}

fn replica_part(
    observed: &ObservedRevision,
    slot: Option<&Slot>,
    replica: &Replica,
    preview: Option<PreviewReport>,
    time: &Time,
) -> Option<Value> {
    let old = observed.reported.replica.as_ref();
    if slot.is_none() {
        // Applying the part without the item removes the item.
        return old.map(|_| json!({}));
    }
    let ConditionState { status: ready, reason, message } = match result(slot) {
        Some(Ok(())) => ConditionState::yes(reasons::LOADED, ""),
        Some(Err(failure)) => failure.into(),
        // The server was restarted in its pod, and its item still reports that the revision is ready.
        None if old.is_some_and(|old| old.pod_uid == replica.pod_uid && old.ready == ConditionStatus::True) => {
            ConditionState::no(reasons::LOADING, "")
        }
        None => return None,
    };
    let new = ReplicaStatus {
        name: replica.pod_name.clone(),
        pod_uid: replica.pod_uid.clone(),
        server_version: SERVER_VERSION.to_owned(),
        ready,
        reason: reason.to_string(),
        message,
        last_transition_time: match old {
            Some(old) if old.ready == ready && old.pod_uid == replica.pod_uid => old.last_transition_time.clone(),
            _ => time.clone(),
        },
        preview,
    };
    (old != Some(&new)).then(|| json!({"replicas": [new]}))
}

fn leader_part(observed: &ObservedRevision, slot: Option<&Slot>, time: &Time) -> Option<Value> {
    let result = result(slot)?;
    let old = &observed.reported.initialized;
    if result.is_err() && observed.reported.is_initialized() {
        // The revision was prepared before. Only the item of this replica reports that it cannot load the revision now.
        return None;
    }
    let state = match result {
        Ok(()) => ConditionState::yes(reasons::PREPARED, "the program was compiled and accepted its settings"),
        Err(failure) => failure.into(),
    };
    let new = state.into_condition(ConditionType::Initialized, old.as_slice(), observed.object_generation, time.0);
    let none = BTreeMap::new();
    let loaded = slot.and_then(Slot::loaded).map_or(&none, |loaded| &loaded.modules);
    if old.as_ref() == Some(&new) && observed.reported.modules == *loaded {
        return None;
    }
    let module =
        |(module, digest): (&String, &Digest)| ModuleStatus { module: module.clone(), digest: digest.to_string() };
    let modules: Vec<_> = loaded.iter().map(module).collect();
    Some(json!({"conditions": [new], "modules": modules}))
}
