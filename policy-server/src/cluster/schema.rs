//! The defaults of the installed schema of `PolicyRevision`s. An older replica accepts a field that it does not know if the field has
//! its default: by the API conventions of Kubernetes, the default of a new field keeps the behaviour from before the field. Pure
//! functions.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// The part of an OpenAPI v3 schema that determines defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Schema {
    default: Option<Value>,
    properties: BTreeMap<String, Schema>,
    items: Option<Box<Schema>>,
    additional_properties: Option<AdditionalProperties>,
}

/// The schema of the members of an object that `properties` does not name, or a flag that allows any members.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AdditionalProperties {
    Any(#[allow(dead_code, reason = "the variant only accepts the value")] bool),
    Schema(Box<Schema>),
}

/// The path of a field below `spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Item(usize),
}

impl Schema {
    /// Returns true if the field has its default in this schema, or belongs to an object or list that has its default as a whole.
    /// `value` is the value that this schema describes.
    ///
    /// An object without a default of its own is no default, even if all its members are: its presence can have a meaning, as
    /// that of `emptyDir: {}` has.
    pub(super) fn is_default(&self, value: &Value, field: &FieldPath) -> bool {
        let (mut schema, mut value) = (self, value);
        for step in &field.0 {
            let (Some(inner_schema), Some(inner)) = (schema.below(step), step.of(value)) else { return false };
            (schema, value) = (inner_schema, inner);
            if schema.full_default().as_ref() == Some(value) {
                return true;
            }
        }
        false
    }

    fn below(&self, step: &Step) -> Option<&Self> {
        match step {
            Step::Member(name) => self.member(name),
            Step::Item(_) => self.items.as_deref(),
        }
    }

    fn member(&self, name: &str) -> Option<&Self> {
        match (self.properties.get(name), &self.additional_properties) {
            (Some(schema), _) => Some(schema),
            (None, Some(AdditionalProperties::Schema(schema))) => Some(schema),
            (None, Some(AdditionalProperties::Any(_)) | None) => None,
        }
    }

    /// Returns the value that the API server fills in for a missing field: the default with the defaults of its members.
    fn full_default(&self) -> Option<Value> {
        let mut default = self.default.clone()?;
        self.complete(&mut default);
        Some(default)
    }

    /// Adds the defaults of missing members to a value, as the API server does.
    fn complete(&self, value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, schema) in &self.properties {
                    if let Some(default) = schema.default.as_ref().filter(|_| !members.contains_key(name)) {
                        members.insert(name.clone(), default.clone());
                    }
                }
                for (name, member) in members {
                    if let Some(schema) = self.member(name) {
                        schema.complete(member);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for item in items {
                        schema.complete(item);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Member(name) => value.get(name),
            Self::Item(index) => value.get(*index),
        }
    }
}

impl From<&serde_ignored::Path<'_>> for FieldPath {
    fn from(path: &serde_ignored::Path<'_>) -> Self {
        use serde_ignored::Path;
        let (parent, step) = match path {
            Path::Root => return Self(Vec::new()),
            Path::Map { parent, key } => (parent, Some(Step::Member(key.clone()))),
            Path::Seq { parent, index } => (parent, Some(Step::Item(*index))),
            Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => (parent, None),
        };
        let Self(mut steps) = Self::from(*parent);
        steps.extend(step);
        Self(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Member(name) if number == 0 => f.write_str(name)?,
                Step::Member(name) => write!(f, ".{name}")?,
                Step::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the path that is written as `a.0.b`.
    pub(in crate::cluster) fn path(text: &str) -> FieldPath {
        let step = |step: &str| step.parse().map_or_else(|_| Step::Member(step.to_owned()), Step::Item);
        FieldPath(text.split('.').map(step).collect())
    }

    fn schema() -> Schema {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let defaulted = |default: Value, properties: Value| {
            let mut schema = object(properties);
            schema["default"] = default;
            schema
        };
        let leaves = json!({"a": {"type": "integer", "default": 1}, "b": {"type": "string"}});
        let schema = object(json!({
            "scalar": {"type": "string", "default": "x"},
            "required": {"type": "string"},
            "null": {"type": "string", "nullable": true, "default": null},
            "present": object(leaves.clone()),
            "absent": defaulted(json!({}), leaves.clone()),
            "whole": defaulted(json!({"b": "y"}), leaves.clone()),
            "list": {"type": "array", "items": object(leaves.clone())},
            "names": {"type": "array", "items": {"type": "string"}, "default": ["n"]},
            "map": {"type": "object", "additionalProperties": object(leaves)},
            "any": {"type": "object", "additionalProperties": true},
            "opaque": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }));
        serde_json::from_value(schema).unwrap()
    }

    #[test]
    fn only_the_default_of_an_unknown_field_is_accepted() {
        for (value, field, wanted) in [
            (json!({"scalar": "x"}), "scalar", true),
            (json!({"scalar": "y"}), "scalar", false),
            (json!({"scalar": null}), "scalar", false),
            (json!({"required": "x"}), "required", false),
            (json!({"null": null}), "null", false),
            (json!({"other": 1}), "other", false),
            (json!({"names": ["n"]}), "names", true),
            (json!({"names": ["n", "m"]}), "names", false),
            // An object whose members have their defaults is a default only if the object itself has one.
            (json!({"present": {"a": 1}}), "present", false),
            (json!({"present": {}}), "present", false),
            (json!({"absent": {"a": 1}}), "absent", true),
            (json!({"absent": {"a": 2}}), "absent", false),
            (json!({"absent": {"a": 1, "b": "y"}}), "absent", false),
            (json!({"absent": {}}), "absent", false),
            (json!({"whole": {"a": 1, "b": "y"}}), "whole", true),
            (json!({"whole": {"b": "y"}}), "whole", false),
            // A field of a known object, of a list item and of a map value.
            (json!({"present": {"a": 1}}), "present.a", true),
            (json!({"present": {"a": 2}}), "present.a", false),
            (json!({"list": [{"a": 2}, {"a": 1}]}), "list.1.a", true),
            (json!({"list": [{"a": 2}, {"a": 1}]}), "list.0.a", false),
            (json!({"list": [{"b": "y"}]}), "list.0.b", false),
            (json!({"map": {"k": {"a": 1}}}), "map.k.a", true),
            (json!({"map": {"k": {"a": 2}}}), "map.k.a", false),
            (json!({"any": {"k": {"a": 1}}}), "any.k.a", false),
            (json!({"opaque": {"a": 1}}), "opaque.a", false),
            // A member without a default is accepted only as a part of the default of the whole object.
            (json!({"whole": {"a": 1, "b": "y"}}), "whole.b", true),
            (json!({"whole": {"a": 2, "b": "y"}}), "whole.b", false),
            // A path that the value does not have.
            (json!({}), "scalar", false),
            (json!({"list": []}), "list.0.a", false),
        ] {
            assert_eq!(schema().is_default(&value, &path(field)), wanted, "{field} of {value}");
        }
    }

    #[test]
    fn the_path_of_an_unknown_field_names_members_and_items() {
        #[derive(Debug, Deserialize)]
        struct Known {
            #[allow(dead_code, reason = "only its unknown fields are read")]
            rules: Option<Vec<Option<BTreeMap<String, Known>>>>,
        }
        let value = json!({"rules": [null, {"k": {"new": 1}}], "newer": {"a": 1}});
        let mut found = Vec::new();
        let _: Known = serde_ignored::deserialize(&value, |path| found.push(FieldPath::from(&path))).unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["newer", "rules[1].k.new"]);
        assert_eq!(found[1], path("rules.1.k.new"));
    }
}
