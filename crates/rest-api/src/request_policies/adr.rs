//! The form of the API that the ADR of the DCM project describes: policies of all levels, with ids that the server makes. Policies of a
//! tenant are namespaced, in a namespace of the tenant. The others are cluster-scoped.

mod naming;
mod resource;

use axum::http::Method;
use proviso_core::PolicyId;

use super::call::{Answer, Call};
use super::policies::{Key, Policies, Result};
use super::{Form, Target};
use crate::error::{Code, Error};
use crate::namespace_tenants::{NamespaceTenants, no_namespace};
use crate::page::Page;
use crate::store::{Caller, PolicyStore, StoredPolicy};
use resource::{NewPolicy, PolicyType, Replacement, Resource};

/// The fields of this form, by the prefixes of the fields of the spec.
const FIELDS: &[(&str, &str)] = &[
    ("spec.request.displayName", "name"),
    ("spec.request.level", "type"),
    ("spec.request.selector", "labelSelector"),
    ("spec.request.", ""),
    ("spec.program.rego.source", "rego"),
    ("spec.program.rego", "rego"),
    ("spec.program", "rego"),
];

pub(super) async fn answer<S: PolicyStore>(policies: &Policies<S>, target: &Target, call: Call) -> Result<Answer> {
    let answered = match (&call.method, target) {
        (&Method::POST, _) => create(policies, call).await,
        (_, Target::Collection) => list(policies, &call).await,
        (&Method::PUT, Target::Policy(id)) => replace(policies, id, call).await,
        (&Method::DELETE, Target::Policy(id)) => delete(policies, id, &call).await,
        (_, Target::Policy(id)) => get(policies, id, &call).await,
    };
    answered.map_err(|error| error.with_field_names(FIELDS))
}

async fn create<S: PolicyStore>(policies: &Policies<S>, call: Call) -> Result<Answer> {
    call.parameters([])?;
    let caller = call.caller.clone();
    let new = NewPolicy::read(call.body)?;
    let tenants = policies.store.tenants().await?;
    let namespace = new.tenant.as_ref().map(|tenant| tenants.namespace(tenant)).transpose()?;
    let spec = new.to_spec()?;
    let id = |name: &str| PolicyId::new(namespace, name).map_err(|error| Error::invalid("name", error.to_string()));
    let created = match policies.create(caller.as_ref(), &id(&naming::slug(&new.name))?, &spec).await {
        // Another name has the same slug, or the policy of another level or user has this name.
        Err(error) if is_name_taken(&error) => {
            let name = naming::unique_slug(&new.name, &uuid::Uuid::new_v4());
            policies.create(caller.as_ref(), &id(&name)?, &spec).await
        }
        created => created,
    };
    let stored = created.map_err(|error| match &new.tenant {
        Some(tenant) if error.code == Code::NotFound => no_namespace(tenant),
        _ => error,
    })?;
    let location = format!("{}policies/{}", Form::Adr.prefix(), stored.meta.uid);
    Ok(Answer::Created(location, show(&stored, &tenants)?))
}

/// Returns true if the name of the object is in use. An error about the display name has a violation.
fn is_name_taken(error: &Error) -> bool {
    error.code == Code::AlreadyExists && error.violations.is_empty()
}

async fn list<S: PolicyStore>(policies: &Policies<S>, call: &Call) -> Result<Answer> {
    let [size, token, name, policy_type, tenant, user, service_type] =
        call.parameters(["pageSize", "pageToken", "name", "type", "tenant", "user", "serviceType"])?;
    let policy_type = policy_type.map(PolicyType::parse).transpose()?;
    let arguments = [name, policy_type.map(PolicyType::as_str), tenant, user, service_type];
    let page = Page::new(size, token, &arguments.map(Option::unwrap_or_default))?;
    let tenants = policies.store.tenants().await?;
    let stored = stored_policies(policies, call.caller(), policy_type, tenant, &tenants).await?;
    let is_match = |resource: &Resource| {
        name.is_none_or(|name| resource.name == name)
            && policy_type.is_none_or(|expected| resource.policy_type == expected)
            && tenant.is_none_or(|tenant| resource.tenant.as_deref() == Some(tenant))
            && user.is_none_or(|user| resource.user.as_deref() == Some(user))
            && service_type.is_none_or(|service_type| resource.covers_service_type(service_type))
    };
    let found = stored.iter().filter_map(|stored| Resource::of(stored, &tenants)).filter(is_match);
    let mut found: Vec<_> = found.map(|resource| (resource.position(), resource)).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found.retain(|(position, _)| page.is_after_previous(position));
    let is_last = found.len() <= page.size();
    found.truncate(page.size());
    let last = found.last().filter(|_| !is_last).map(|(position, _)| position.clone());
    let resources = found.iter().map(|(_, resource)| resource.to_json()).collect();
    Ok(Answer::Ok(page.response("policies", resources, last.as_deref())))
}

/// Returns the policies that a list can have. The caller only needs the permission to list these.
async fn stored_policies<S: PolicyStore>(
    policies: &Policies<S>,
    caller: Option<&Caller>,
    policy_type: Option<PolicyType>,
    tenant: Option<&str>,
    tenants: &NamespaceTenants,
) -> Result<Vec<StoredPolicy>> {
    match (policy_type, tenant) {
        (Some(PolicyType::Global), _) => policies.store.cluster_policies(caller).await,
        (_, Some(tenant)) => {
            let mut found = Vec::new();
            for namespace in tenants.namespaces(tenant) {
                found.extend(policies.store.policies(caller, Some(namespace)).await?);
            }
            Ok(found)
        }
        (_, None) => policies.store.policies(caller, None).await,
    }
}

async fn get<S: PolicyStore>(policies: &Policies<S>, id: &str, call: &Call) -> Result<Answer> {
    call.parameters([])?;
    let stored = policies.get(call.caller(), &Key::Uid(id.to_owned())).await?;
    Ok(Answer::Ok(show(&stored, &policies.store.tenants().await?)?))
}

async fn replace<S: PolicyStore>(policies: &Policies<S>, id: &str, call: Call) -> Result<Answer> {
    call.parameters([])?;
    let tenants = policies.store.tenants().await?;
    let (replacement, key) = (Replacement::read(&call.body)?, Key::Uid(id.to_owned()));
    let stored = policies.update(call.caller(), &key, |stored| {
        let resource = Resource::of(stored, &tenants).ok_or_else(|| invalid_policy(stored))?;
        replacement.check_immutable(&resource)?;
        replacement.to_spec(&stored.spec)
    });
    Ok(Answer::Ok(show(&stored.await?, &tenants)?))
}

async fn delete<S: PolicyStore>(policies: &Policies<S>, id: &str, call: &Call) -> Result<Answer> {
    call.parameters([])?;
    policies.delete(call.caller(), &Key::Uid(id.to_owned()), |_| Ok(())).await?;
    Ok(Answer::NoContent)
}

fn show(stored: &StoredPolicy, tenants: &NamespaceTenants) -> Result<serde_json::Value> {
    Resource::of(stored, tenants).map(|resource| resource.to_json()).ok_or_else(|| invalid_policy(stored))
}

/// Returns the error for a policy whose level its kind cannot have.
fn invalid_policy(stored: &StoredPolicy) -> Error {
    let message = format!("policy {} has a level that its kind cannot have: correct spec.request.level", stored.id);
    Error::new(Code::FailedPrecondition, "INVALID_LEVEL", message)
}
