//! The resource of the published form, and its conversion from and to the spec of a policy.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::jiff::Timestamp;
use proviso_crds::{
    DEFAULT_PRIORITY, MAX_DESCRIPTION, MAX_DISPLAY_NAME, PRIORITIES, PolicySpec, Program, Rego, RegoDialect,
    RequestLevel, ServiceRequests,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Result;
use crate::body;
use crate::error::{Error, FieldViolation};
use crate::request_policies::without_nulls;
use crate::store::StoredPolicy;

/// The maximum length of `rego_code`, in characters.
const MAX_REGO: usize = 65_536;
/// The rule that the published engine evaluates, in the package of the module.
const ENTRYPOINT: &str = "main";
/// The fields that no patch can change.
const IMMUTABLE: &[&str] = &["path", "id", "policy_type", "create_time", "update_time"];
/// The fields among them that are times.
const TIMES: &[&str] = &["create_time", "update_time"];

/// The level of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum PolicyType {
    Global,
    User,
}

/// A policy, as this form shows it.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub id: String,
    pub content: Content,
    pub create_time: Option<Time>,
    pub update_time: Option<Time>,
}

/// The fields that clients write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content {
    pub display_name: String,
    pub description: Option<String>,
    pub policy_type: PolicyType,
    pub label_selector: BTreeMap<String, String>,
    pub priority: u32,
    pub rego_code: String,
    pub enabled: bool,
}

/// The fields of a body. Those that the server sets are ignored (AIP-203).
#[derive(Deserialize)]
#[allow(dead_code, reason = "the fields that the server sets are known, and ignored")]
struct Fields {
    path: Option<Value>,
    id: Option<Value>,
    display_name: Option<String>,
    description: Option<String>,
    policy_type: Option<PolicyType>,
    label_selector: Option<BTreeMap<String, String>>,
    priority: Option<u32>,
    rego_code: Option<String>,
    enabled: Option<bool>,
    create_time: Option<Value>,
    update_time: Option<Value>,
}

