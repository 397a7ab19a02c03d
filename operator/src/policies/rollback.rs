//! Rollback: the annotation `proviso.dev/rollback-to` names a generation whose spec becomes the newest generation of
//! the policy. A refused rollback is an Event and the condition `RolledBack`, and delays nothing else of the policy.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource as _, ResourceExt as _};
use proviso_core::Reason;
use proviso_crds::conditions::status_patch;
use proviso_crds::names::{ROLLBACK_TO, field_managers};
use proviso_crds::{ConditionState, ConditionType, Conditions as _, PolicyRevision, reasons};
use serde_json::{Value, json};

use crate::cache::lock;
use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::malformed::MaybeMalformed;
use crate::objects::{RESYNC, event_note, ignore_not_found};

/// The refused requests whose annotation could not be removed, by the uid of the policy: they are tried again with the
/// next resync, and not with each reconcile.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<String, Refusal>>);

/// A refused request.
#[derive(Debug)]
struct Refusal {
    /// The value of the annotation.
    requested: String,
    at: Instant,
}

impl Refusals {
    /// Returns whether this request was refused since the last resync.
    fn contains(&self, uid: &str, requested: &str) -> bool {
        let known = lock(&self.0);
        known.get(uid).is_some_and(|refusal| refusal.requested == requested && refusal.at.elapsed() < RESYNC)
    }

    fn insert(&self, uid: String, requested: String) {
        lock(&self.0).insert(uid, Refusal { requested, at: Instant::now() });
    }

    fn remove(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }
}

/// Performs the rollback that the annotation requests, and removes the annotation. Returns whether the policy has
/// changed, which causes another reconcile.
pub(super) async fn handle_request<K: PolicyObject>(
    policy: &K,
    refusals: &Refusals,
    context: &Context,
) -> Result<bool, Error> {
    let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
    let known = policy.status().and_then(|status| status.conditions.condition(ConditionType::RolledBack));
    let Some(requested) = requested_in(policy.meta()) else {
        refusals.remove(&uid);
        if known.is_some_and(|known| known.observed_generation != policy.meta().generation) {
            // The refusal is about an earlier generation.
            write_condition(policy, None, context).await?;
        }
        return Ok(false);
    };
    if refusals.contains(&uid, requested) {
        return Ok(false);
    }
    let mut metadata = policy.meta().clone();
    if known.is_some() {
        // The condition is about the last request, so that a client can tell the outcomes of two requests apart.
        metadata = write_condition(policy, None, context).await?;
    }
    if requested_in(&metadata) != Some(requested) {
        return Ok(true);
    }
    let cause = match target(&uid, requested, context).await? {
        Ok(revision) => {
            let patch = patch(&metadata, &revision)?;
            let policies = kinds::api::<K>(&context.client, policy);
            match policies.patch(&policy.name_any(), &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if is_refusal(status.code) => status.message.clone(),
                // The policy is gone.
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(true),
                result => {
                    result?;
                    let note = format!("the spec of generation {requested} is restored, as a new generation");
                    publish(policy, EventType::Normal, &reasons::ROLLED_BACK, note, context).await;
                    return Ok(true);
                }
            }
        }
        Err(cause) => cause,
    };
    refuse(policy, requested, &cause, refusals, context).await
}

/// Returns the requested generation, as the annotation names it.
fn requested_in(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(ROLLBACK_TO).map(String::as_str)
}

/// Returns the revision of the requested generation, or the reason why there is none.
async fn target(uid: &str, requested: &str, context: &Context) -> Result<Result<PolicyRevision, String>, Error> {
    let (revisions, _) = context.reports.partition(context.caches.revisions.reader().by_key(uid)).await;
    if let Some(revision) = revisions.iter().find(|it| it.policy_ref.generation.to_string() == requested) {
        let api = Api::<MaybeMalformed<PolicyRevision>>::namespaced(context.client.clone(), &context.namespace);
        if let Some(MaybeMalformed(Ok(revision))) = api.get_opt(&revision.name_any()).await? {
            return Ok(Ok(revision));
        }
    }
    let mut retained: Vec<_> = revisions.iter().map(|revision| revision.policy_ref.generation).collect();
    retained.sort_unstable();
    let retained: Vec<_> = retained.iter().map(ToString::to_string).collect();
    Ok(Err(format!(
        "there is no generation {requested} to roll back to; retained generations: {}",
        retained.join(", ")
    )))
}

