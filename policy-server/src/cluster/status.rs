//! Computes the status of a revision that this replica and the leader must write. Pure functions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::reasons;
use proviso_crds::{ConditionState, ConditionStatus, ConditionType, ModuleStatus, PreviewReport, ReplicaStatus};
use serde_json::{Value, json};

use super::object::Object;
use super::reported::Reported;
use crate::config::Replica;
use crate::lifecycle::Slot;

/// The version that this server reports.
pub(super) const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The maximum length of a message, in characters. The limit exists because one object has a message of each replica.
const MAX_MESSAGE: usize = 1024;

/// A status update: the complete part of each of the two writers; `None` if the part is up to date.
#[derive(Debug)]
pub(super) struct Update {
    pub replica: Option<Value>,
    pub leader: Option<Value>,
    /// The `metadata.resourceVersion` of the state from which the update was computed. The API server refuses the leader's part if it
    /// has a newer state: a former leader may not know the modules that its successor has pinned.
    pub resource_version: Option<String>,
}

/// The preview of a candidate on this replica.
#[derive(Debug)]
pub(super) struct Preview {
    /// The counts and samples; `None` if the candidate was never previewed.
    pub report: Option<PreviewReport>,
    /// True if the candidate is disabled and is not evaluated any more, so that the counts are final.
    pub is_suspended: bool,
}

impl Update {
    /// Returns the update to write; `None` if the status is up to date.
    pub(super) fn of(
        object: &Object,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        preview: Preview,
        time: Timestamp,
    ) -> Option<Self> {
        let time = Time(Timestamp::from_second(time.as_second()).unwrap_or(time));
        let update = Self {
            replica: replica_part(object, slot, replica, preview, &time),
            leader: is_leader.then(|| leader_part(object, slot, &time)).flatten(),
            resource_version: object.observed.reported.resource_version.clone(),
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
    Some(Err(Failure { reason: reason.clone(), message: shorten(message) }))
}

fn shorten(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

/// Returns the modules of the loaded revision, by their references.
fn loaded_modules(slot: Option<&Slot>) -> impl Iterator<Item = (&String, &Digest)> {
    slot.and_then(Slot::loaded).into_iter().flat_map(|loaded| &loaded.modules)
}

/// Returns true if a leader has pinned each loaded module. Without the pin, another leader could pin another module.
fn is_pinned(reported: &Reported, slot: Option<&Slot>) -> bool {
    loaded_modules(slot).all(|(reference, digest)| reported.modules.get(reference) == Some(digest))
}

fn replica_part(
    object: &Object,
    slot: Option<&Slot>,
    replica: &Replica,
    preview: Preview,
    time: &Time,
) -> Option<Value> {
    let reported = &object.observed.reported;
    let old = reported.replica.as_ref();
    if slot.is_none() {
        // Applying the part without the item removes the item.
        return old.map(|_| json!({}));
    }
    let was_ready = old.is_some_and(|old| old.pod_uid == replica.pod_uid && old.ready == ConditionStatus::True);
    let result = result(slot).filter(|result| result.is_err() || was_ready || is_pinned(reported, slot));
    let ConditionState { status: ready, reason, message } = match (result, object.unreadable()) {
        (Some(Ok(())), _) if preview.is_suspended => ConditionState::yes(reasons::SUSPENDED, ""),
        (Some(Ok(())), None) => ConditionState::yes(reasons::LOADED, ""),
        (Some(Ok(())), Some(failure)) => ConditionState::yes(reasons::LOADED_BEFORE, loaded_before(failure)),
        (Some(Err(failure)), _) => failure.into(),
        // The server was restarted in its pod, and its item still reports that the revision is ready.
        (None, _) if was_ready => ConditionState::no(reasons::LOADING, ""),
        (None, _) => return None,
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
        preview: preview.report,
    };
    (old != Some(&new)).then(|| json!({"replicas": [new]}))
}

/// Returns the message of a revision that goes on serving although its current form cannot be read.
pub(super) fn loaded_before(failure: &Failure) -> String {
    const STATE: &str = "the loaded revision goes on answering, but a restart of this replica would not load it";
    shorten(&format!("{STATE}: {failure}"))
}

fn leader_part(object: &Object, slot: Option<&Slot>, time: &Time) -> Option<Value> {
    let result = result(slot)?;
    let observed = &object.observed;
    let (reported, old) = (&observed.reported, &observed.reported.initialized);
    if result.is_err() && reported.is_initialized() {
        // The revision was prepared before. Only the item of this replica reports that it cannot load the revision now.
        return None;
    }
    let mut modules = reported.modules.clone();
    for (reference, digest) in loaded_modules(slot) {
        if modules.entry(reference.clone()).or_insert(*digest) != digest {
            // Another leader has pinned another module. A pin never changes: this replica loads the pinned module instead.
            return None;
        }
    }
    let state = match result {
        Ok(()) => ConditionState::yes(reasons::PREPARED, "the program was compiled and accepted its settings"),
        Err(failure) => failure.into(),
    };
    let new = state.into_condition(ConditionType::Initialized, old.as_slice(), observed.object_generation, time.0);
    if old.as_ref() == Some(&new) && reported.modules == modules {
        return None;
    }
    let module =
        |(module, digest): (&String, &Digest)| ModuleStatus { module: module.clone(), digest: digest.to_string() };
    let modules: Vec<_> = modules.iter().map(module).collect();
    Some(json!({"conditions": [new], "modules": modules}))
}
