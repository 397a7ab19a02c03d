//! The form of the API that the DCM project published: AEP methods, snake case, and ids that clients may choose. Its policies are
//! cluster-scoped, have one inline Rego module, and are named by their ids.

mod list;
mod resource;

use axum::http::Method;
use proviso_core::PolicyId;
use serde_json::Value;

use super::call::{Answer, Call};
use super::policies::{Key, Policies, Result};
use super::{Form, Target};
use crate::error::{Code, Error};
use crate::store::{PolicyStore, StoredPolicy};
use crate::uniqueness::{DISPLAY_NAME_IN_USE, PRIORITY_IN_USE};
use resource::{Content, Resource};

/// The fields of this form, by the prefixes of the fields of the spec.
const FIELDS: &[(&str, &str)] = &[
    ("spec.request.displayName", "display_name"),
    ("spec.request.description", "description"),
    ("spec.request.level", "policy_type"),
    ("spec.request.priority", "priority"),
    ("spec.request.selector.matchLabels", "label_selector"),
    ("spec.request.selector", "label_selector"),
    ("spec.program.rego.source", "rego_code"),
    ("spec.program.rego", "rego_code"),
    ("spec.program", "rego_code"),
    ("name", "id"),
];

pub(super) async fn answer<S: PolicyStore>(policies: &Policies<S>, target: &Target, call: Call) -> Result<Answer> {
    let answered = match (&call.method, target) {
        (&Method::POST, _) => create(policies, call).await,
        (_, Target::Collection) => list(policies, &call).await,
        (&Method::PATCH, Target::Policy(id)) => update(policies, id, call).await,
        (&Method::DELETE, Target::Policy(id)) => delete(policies, id, &call).await,
        (_, Target::Policy(id)) => get(policies, id, &call).await,
    };
    answered.map_err(to_published)
}

/// Returns the error with the names of the fields of this form.
fn to_published(error: Error) -> Error {
    let rule = match error.reason() {
        DISPLAY_NAME_IN_USE => " (the display name is unique among the policies of one policy type)",
        PRIORITY_IN_USE => " (the priority is unique among the policies of one policy type)",
        _ => "",
    };
    let mut error = error.with_field_names(FIELDS);
    error.message.push_str(rule);
    error
}

async fn create<S: PolicyStore>(policies: &Policies<S>, call: Call) -> Result<Answer> {
    let [id] = call.parameters(["id"])?;
    let id = match id {
        Some(id) if resource::is_client_id(id) => id.to_owned(),
        Some(id) => {
            let id: String = id.chars().take(100).collect();
            let message = format!(
                "is {id:?}: an id has 1 to 63 characters of a-z, 0-9 and '-', starts with a letter, and ends with a letter or a digit"
            );
            return Err(Error::invalid("id", message));
        }
        None => uuid::Uuid::new_v4().to_string(),
    };
    let caller = call.caller.clone();
    let spec = Content::read(call.body)?.to_new_spec()?;
    let key = policy_id(&id)?;
    let stored = policies.create(caller.as_ref(), &key, &spec).await.map_err(|error| match error.code {
        // The name of the object in the store is no concern of this form.
        Code::AlreadyExists if error.violations.is_empty() => Error::already_exists(&format!("policies/{id}")),
        _ => error,
    })?;
    let location = format!("{}policies/{id}", Form::Published.prefix());
    Ok(Answer::Created(location, show(&stored, &id)?.to_json()))
}

async fn list<S: PolicyStore>(policies: &Policies<S>, call: &Call) -> Result<Answer> {
    let [size, token, filter, order] = call.parameters(["max_page_size", "page_token", "filter", "order_by"])?;
    let query = list::Query::parse(size, token, filter, order)?;
    let stored = policies.store.cluster_policies(call.caller()).await?;
    Ok(Answer::Ok(query.page(stored.iter().filter_map(Resource::of).collect())))
}

async fn get<S: PolicyStore>(policies: &Policies<S>, id: &str, call: &Call) -> Result<Answer> {
    call.parameters([])?;
    let stored = policies.get(call.caller(), &key(id)?).await?;
    Ok(Answer::Ok(show(&stored, id)?.to_json()))
}

async fn update<S: PolicyStore>(policies: &Policies<S>, id: &str, call: Call) -> Result<Answer> {
    call.parameters([])?;
    let (key, patch) = (key(id)?, Value::Object(call.body.clone()));
    let stored = policies.update(call.caller(), &key, |stored| {
        let resource = show(stored, id)?;
        Ok(resource.patched(&patch)?.to_changed_spec(&resource, &stored.spec))
    });
    let stored = stored.await?;
    Ok(Answer::Ok(show(&stored, id)?.to_json()))
}

async fn delete<S: PolicyStore>(policies: &Policies<S>, id: &str, call: &Call) -> Result<Answer> {
    call.parameters([])?;
    policies.delete(call.caller(), &key(id)?, |stored| show(stored, id).map(drop)).await?;
    Ok(Answer::NoContent)
}

fn policy_id(id: &str) -> Result<PolicyId> {
    PolicyId::cluster(id).map_err(|_| not_found(id))
}

/// Returns the key of the policy with this id. An id that no policy can have is not found.
fn key(id: &str) -> Result<Key> {
    if resource::is_id(id) { policy_id(id).map(Key::Id) } else { Err(not_found(id)) }
}

/// Returns the policy in this form. A policy that this form cannot show does not exist in it.
fn show(stored: &StoredPolicy, id: &str) -> Result<Resource> {
    Resource::of(stored).ok_or_else(|| not_found(id))
}

fn not_found(id: &str) -> Error {
    Error::not_found(&format!("policies/{}", id.chars().take(300).collect::<String>()))
}
