//! Uniqueness of the display name and the priority of request policies among those of one level, tenant and user (docs/adr/0035).
//! Pure: the operator, the policy server and the command line decide by the same rule which policies have a name or a priority.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use proviso_core::request::Level;
use proviso_core::{Failure, PolicyId, Reason};

use crate::reasons;
use crate::request::{PRIORITIES, RequestScope, ServiceRequests};
use crate::validation::FieldError;

/// The path of the section with the unique fields.
pub const SECTION: &str = "spec.request";

/// The fields of one generation that must be unique, with the level and the user of the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueFields {
    pub level: Level,
    pub user: Option<String>,
    pub display_name: String,
    pub priority: u32,
}

/// A field that must be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UniqueField {
    DisplayName,
    Priority,
}

/// A value of a unique field, in its scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UniqueValue {
    pub scope: RequestScope,
    pub field: UniqueField,
    /// The display name, or the priority as a number.
    pub value: String,
}

/// The creation time and the uid of a policy.
pub type Age = (Timestamp, String);

/// The values that one policy has or wants.
#[derive(Clone, Debug)]
pub struct Claim {
    pub policy: PolicyId,
    /// The tenant of a namespaced policy.
    pub tenant: Option<String>,
    /// The fields of the live generation; `None` if no generation is live.
    pub live: Option<UniqueFields>,
    /// The fields of the newest generation; `None` if it cannot be read.
    pub newest: Option<UniqueFields>,
    /// The age of the policy; `None` if its order is not known, as for two files of a folder. Claims without an age are equal.
    pub age: Option<Age>,
}

/// The loss of one value: another policy has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    pub value: UniqueValue,
    /// The policy that has the value. If no policy has it, because claims without an age are equal: another policy that wants it.
    pub by: PolicyId,
}

impl UniqueFields {
    /// Returns the fields of a policy with this name. `at` is the path of the section, and `namespace` that of a Policy.
    ///
    /// # Errors
    /// Returns the error of [`ServiceRequests::level`].
    pub fn new(request: &ServiceRequests, at: &str, namespace: Option<&str>, name: &str) -> Result<Self, FieldError> {
        Ok(Self {
            level: request.level(at, namespace)?,
            user: request.user.clone(),
            display_name: request.display_name(name).to_owned(),
            priority: request.priority,
        })
    }

    /// Returns the values of these fields. `tenant` is the tenant of a namespaced policy.
    #[must_use]
    pub fn values(&self, tenant: Option<&str>) -> [UniqueValue; 2] {
        let scope = RequestScope { level: self.level, tenant: tenant.map(ToOwned::to_owned), user: self.user.clone() };
        let value = |field, value| UniqueValue { scope: scope.clone(), field, value };
        [
            value(UniqueField::DisplayName, self.display_name.clone()),
            value(UniqueField::Priority, self.priority.to_string()),
        ]
    }
}

impl UniqueField {
    /// Returns the name of the field in `spec.request`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DisplayName => "displayName",
            Self::Priority => "priority",
        }
    }

    /// Returns the reason of a policy that lost a value of this field.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::DisplayName => reasons::NAME_IN_USE,
            Self::Priority => reasons::PRIORITY_IN_USE,
        }
    }
}

impl Claim {
    fn live_values(&self) -> Vec<UniqueValue> {
        self.live.iter().flat_map(|fields| fields.values(self.tenant.as_deref())).collect()
    }

    fn newest_values(&self) -> Vec<UniqueValue> {
        self.newest.iter().flat_map(|fields| fields.values(self.tenant.as_deref())).collect()
    }
}

impl InUse {
    /// Returns the error about the field. `at` is the path of the section `request`.
    #[must_use]
    pub fn to_field_error(&self, at: &str) -> FieldError {
        FieldError::new(format!("{at}.{}", self.value.field.as_str()), self.to_string())
    }

