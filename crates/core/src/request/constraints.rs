//! The constraints of all policies so far, by field. A constraint binds the payload, whoever sets the value, and binds each later
//! policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fragment::{Fragment, Violation};
use super::limits::{MAX_STEP_COST, count_values};
use super::merge::{Clash, Merged, equals, implies};
use super::path::{FieldPath, Located, kind_of, list_index};

/// The constraints of all policies so far.
#[derive(Debug, Default)]
pub(super) struct Constraints {
    root: Node,
    /// The fields whose value, as the caller sent it, violates a constraint. A later policy may still correct it.
    pending: BTreeSet<FieldPath>,
    /// The merged constraint of each field, for policies and for the caller.
    merged: Map<String, Value>,
}

/// A field that has constraints, or a parent of one.
#[derive(Debug, Default)]
struct Node {
    field: Option<Field>,
    children: BTreeMap<String, Node>,
}

#[derive(Debug, Default)]
struct Field {
    path: FieldPath,
    merged: Merged,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    /// The position of the policy in the trail.
    holder: usize,
    fragment: Arc<Fragment>,
}

/// A constraint that a patch or a payload violates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Breach {
    /// The constrained field.
    pub field: FieldPath,
    /// The value that violates the constraint, which may be within the field.
    pub at: FieldPath,
    /// The position in the trail of the policy that holds the constraint.
    pub holder: usize,
    pub reason: String,
}

/// The reason why a validation did not end with a verdict.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckError {
    Breach(Breach),
    /// The validation would take too long.
    Cost {
        field: FieldPath,
        holder: usize,
    },
}

/// The cost that the validations of one step may still have.
#[derive(Debug)]
pub(super) struct CostBudget(u64);

impl Default for CostBudget {
    fn default() -> Self {
        Self(MAX_STEP_COST)
    }
}

impl CostBudget {
    fn spend(&mut self, cost: u64, field: &FieldPath, holder: usize) -> Result<(), CheckError> {
        let left = self.0.checked_sub(cost);
        self.0 = left.ok_or_else(|| CheckError::Cost { field: field.clone(), holder })?;
        Ok(())
    }
}

impl From<Breach> for CheckError {
    fn from(breach: Breach) -> Self {
        Self::Breach(breach)
    }
}

impl Constraints {
    /// Returns the merged constraint of each field.
    pub fn merged(&self) -> &Map<String, Value> {
        &self.merged
    }

    /// Adds a constraint of the policy at position `holder`.
    ///
    /// # Errors
    /// Returns a breach if the constraint would loosen an earlier one, or contradicts it.
    pub fn add(
        &mut self,
        path: &FieldPath,
        fragment: Arc<Fragment>,
        holder: usize,
        budget: &mut CostBudget,
    ) -> Result<(), CheckError> {
        let mut node = &mut self.root;
        for key in path.keys() {
            node = node.children.entry(key.clone()).or_default();
        }
        let field = node.field.get_or_insert_with(|| Field { path: path.clone(), ..Field::default() });
        field.check_options(&fragment, budget)?;
        field
            .merged
            .add(&fragment.schema, holder)
            .map_err(|Clash { holder, reason }| field.breach(holder, path.clone(), reason))?;
        self.merged.insert(path.to_string(), field.merged.schema());
        // Only the strictest of several constraints that imply each other is validated.
        if !field.held.iter().any(|held| implies(&held.fragment.schema, &fragment.schema)) {
            field.held.retain(|held| !implies(&fragment.schema, &held.fragment.schema));
            field.held.push(Held { holder, fragment });
        }
        Ok(())
    }

    /// Checks that a patch neither removes a constrained field, nor removes or replaces a parent of one.
    pub fn check_parents(&self, payload: &Value, patch: &Map<String, Value>) -> Result<(), Breach> {
        self.root.check_members(Some(payload), patch, &mut FieldPath::root())
    }

