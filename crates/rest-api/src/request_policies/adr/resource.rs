//! The resource of the ADR's form, and its conversion from and to the spec of a policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proviso_core::request::Level;
use proviso_crds::{
    DEFAULT_PRIORITY, MAX_DESCRIPTION, MAX_DISPLAY_NAME, PRIORITIES, PolicySpec, Program, Rego, RegoDialect,
    RequestLevel,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Result;
use crate::body;
use crate::error::{Code, Error, FieldViolation};
use crate::namespace_tenants::NamespaceTenants;
use crate::request_policies::without_nulls;
use crate::store::StoredPolicy;

/// The maximum length of `rego`, in bytes.
const MAX_REGO: usize = 256 * 1024;
/// The maximum length of the id of a user or a tenant, in characters.
const MAX_ID: usize = 253;
/// The fields that no replacement can change.
const IMMUTABLE: &[&str] = &["id", "name", "type", "tenant", "user", "createTime", "updateTime"];

/// The level of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(super) enum PolicyType {
    Global,
    Tenant,
    User,
}

/// A policy, as this form shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource {
    id: String,
    pub name: String,
    description: Option<String>,
    #[serde(rename = "type")]
    pub policy_type: PolicyType,
    pub tenant: Option<String>,
    pub user: Option<String>,
    service_types: Vec<String>,
    label_selector: Option<LabelSelector>,
    priority: u32,
    /// The Rego module. `None` if the program of the policy is not one.
    rego: Option<String>,
    enabled: bool,
    create_time: Value,
    update_time: Value,
}

/// The criteria, the priority and the code of a body.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    #[serde(default)]
    service_type: Option<String>,
    #[serde(default)]
    service_types: Option<Vec<String>>,
    #[serde(default)]
    label_selector: Option<LabelSelector>,
    #[serde(default)]
    priority: Option<u32>,
    #[serde(default)]
    rego: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    enabled: Option<bool>,
}

/// The body of a creation.
#[derive(Clone, Debug)]
pub(super) struct NewPolicy {
    pub name: String,
    policy_type: PolicyType,
    pub tenant: Option<String>,
    user: Option<String>,
    content: Content,
}

#[derive(Deserialize)]
struct NewFields {
    #[serde(default)]
    name: Option<String>,
    #[serde(default, rename = "type")]
    policy_type: Option<PolicyType>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    user: Option<String>,
}

/// The body of a replacement.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    content: Content,
    /// The fields that must have the stored values.
    immutable: Map<String, Value>,
}

impl PolicyType {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "Global",
            Self::Tenant => "Tenant",
            Self::User => "User",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let known = [Self::Global, Self::Tenant, Self::User].into_iter().find(|known| known.as_str() == text);
        known.ok_or_else(|| Error::invalid("type", "must be Global, Tenant or User"))
    }
}

impl Resource {
    /// Returns the request policy in this form. `None` if its kind cannot have its level.
    pub(super) fn of(stored: &StoredPolicy, tenants: &NamespaceTenants) -> Option<Self> {
        let request = stored.spec.request.as_ref()?;
        let policy_type = match request.level("spec.request", stored.id.namespace()).ok()? {
            Level::Global => PolicyType::Global,
            Level::Tenant => PolicyType::Tenant,
            Level::User => PolicyType::User,
        };
        let rego = match &stored.spec.program {
            Program::Rego(Rego { source, dialect: RegoDialect::Request, .. }) => Some(source.clone()),
            _ => None,
        };
        Some(Self {
            id: stored.meta.uid.clone(),
            name: request.display_name(stored.id.name()).to_owned(),
            description: request.description.clone(),
            policy_type,
            tenant: stored.id.namespace().map(|namespace| tenants.tenant(namespace).to_owned()),
            user: request.user.clone(),
            service_types: request.service_types.clone(),
            label_selector: request.selector.clone(),
            priority: request.priority,
            rego,
            enabled: stored.spec.enabled,
            create_time: json!(stored.meta.create_time),
            // A store may know no update of a policy that it has just created.
            update_time: json!(stored.meta.update_time.as_ref().or(stored.meta.create_time.as_ref())),
        })
    }