/// Returns true if a client may choose this id.
pub(super) fn is_client_id(id: &str) -> bool {
    is_id(id) && id.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Returns true if a policy can have this id. The ids of the server may start with a digit.
pub(super) fn is_id(id: &str) -> bool {
    id.len() <= 63 && proviso_core::names::is_dns_label(id)
}

impl Resource {
    /// Returns the policy in this form. `None` if this form cannot show it: a policy with a tenant, a fixed user, service types,
    /// another program than one Rego module, a selector with expressions, or a name that is no id.
    pub(super) fn of(stored: &StoredPolicy) -> Option<Self> {
        let id = stored.id.namespace().is_none().then(|| stored.id.name()).filter(|id| is_id(id))?;
        let request = stored.spec.request.as_ref()?;
        let Program::Rego(Rego { source, dialect: RegoDialect::Request, .. }) = &stored.spec.program else {
            return None;
        };
        let policy_type = match request.level {
            Some(RequestLevel::Global) | None => PolicyType::Global,
            Some(RequestLevel::User) => PolicyType::User,
            Some(RequestLevel::Tenant) => return None,
        };
        if request.user.is_some() || !request.service_types.is_empty() {
            return None;
        }
        let LabelSelector { match_expressions, match_labels } = request.selector.clone().unwrap_or_default();
        if match_expressions.is_some_and(|expressions| !expressions.is_empty()) {
            return None;
        }
        Some(Self {
            id: id.to_owned(),
            content: Content {
                display_name: request.display_name(id).to_owned(),
                description: request.description.clone(),
                policy_type,
                label_selector: match_labels.unwrap_or_default(),
                priority: request.priority,
                rego_code: source.clone(),
                enabled: stored.spec.enabled,
            },
            create_time: stored.meta.create_time.clone(),
            // A store may know no update of a policy that it has just created.
            update_time: stored.meta.update_time.clone().or_else(|| stored.meta.create_time.clone()),
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let Content { display_name, description, policy_type, label_selector, priority, rego_code, enabled } =
            &self.content;
        without_nulls(json!({
            "path": format!("policies/{}", self.id),
            "id": self.id,
            "display_name": display_name,
            "description": description,
            "policy_type": policy_type,
            "label_selector": Some(label_selector).filter(|labels| !labels.is_empty()),
            "priority": priority,
            "rego_code": rego_code,
            "enabled": enabled,
            "create_time": self.create_time,
            "update_time": self.update_time,
        }))
    }

    /// Returns the content after a merge patch (RFC 7396).
    ///
    /// # Errors
    /// Returns an error if the patch changes an immutable field, or if the new content is not valid.
    pub(super) fn patched(&self, patch: &Value) -> Result<Content> {
        let mut merged = self.to_json();
        let changed = IMMUTABLE.iter().filter_map(|field| {
            let (new, old) = (patch.get(field)?, merged.get(*field).unwrap_or(&Value::Null));
            let description = || format!("is immutable: its value is {old}; leave the field out");
            (!is_same(field, old, new))
                .then(|| FieldViolation { field: (*field).to_owned(), description: description() })
        });
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() {
            return Err(Error::violations(changed));
        }
        json_patch::merge(&mut merged, patch);
        let Value::Object(merged) = merged else { return Err(Error::invalid("body", "is not a JSON object")) };
        Content::read(merged)
    }
}

/// Returns true if the value of an immutable field is the same. Times are compared as instants.
fn is_same(field: &str, old: &Value, new: &Value) -> bool {
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    match (time(old), time(new)) {
        (Some(old), Some(new)) if TIMES.contains(&field) => old == new,
        _ => old == new,
    }
}

impl Content {
    /// Reads and validates the fields of a body.
    pub(super) fn read(body: Map<String, Value>) -> Result<Self> {
        let fields: Fields = body::typed("", Value::Object(body))?;
        let mut violations = Vec::new();
        let mut refuse = |field: &str, description: String| {
            violations.push(FieldViolation { field: field.to_owned(), description });
        };
        let display_name = fields.display_name.unwrap_or_default();
        let length = display_name.chars().count();
        if display_name.trim().is_empty() {
            refuse("display_name", "is missing or blank".to_owned());
        } else if length > MAX_DISPLAY_NAME {
            refuse("display_name", format!("has {length} characters: at most {MAX_DISPLAY_NAME} are allowed"));
        }
        let length = fields.description.as_ref().map_or(0, |description| description.chars().count());
        if length > MAX_DESCRIPTION {
            refuse("description", format!("has {length} characters: at most {MAX_DESCRIPTION} are allowed"));
        }
        let policy_type = fields.policy_type.unwrap_or_else(|| {
            refuse("policy_type", "is missing: must be GLOBAL or USER".to_owned());
            PolicyType::Global
        });
        let priority = fields.priority.unwrap_or(DEFAULT_PRIORITY);
        if !PRIORITIES.contains(&priority) {
            let (first, last) = PRIORITIES.into_inner();
            refuse("priority", format!("is {priority}: must be {first} to {last}"));
        }
        let rego_code = fields.rego_code.unwrap_or_default();
        let length = rego_code.chars().count();
        if rego_code.trim().is_empty() {
            refuse("rego_code", "is missing or blank".to_owned());
        } else if length > MAX_REGO {
            refuse("rego_code", format!("has {length} characters: at most {MAX_REGO} are allowed"));
        }
        if !violations.is_empty() {
            return Err(Error::violations(violations));
        }
        Ok(Self {
            display_name,
            description: fields.description,
            policy_type,
            label_selector: fields.label_selector.unwrap_or_default(),
            priority,
            rego_code,
            enabled: fields.enabled.unwrap_or(true),
        })
    }

    /// Returns the spec of a new policy. An undefined rule `main` is no error in the published form, so the spec names the rule.
    pub(super) fn to_new_spec(&self) -> Result<PolicySpec> {
        let level = match self.policy_type {
            PolicyType::Global => RequestLevel::Global,
            PolicyType::User => RequestLevel::User,
        };
        let selector = self.selector();
        let spec = json!({
            "program": {"rego": {"source": self.rego_code, "dialect": RegoDialect::Request, "entrypoint": ENTRYPOINT}},
            "enabled": self.enabled,
            "request": without_nulls(json!({
                "displayName": self.display_name, "description": self.description, "selector": selector,
                "priority": self.priority, "level": level,
            })),
        });
        body::typed("spec", spec)
    }

    /// Returns the spec with this content. The fields that do not change stay as they are written, because another spelling would be
    /// another version.
    pub(super) fn to_changed_spec(&self, before: &Resource, spec: &PolicySpec) -> PolicySpec {
        let (mut spec, before) = (spec.clone(), &before.content);
        if let Some(request) = &mut spec.request {
            self.change_request(before, request);
        }
        if let Program::Rego(rego) = &mut spec.program
            && self.rego_code != before.rego_code
        {
            rego.source.clone_from(&self.rego_code);
        }
        spec.enabled = self.enabled;
        spec
    }

    fn change_request(&self, before: &Self, request: &mut ServiceRequests) {
        if self.display_name != before.display_name {
            request.display_name = Some(self.display_name.clone());
        }
        if self.label_selector != before.label_selector {
            request.selector = self.selector();
        }
        request.description.clone_from(&self.description);
        request.priority = self.priority;
    }

    fn selector(&self) -> Option<LabelSelector> {
        let match_labels = Some(self.label_selector.clone()).filter(|labels| !labels.is_empty())?;
        Some(LabelSelector { match_labels: Some(match_labels), match_expressions: None })
    }
}

#[cfg(test)]
mod tests;