    /// Validates the constraints of the policy at position `holder` after its own patch.
    ///
    /// `writer` returns the policy that set a field. A value of the caller is not an error yet: it becomes pending.
    pub fn check_new(
        &mut self,
        payload: &Value,
        fields: &[FieldPath],
        holder: usize,
        budget: &mut CostBudget,
        writer: impl Fn(&FieldPath) -> Option<usize>,
    ) -> Result<(), CheckError> {
        for path in fields {
            let Some(field) = self.root.find(path) else {
                continue;
            };
            let breach = field.check(payload, budget, |held| held.holder == holder)?;
            match breach {
                Some(breach) if writer(&breach.at).is_some() => return Err(breach.into()),
                Some(_) => {
                    self.pending.insert(path.clone());
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Validates the constraints of all fields that a patch changed, that have such a field, or that are within one.
    pub fn check_changed(
        &mut self,
        payload: &Value,
        changed: &[FieldPath],
        budget: &mut CostBudget,
    ) -> Result<(), CheckError> {
        for field in self.root.affected(changed) {
            let breach = field.check(payload, budget, |_| true)?;
            match breach {
                None => {
                    self.pending.remove(&field.path);
                }
                // The patch leaves a violation of the caller as it is.
                Some(breach)
                    if self.pending.contains(&field.path)
                        && !changed.iter().any(|path| breach.at.starts_with(path)) => {}
                Some(breach) => return Err(breach.into()),
            }
        }
        Ok(())
    }

    /// Validates the fields that are still pending, at the end of the chain.
    pub fn check_pending(&self, payload: &Value, budget: &mut CostBudget) -> Result<(), CheckError> {
        let fields = self.pending.iter().filter_map(|path| self.root.find(path));
        for field in fields {
            if let Some(breach) = field.check(payload, budget, |_| true)? {
                return Err(breach.into());
            }
        }
        Ok(())
    }
}

impl Field {
    /// Checks that a value that one constraint names satisfies the others: a `const`, or some option of an `enum`.
    fn check_options(&self, fragment: &Fragment, budget: &mut CostBudget) -> Result<(), CheckError> {
        for held in &self.held {
            for (named, other) in [(&*held.fragment, fragment), (fragment, &*held.fragment)] {
                let (keyword, options) = match (named.schema.get("const"), named.schema.get("enum")) {
                    (Some(value), _) => ("const", std::slice::from_ref(value)),
                    (None, Some(Value::Array(options))) if !options.is_empty() => ("enum", options.as_slice()),
                    _ => continue,
                };
                // The merge explains a clash of two values, or of two lists, better.
                if other.schema.get(keyword).is_some() {
                    continue;
                }
                let mut is_satisfiable = false;
                for option in options {
                    budget.spend(other.cost(count_values(option)), &self.path, held.holder)?;
                    is_satisfiable = other.is_valid(option);
                    if is_satisfiable {
                        break;
                    }
                }
                if !is_satisfiable {
                    let whose = if std::ptr::eq(other, fragment) { "this policy" } else { "the other policy" };
                    let reason = format!("no value of {keyword} satisfies the constraint of {whose}");
                    return Err(self.breach(held.holder, self.path.clone(), reason).into());
                }
            }
        }
        Ok(())
    }

    /// Validates the field. Returns the first constraint that the payload violates.
    fn check(
        &self,
        payload: &Value,
        budget: &mut CostBudget,
        is_selected: impl Fn(&Held) -> bool,
    ) -> Result<Option<Breach>, CheckError> {
        let mut held = self.held.iter().filter(|held| is_selected(held));
        let value = match self.path.locate(payload) {
            Located::Absent => return Ok(None),
            Located::Present(value) => value,
            Located::Misplaced { parent, kind } => {
                let reason = format!("`{parent}` is {kind}, so it cannot have the constrained field");
                return Ok(held.next().map(|held| self.breach(held.holder, parent, reason)));
            }
        };
        let values = count_values(value);
        for held in held {
            budget.spend(held.fragment.cost(values), &self.path, held.holder)?;
            if let Err(Violation { pointer, message }) = held.fragment.check(value) {
                return Ok(Some(self.breach(held.holder, self.path.join_pointer(&pointer), message)));
            }
        }
        Ok(None)
    }

    fn breach(&self, holder: usize, at: FieldPath, reason: String) -> Breach {
        Breach { field: self.path.clone(), at, holder, reason }
    }
}

impl Node {
    fn find(&self, path: &FieldPath) -> Option<&Field> {
        let mut node = self;
        for key in path.keys() {
            node = node.children.get(key)?;
        }
        node.field.as_ref()
    }

    /// Returns the constrained fields that have a changed field, are one, or are within one.
    fn affected(&self, changed: &[FieldPath]) -> Vec<&Field> {
        let mut fields = BTreeMap::new();
        for path in changed {
            let mut node = Some(self);
            for key in path.keys() {
                fields.extend(node.and_then(|node| node.field.as_ref()).map(|field| (&field.path, field)));
                node = node.and_then(|node| node.children.get(key));
            }
            if let Some(node) = node {
                node.collect(&mut fields);
            }
        }
        fields.into_values().collect()
    }

    fn collect<'a>(&'a self, fields: &mut BTreeMap<&'a FieldPath, &'a Field>) {
        fields.extend(self.field.as_ref().map(|field| (&field.path, field)));
        for child in self.children.values() {
            child.collect(fields);
        }
    }

    /// Returns a constrained field at this node or within it.
    fn first(&self) -> Option<&Field> {
        self.field.as_ref().or_else(|| self.first_within())
    }

    fn first_within(&self) -> Option<&Field> {
        self.children.values().find_map(Self::first)
    }

    fn check_members(
        &self,
        before: Option<&Value>,
        patch: &Map<String, Value>,
        at: &mut FieldPath,
    ) -> Result<(), Breach> {
        let members = before.and_then(Value::as_object);
        for (key, value) in patch {
            if let Some(child) = self.children.get(key) {
                at.push(key);
                child.check_value(members.and_then(|members| members.get(key)), value, at)?;
                at.pop();
            }
        }
        Ok(())
    }

    fn check_value(&self, before: Option<&Value>, patch: &Value, at: &mut FieldPath) -> Result<(), Breach> {
        match (patch, before) {
            (Value::Null, None) => Ok(()),
            (Value::Null, Some(_)) => match self.first() {
                Some(field) if field.path == *at => Err(field.breach_of_parents(at, "the patch removes the field")),
                Some(field) => Err(field.breach_of_parents(at, "the patch removes a parent of the field")),
                None => Ok(()),
            },
            (Value::Object(_), Some(Value::Array(_))) => self.replaced(at, "an object"),
            (Value::Object(patch), before) => self.check_members(before, patch, at),
            (patch, before) if before == Some(patch) => Ok(()),
            (Value::Array(_), before) => self.check_list(before, patch, at),
            (patch, _) => self.replaced(at, kind_of(patch)),
        }
    }

    /// Checks a list that replaces `before`. The constrained fields within the list must keep their values.
    fn check_list(&self, before: Option<&Value>, list: &Value, path: &FieldPath) -> Result<(), Breach> {
        let has_indices_only = self.children.keys().all(|key| list_index(key).is_some());
        if !has_indices_only {
            return self.replaced(path, "a list");
        }
        let mut fields = BTreeMap::new();
        for child in self.children.values() {
            child.collect(&mut fields);
        }
        let depth = path.keys().len();
        for field in fields.into_values() {
            let within = FieldPath::from_keys(&field.path.keys()[depth..]);
            let value = |list: Option<&Value>| match list.map(|list| within.locate(list)) {
                Some(Located::Present(value)) => Some(value.clone()),
                _ => None,
            };
            let (old, new) = (value(before), value(Some(list)));
            let is_kept = match (&old, &new) {
                (Some(old), Some(new)) => equals(old, new),
                (None, _) => true,
                (Some(_), None) => false,
            };
            if !is_kept {
                return Err(field.breach_of_parents(
                    path,
                    "the patch replaces the list that has the field, with another value of the field",
                ));
            }
        }
        Ok(())
    }

    fn replaced(&self, path: &FieldPath, kind: &str) -> Result<(), Breach> {
        match self.first_within() {
            Some(field) => {
                Err(field.breach_of_parents(path, &format!("the patch replaces a parent of the field with {kind}")))
            }
            None => Ok(()),
        }
    }
}

impl Field {
    fn breach_of_parents(&self, at: &FieldPath, reason: &str) -> Breach {
        let holder = self.held.first().map_or(0, |held| held.holder);
        let reason = if *at == self.path { reason.to_owned() } else { format!("{reason}: `{at}`") };
        Breach { field: self.path.clone(), at: at.clone(), holder, reason }
    }
}