    pub(super) fn to_json(&self) -> Value {
        without_nulls(json!(self))
    }

    /// Returns true if the policy decides about requests of this service type.
    pub(super) fn covers_service_type(&self, service_type: &str) -> bool {
        self.service_types.is_empty() || self.service_types.iter().any(|known| known == service_type)
    }

    /// Returns the position of the policy in a list: the order of the chain, level by level.
    pub(super) fn position(&self) -> String {
        let Self { tenant, user, priority, id, .. } = self;
        let level = self.policy_type as u8;
        json!([level, tenant.as_deref().unwrap_or_default(), format!("{priority:04}"), user, id]).to_string()
    }
}

impl Content {
    fn read(body: Map<String, Value>) -> Result<Self> {
        let content: Self = body::typed("", Value::Object(body))?;
        let mut violations = Vec::new();
        let mut refuse = |field: &str, description: String| {
            violations.push(FieldViolation { field: field.to_owned(), description });
        };
        if content.service_type.is_some() && content.service_types.is_some() {
            refuse("serviceType", "is set together with serviceTypes: set one of them".to_owned());
        }
        if content.service_types().iter().any(String::is_empty) {
            refuse("serviceTypes", "has an empty text".to_owned());
        }
        let priority = content.priority.unwrap_or(DEFAULT_PRIORITY);
        if !PRIORITIES.contains(&priority) {
            let (first, last) = PRIORITIES.into_inner();
            refuse("priority", format!("is {priority}: must be {first} to {last}"));
        }
        let length = content.description.as_ref().map_or(0, |description| description.chars().count());
        if length > MAX_DESCRIPTION {
            refuse("description", format!("has {length} characters: at most {MAX_DESCRIPTION} are allowed"));
        }
        let rego = content.rego.as_deref().unwrap_or_default();
        if rego.trim().is_empty() {
            refuse("rego", "is missing or blank".to_owned());
        } else if rego.len() > MAX_REGO {
            refuse("rego", format!("has {} bytes: at most {MAX_REGO} are allowed", rego.len()));
        }
        if violations.is_empty() { Ok(content) } else { Err(Error::violations(violations)) }
    }

    fn service_types(&self) -> Vec<String> {
        let one = self.service_type.iter();
        one.chain(self.service_types.iter().flatten()).cloned().collect()
    }

    fn program(&self) -> Value {
        json!({"rego": {"source": self.rego, "dialect": RegoDialect::Request}})
    }
}