/// Returns the patch that restores the spec and removes the annotation. No operation of it can fail, so that the API
/// server answers a concurrent change with a conflict, and not as if it refused the spec.
fn patch(metadata: &ObjectMeta, revision: &PolicyRevision) -> Result<Patch<()>, Error> {
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.remove(ROLLBACK_TO);
    let operations = json!([
        {"op": "add", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
        {"op": "add", "path": "/spec", "value": revision.spec.data},
    ]);
    Ok(Patch::Json(serde_json::from_value(operations)?))
}

/// Returns whether the API server refuses a request for good with this HTTP status: the request is not permitted, or
/// its object is invalid. Other errors may be temporary.
fn is_refusal(code: u16) -> bool {
    // 401 is about the credentials of the operator, 404 and 409 about a concurrent change, 408 and 429 about load.
    (400..500).contains(&code) && ![401, 404, 408, 409, 429].contains(&code)
}

/// Reports the refusal, and removes the annotation. Returns whether the policy has changed.
async fn refuse<K: PolicyObject>(
    policy: &K,
    requested: &str,
    cause: &str,
    refusals: &Refusals,
    context: &Context,
) -> Result<bool, Error> {
    let message = event_note(&format!("the rollback to generation {requested} is refused: {cause}"));
    publish(policy, EventType::Warning, &reasons::ROLLBACK_REFUSED, message.clone(), context).await;
    let state = ConditionState::no(reasons::ROLLBACK_REFUSED, message);
    let metadata = write_condition(policy, Some(state), context).await?;
    if requested_in(&metadata) != Some(requested) {
        return Ok(true);
    }
    // The resource version keeps a newer request, which the operator has not seen.
    let patch = Patch::Merge(json!({"metadata": {
        "annotations": {ROLLBACK_TO: null}, "resourceVersion": metadata.resource_version,
    }}));
    let policies = kinds::api::<K>(&context.client, policy);
    match policies.patch(&policy.name_any(), &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if is_refusal(status.code) => {
            let (policy_name, error) = (policy.name_any(), &status.message);
            tracing::warn!(policy = policy_name, %error, "cannot remove the annotation of a refused rollback; trying again later");
            refusals.insert(policy.uid().unwrap_or_default(), requested.to_owned());
            Ok(false)
        }
        result => {
            ignore_not_found(result)?;
            Ok(true)
        }
    }
}

/// Writes the condition `RolledBack`, or removes it. The condition has a field manager of its own: the other conditions
/// are written with each reconcile. Returns the metadata of the written policy.
async fn write_condition<K: PolicyObject>(
    policy: &K,
    state: Option<ConditionState>,
    context: &Context,
) -> Result<ObjectMeta, Error> {
    let generation = policy.meta().generation;
    let condition =
        state.map(|state| state.into_condition(ConditionType::RolledBack, &[], generation, Timestamp::now()));
    let status: Value = condition.map_or_else(|| json!({}), |condition| json!({"conditions": [condition]}));
    let (name, policies) = (policy.name_any(), kinds::api::<K>(&context.client, policy));
    let params = PatchParams::apply(field_managers::OPERATOR_ROLLBACK).force();
    let patch = Patch::Apply(status_patch::<K>(&status));
    let mut metadata = ObjectMeta::default();
    let write = async {
        let written = policies.patch_status(&name, &params, &patch).await?;
        metadata = written.meta().clone();
        Ok::<_, kube::Error>(written)
    };
    K::cache(&context.caches).write(write).await?;
    Ok(metadata)
}

async fn publish<K: PolicyObject>(policy: &K, type_: EventType, reason: &Reason, note: String, context: &Context) {
    let reason = reason.to_string();
    let event = Event { type_, reason, note: Some(note), action: "Rollback".to_owned(), secondary: None };
    context.publish_or_log(policy, event).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_stays_the_same_is_a_refusal() {
        for (code, expected) in [
            (400, true),
            (403, true),
            (422, true),
            (401, false),
            (404, false),
            (408, false),
            (409, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(is_refusal(code), expected, "{code}");
        }
    }

    #[test]
    fn a_refused_request_is_not_repeated_until_the_request_changes() {
        let refusals = Refusals::default();
        refusals.insert("a".to_owned(), "1".to_owned());
        assert!(refusals.contains("a", "1") && !refusals.contains("a", "2") && !refusals.contains("b", "1"));
        refusals.remove("a");
        assert!(!refusals.contains("a", "1"));
    }
}
