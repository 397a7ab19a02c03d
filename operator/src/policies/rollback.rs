//! Rollback: the annotation `proviso.dev/rollback-to` names a generation whose spec becomes the newest generation of
//! the policy.

use kube::Api;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use proviso_crds::names::ROLLBACK_TO;
use proviso_crds::{PolicyRevision, reasons};
use serde_json::json;

use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::revisions::Revision;

/// Performs the rollback that the annotation requests, and removes the annotation. Returns whether there was an
/// annotation.
pub(super) async fn handle_request<K: PolicyObject>(policy: &K, context: &Context) -> Result<bool, Error> {
    let Some(generation) = policy.annotations().get(ROLLBACK_TO) else { return Ok(false) };
    let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
    let (revisions, _) = context.reports.partition(context.caches.revisions.reader().by_key(&uid)).await;
    let found = revisions.iter().find(|revision| revision.policy_ref.generation.to_string() == *generation);
    let found = match found {
        Some(revision) => {
            let api = Api::<PolicyRevision>::namespaced(context.client.clone(), &context.namespace);
            api.get_opt(&revision.name_any()).await?
        }
        None => None,
    };
    let version = policy.resource_version();
    let mut operations = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    operations.push(json!({"op": "remove", "path": "/metadata/annotations/proviso.dev~1rollback-to"}));
    if let Some(revision) = &found {
        operations.push(json!({"op": "replace", "path": "/spec", "value": revision.spec.data}));
    }
    let patch: Patch<()> = Patch::Json(serde_json::from_value(json!(operations))?);
    kinds::api::<K>(&context.client, policy).patch(&policy.name_any(), &PatchParams::default(), &patch).await?;
    context.publish(policy, event(generation, found.is_some(), &revisions)).await?;
    Ok(true)
}

fn event(generation: &str, is_found: bool, revisions: &[Revision]) -> Event {
    let (type_, reason, note) = if is_found {
        (
            EventType::Normal,
            reasons::ROLLED_BACK,
            format!("the spec of generation {generation} is restored, as a new generation"),
        )
    } else {
        let mut retained: Vec<_> = revisions.iter().map(|revision| revision.policy_ref.generation).collect();
        retained.sort_unstable();
        let retained: Vec<_> = retained.iter().map(ToString::to_string).collect();
        let note = format!(
            "there is no generation {generation} to roll back to; retained generations: {}",
            retained.join(", ")
        );
        (EventType::Warning, reasons::ROLLBACK_REFUSED, note)
    };
    Event { type_, reason: reason.to_string(), note: Some(note), action: "Rollback".to_owned(), secondary: None }
}