impl NewPolicy {
    pub(super) fn read(mut body: Map<String, Value>) -> Result<Self> {
        let own: Map<_, _> = ["name", "type", "tenant", "user"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), body.remove(field)?)))
            .collect();
        let fields: NewFields = body::typed("", Value::Object(own))?;
        let content = Content::read(body)?;
        let name = fields.name.unwrap_or_default();
        let length = name.chars().count();
        if name.trim().is_empty() {
            return Err(Error::invalid("name", "is missing or blank"));
        }
        if length > MAX_DISPLAY_NAME {
            let message = format!("has {length} characters: at most {MAX_DISPLAY_NAME} are allowed");
            return Err(Error::invalid("name", message));
        }
        let policy_type =
            fields.policy_type.ok_or_else(|| Error::invalid("type", "is missing: must be Global, Tenant or User"))?;
        for (field, id) in [("tenant", &fields.tenant), ("user", &fields.user)] {
            if id.as_ref().is_some_and(|id| id.is_empty() || id.chars().count() > MAX_ID) {
                return Err(Error::invalid(field, format!("must have 1 to {MAX_ID} characters")));
            }
        }
        let needs = |field: &str, needed: bool, is_set: bool| match (needed, is_set) {
            (true, false) => {
                Err(Error::invalid(field, format!("is missing: a policy of type {} needs it", policy_type.as_str())))
            }
            (false, true) => {
                Err(Error::invalid(field, format!("is not for a policy of type {}", policy_type.as_str())))
            }
            _ => Ok(()),
        };
        match policy_type {
            PolicyType::Global => needs("tenant", false, fields.tenant.is_some())?,
            PolicyType::Tenant => needs("tenant", true, fields.tenant.is_some())?,
            PolicyType::User => {}
        }
        needs("user", policy_type == PolicyType::User, fields.user.is_some())?;
        Ok(Self { name, policy_type, tenant: fields.tenant, user: fields.user, content })
    }

    pub(super) fn to_spec(&self) -> Result<PolicySpec> {
        let level = match self.policy_type {
            PolicyType::Global => RequestLevel::Global,
            PolicyType::Tenant => RequestLevel::Tenant,
            PolicyType::User => RequestLevel::User,
        };
        let content = &self.content;
        let spec = json!({
            "program": content.program(),
            "enabled": content.enabled.unwrap_or(true),
            "request": without_nulls(json!({
                "displayName": self.name, "description": content.description, "level": level, "user": self.user,
                "serviceTypes": content.service_types(), "selector": content.label_selector,
                "priority": content.priority.unwrap_or(DEFAULT_PRIORITY),
            })),
        });
        body::typed("spec", spec)
    }
}

impl Replacement {
    pub(super) fn read(body: &Map<String, Value>) -> Result<Self> {
        let (mut content, mut immutable) = (Map::new(), Map::new());
        for (field, value) in body {
            let fields = if IMMUTABLE.contains(&field.as_str()) { &mut immutable } else { &mut content };
            fields.insert(field.clone(), value.clone());
        }
        if !content.contains_key("priority") {
            return Err(Error::invalid(
                "priority",
                "is missing: a replacement has all fields, among them the priority",
            ));
        }
        Ok(Self { content: Content::read(content)?, immutable })
    }

    /// Checks that the body repeats the values of the immutable fields that it has.
    pub(super) fn check_immutable(&self, resource: &Resource) -> Result<()> {
        let stored = resource.to_json();
        let changed = self.immutable.iter().filter_map(|(field, new)| {
            let old = stored.get(field).unwrap_or(&Value::Null);
            let description = || format!("is immutable: its value is {old}; leave the field out");
            (new != old).then(|| FieldViolation { field: field.clone(), description: description() })
        });
        let changed: Vec<_> = changed.collect();
        if changed.is_empty() { Ok(()) } else { Err(Error::violations(changed)) }
    }

    /// Returns the spec with the criteria, the priority and the code of this body. The description and `enabled` stay if the body does
    /// not have them.
    ///
    /// # Errors
    /// Returns an error if the program of the policy is not one Rego module, because this form cannot show what it would replace.
    pub(super) fn to_spec(&self, spec: &PolicySpec) -> Result<PolicySpec> {
        let (mut spec, content) = (spec.clone(), &self.content);
        match &mut spec.program {
            Program::Rego(rego) if rego.dialect == RegoDialect::Request => {
                if content.rego.as_ref() != Some(&rego.source) {
                    spec.program = body::typed("spec.program", content.program())?;
                }
            }
            _ => {
                let message =
                    "the program of this policy is not one Rego module: change it with /v1, kubectl or in its manifest";
                return Err(Error::new(Code::FailedPrecondition, "OTHER_PROGRAM", message));
            }
        }
        spec.enabled = content.enabled.unwrap_or(spec.enabled);
        if let Some(request) = &mut spec.request {
            request.service_types = content.service_types();
            request.selector.clone_from(&content.label_selector);
            request.priority = content.priority.unwrap_or(request.priority);
            if content.description.is_some() {
                request.description.clone_from(&content.description);
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests;
