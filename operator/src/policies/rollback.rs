//! Going back: the annotation `proviso.dev/rollback-to` names a generation whose spec becomes the policy's newest.

use kube::Api;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use proviso_crds::PolicyRevision;
use proviso_crds::names::ROLLBACK_TO;
use serde_json::json;

use crate::context::{Context, Error};
use crate::kinds::{self, PolicyObject};
use crate::revisions::Revision;

/// Does what the annotation asks and removes it; whether there was one.
pub(super) async fn wanted<K: PolicyObject>(policy: &K, context: &Context) -> Result<bool, Error> {
    let Some(wanted) = policy.annotations().get(ROLLBACK_TO) else { return Ok(false) };
    let uid = policy.uid().ok_or(Error::Incomplete("uid"))?;
    let (revisions, _) = context.reports.sort(context.caches.revisions.reader().by_key(&uid)).await;
    let found = revisions.iter().find(|revision| revision.policy_ref.generation.to_string() == *wanted);
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
    context.publish(policy, event(wanted, found.is_some(), &revisions)).await?;
    Ok(true)
}

fn event(wanted: &str, is_found: bool, revisions: &[Revision]) -> Event {
    let (type_, reason, note) = if is_found {
        (EventType::Normal, "RolledBack", format!("back to what generation {wanted} was, as a new generation"))
    } else {
        let mut kept: Vec<_> = revisions.iter().map(|revision| revision.policy_ref.generation).collect();
        kept.sort_unstable();
        let kept: Vec<_> = kept.iter().map(ToString::to_string).collect();
        let note = format!("there is no generation {wanted} to go back to; kept are {}", kept.join(", "));
        (EventType::Warning, "RollbackRefused", note)
    };
    Event { type_, reason: reason.to_owned(), note: Some(note), action: "Rollback".to_owned(), secondary: None }
}