    /// Returns the failure of a policy that lost these values; `None` if it lost none. `at` is the path of the section `request`.
    #[must_use]
    pub fn to_failure(losses: &[Self], at: &str) -> Option<Failure> {
        let reason = losses.first()?.value.field.reason();
        let errors: Vec<_> = losses.iter().map(|loss| loss.to_field_error(at).to_string()).collect();
        Some(Failure::new(reason, errors.join("; ")))
    }
}

impl fmt::Display for InUse {
    /// Writes the message without the field: it follows the path of the field.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value: UniqueValue { scope, field, value }, by } = self;
        match field {
            UniqueField::DisplayName => {
                write!(f, "{value:?} is in use by policy {by} among {scope}: choose another name")
            }
            UniqueField::Priority => {
                let (first, last) = (PRIORITIES.start(), PRIORITIES.end());
                write!(
                    f,
                    "{value} is in use by policy {by} among {scope}: choose another number from {first} to {last}"
                )
            }
        }
    }
}

impl fmt::Display for RequestScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.level, &self.user, &self.tenant) {
            (Level::Global, ..) => f.write_str("the Global policies"),
            (Level::Tenant, _, tenant) => {
                write!(f, "the policies of the tenant {}", tenant.as_deref().unwrap_or_default())
            }
            (Level::User, user, tenant) => {
                match user {
                    Some(user) => write!(f, "the policies of the user {user}")?,
                    None => f.write_str("the policies of all users")?,
                }
                tenant.as_ref().map_or(Ok(()), |tenant| write!(f, " in the tenant {tenant}"))
            }
        }
    }
}

/// Decides which policies have their values. Returns for each claim the values of its newest generation that it lost; an empty list
/// if it has all of them, and may become live. The order of the claims does not matter.
///
/// A live generation has its values. If two are live with the same value, the older policy has it. The newest generations get free
/// values in the order of their ages: a policy that wins takes its name and its priority together, and a policy that loses one of
/// them takes neither, so that it blocks no other policy. Of claims without an age, none gets a value that two of them want.
#[must_use]
pub fn arbitrate(claims: &[Claim]) -> Vec<Vec<InUse>> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&claim| (&claims[claim].age, &claims[claim].policy));
    let groups: Vec<&[usize]> = order.chunk_by(|&a, &b| claims[a].age == claims[b].age).collect();
    // A live value has several holders only if their ages are unknown.
    let mut holders: BTreeMap<UniqueValue, Vec<usize>> = BTreeMap::new();
    for group in &groups {
        let mut added: BTreeMap<UniqueValue, Vec<usize>> = BTreeMap::new();
        for &claim in *group {
            for value in claims[claim].live_values().into_iter().filter(|value| !holders.contains_key(value)) {
                added.entry(value).or_default().push(claim);
            }
        }
        holders.append(&mut added);
    }
    let mut losses = vec![Vec::new(); claims.len()];
    let to_loss = |value: &UniqueValue, by: usize| InUse { value: value.clone(), by: claims[by].policy.clone() };
    for group in groups {
        let mut wanted: BTreeMap<UniqueValue, Vec<usize>> = BTreeMap::new();
        for &claim in group {
            let values = claims[claim].newest_values();
            let other = |value: &UniqueValue| holders.get(value)?.iter().copied().find(|&holder| holder != claim);
            losses[claim] = values.iter().filter_map(|value| Some(to_loss(value, other(value)?))).collect();
            if losses[claim].is_empty() {
                for value in values {
                    wanted.entry(value).or_default().push(claim);
                }
            }
        }
        for (value, rivals) in &wanted {
            for &claim in rivals {
                losses[claim].extend(rivals.iter().find(|&&rival| rival != claim).map(|&rival| to_loss(value, rival)));
            }
        }
        for (value, rivals) in wanted {
            for claim in rivals.into_iter().filter(|&claim| losses[claim].is_empty()) {
                holders.insert(value.clone(), vec![claim]);
            }
        }
    }
    losses
}

#[cfg(test)]
mod tests;
