//! The status of a revision that this replica and the leader are to write. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::conditions::reasons;
use proviso_crds::{ConditionState, ConditionStatus, ConditionType, ModuleStatus, PreviewReport, ReplicaStatus};
use serde_json::{Value, json};

use super::revision::Seen;
use crate::config::Replica;
use crate::lifecycle::Slot;

/// The version that this server reports.
const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The longest message, in characters: each replica has one in the same object.
const MAX_MESSAGE: usize = 1024;

/// What is to be written: for each of the two writers its whole part of the status.
#[derive(Debug)]
pub(super) struct Update {
    pub replica: Option<Value>,
    pub leader: Option<Value>,
}

impl Update {
    /// None where the object says everything already.
    pub(super) fn of(
        seen: &Seen,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        preview: Option<PreviewReport>,
        time: Timestamp,
    ) -> Option<Self> {
        let time = Time(Timestamp::from_second(time.as_second()).unwrap_or(time));
        let update = Self {
            replica: replica_part(seen, slot, replica, preview, &time),
            leader: is_leader.then(|| leader_part(seen, slot, &time)).flatten(),
        };
        (update.replica.is_some() || update.leader.is_some()).then_some(update)
    }
}

/// Whether the revision can be served; `None` while that is not known, or while it is disabled.
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
    seen: &Seen,
    slot: Option<&Slot>,
    replica: &Replica,
    preview: Option<PreviewReport>,
    time: &Time,
) -> Option<Value> {
    let old = seen.reported.replica.as_ref();
    if slot.is_none() {
        // An applied part without the item takes it away.
        return old.map(|_| json!({}));
    }
    let ConditionState { status: ready, reason, message } = match result(slot) {
        Some(Ok(())) => ConditionState::yes(reasons::LOADED, ""),
        Some(Err(failure)) => failure.into(),
        // A server that was restarted in its pod must not be taken for the one that said this.
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

fn leader_part(seen: &Seen, slot: Option<&Slot>, time: &Time) -> Option<Value> {
    let result = result(slot)?;
    let old = &seen.reported.initialized;
    if result.is_err() && seen.reported.is_initialized() {
        // It was prepared: that this replica cannot load it now is what it says of itself.
        return None;
    }
    let state = match result {
        Ok(()) => ConditionState::yes(reasons::PREPARED, "the program was compiled and accepted its settings"),
        Err(failure) => failure.into(),
    };
    let new = state.into_condition(ConditionType::Initialized, old.as_slice(), seen.object_generation, time.0);
    let none = BTreeMap::new();
    let loaded = slot.and_then(Slot::loaded).map_or(&none, |loaded| &loaded.modules);
    if old.as_ref() == Some(&new) && seen.reported.modules == *loaded {
        return None;
    }
    let module =
        |(module, digest): (&String, &Digest)| ModuleStatus { module: module.clone(), digest: digest.to_string() };
    let modules: Vec<_> = loaded.iter().map(module).collect();
    Some(json!({"conditions": [new], "modules": modules}))
}
