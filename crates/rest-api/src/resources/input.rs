//! The resources in the bodies of requests: parsing, and the validation of the fields that a client may write, as far as it needs
//! no cluster and no compiler.

use std::collections::BTreeMap;

use proviso_core::names;
use proviso_crds::names::is_reserved;
use proviso_crds::validation::{self, FieldError};
use proviso_crds::{DEFAULT_TTL, ExperimentSpec, PolicyRef, PolicySpec, PreviewLogging, PreviewSettings, TTL};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::fields::{EXPERIMENT_FIELD_NAMES, EXPERIMENT_FIELDS, POLICY_FIELD_NAMES, POLICY_FIELDS};
use crate::body;
use crate::duration;
use crate::error::{Error, FieldViolation};
use crate::mask::{self, Fields};
use crate::store::Change;

/// The maximum total size of the annotations of one resource, in bytes. Kubernetes has the same limit.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The resource in the body of a request.
#[derive(Debug)]
pub(crate) struct Input {
    pub name: Option<String>,
    pub etag: Option<String>,
    /// The fields that a client can change, in the form of `mutable` of the stored resource. Their values are not validated yet.
    pub mutable: Value,
}

/// Returns the value of a string field. `None` means that the field is absent, null or empty.
fn string_field(field: &str, message: &Map<String, Value>) -> Result<Option<String>, Error> {
    match message.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Error::invalid(field, "is not a string")),
    }
}

impl Input {
    /// Parses a policy. Output-only fields are ignored (AIP-203).
    pub(crate) fn policy(object: Map<String, Value>) -> Result<Self, Error> {
        let mut message = body::message("", object, POLICY_FIELD_NAMES)?;
        let (name, etag) = (string_field("name", &message)?, string_field("etag", &message)?);
        let mut mutable = Map::new();
        for field in ["spec", "annotations"] {
            mutable.extend(message.remove(field).map(|value| (field.to_owned(), value)));
        }
        Ok(Self { name, etag, mutable: mutable.into() })
    }

    /// Parses an experiment of the policy with the resource name `policy`. The embedded policy may have no other name
    /// (AIP-236).
    pub(crate) fn experiment(object: Map<String, Value>, policy: &str) -> Result<Self, Error> {
        let mut message = body::message("", object, EXPERIMENT_FIELD_NAMES)?;
        let (name, etag) = (string_field("name", &message)?, string_field("etag", &message)?);
        let mut mutable = Map::new();
        match message.remove("policy") {
            None | Some(Value::Null) => {}
            Some(Value::Object(inner)) => {
                let mut inner = body::message("policy", inner, POLICY_FIELD_NAMES)?;
                if let Some(named) =
                    inner.get("name").filter(|named| !named.is_null() && *named != "" && *named != policy)
                {
                    let description = format!("is {named}, but the live policy is {policy}");
                    return Err(Error::invalid("policy.name", description));
                }
                if let Some(spec) = inner.remove("spec") {
                    mutable.insert("policy".to_owned(), json!({"spec": spec}));
                }
            }
            Some(_) => return Err(Error::invalid("policy", "is not a JSON object")),
        }
        for field in EXPERIMENT_FIELDS.mutable {
            mutable.extend(message.remove(*field).map(|value| ((*field).to_owned(), value)));
        }
        Ok(Self { name, etag, mutable: mutable.into() })
    }
}

/// Validates the new content of a policy.
pub(crate) fn policy_change(mut mutable: Value) -> Result<Change, Error> {
    let spec = take_spec(&mutable, POLICY_FIELDS)?;
    let annotations = take(&mut mutable, "annotations")?.unwrap_or_default();
    let errors = validation::policy(&spec);
    let change = Change {
        spec,
        annotations,
        auto_start: false,
        preview_settings: PreviewSettings::default(),
        ttl: DEFAULT_TTL.to_owned(),
    };
    checked(change, errors)
}

/// Validates the new content of an experiment of the policy `policy`.
pub(crate) fn experiment_change(mut mutable: Value, policy: &str) -> Result<Change, Error> {
    let policy_ref = PolicyRef { name: policy.to_owned() };
    let spec = ExperimentSpec {
        policy_ref,
        policy: take_spec(&mutable, EXPERIMENT_FIELDS)?,
        auto_start: take(&mut mutable, "autoStart")?.unwrap_or_default(),
        sample_rate: take(&mut mutable, "sampleRate")?.unwrap_or(PreviewSettings::default().sample_rate),
        logging: take::<PreviewLogging>(&mut mutable, "logging")?.unwrap_or_default(),
        ttl: take_ttl(&mut mutable)?,
    };
    let annotations = take(&mut mutable, "annotations")?.unwrap_or_default();
    let errors = validation::experiment(&spec);
    let preview_settings = spec.preview_settings();
    checked(
        Change { spec: spec.policy, annotations, auto_start: spec.auto_start, preview_settings, ttl: spec.ttl },
        errors,
    )
}

fn take_spec(mutable: &Value, fields: Fields) -> Result<PolicySpec, Error> {
    let path: Vec<String> = fields.spec.split('.').map(ToOwned::to_owned).collect();
    let spec = mask::get(mutable, &path).cloned();
    let spec = spec.ok_or_else(|| {
        Error::invalid(
            fields.spec,
            "is missing: set the program and the requests that it decides about, or `configuration`",
        )
    })?;
    body::typed(fields.spec, spec)
}

/// Removes a field, and returns its value. `None` means that the field is absent or null.
fn take<T: DeserializeOwned>(mutable: &mut Value, field: &str) -> Result<Option<T>, Error> {
    let value = mutable.as_object_mut().and_then(|mutable| mutable.remove(field));
    value.filter(|value| !value.is_null()).map(|value| body::typed(field, value)).transpose()
}

/// Removes the field `ttl`, and returns it in the form of the custom resource.
fn take_ttl(mutable: &mut Value) -> Result<String, Error> {
    let Some(text) = take::<String>(mutable, "ttl")? else { return Ok(DEFAULT_TTL.to_owned()) };
    let ttl = duration::parse(&text);
    let ttl = ttl.ok_or_else(|| Error::invalid("ttl", "is not a duration in seconds such as \"1209600s\""))?;
    if TTL.contains(&ttl) {
        return Ok(duration::to_kubernetes(ttl));
    }
    let [min, max] = [TTL.start(), TTL.end()].map(|bound| duration::format(*bound));
    Err(Error::invalid("ttl", format!("is {text:?}: must be from {min} to {max}")))
}

fn checked(change: Change, errors: Vec<FieldError>) -> Result<Change, Error> {
    let mut violations: Vec<FieldViolation> = errors
        .into_iter()
        .map(|error| FieldViolation { field: resource_field(&error.field), description: error.message })
        .collect();
    violations.extend(annotation_violations(&change.annotations));
    if violations.is_empty() { Ok(change) } else { Err(Error::violations(violations)) }
}

/// Converts the path of a field of a custom resource to the path of the same field in this API.
pub(crate) fn resource_field(field: &str) -> String {
    for (from, to) in [("spec.policy.", "policy.spec."), ("metadata.", "")] {
        if let Some(rest) = field.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    match field {
        // A validation rule of the whole object, such as the length of its name, has no field.
        "" | "<nil>" => "name".to_owned(),
        "spec.policy" => "policy.spec".to_owned(),
        // These fields are only in the spec of an experiment.
        "spec.autoStart" | "spec.sampleRate" | "spec.logging" | "spec.ttl" => field.replacen("spec.", "", 1),
        field => field.to_owned(),
    }
}

fn annotation_violations(annotations: &BTreeMap<String, String>) -> Vec<FieldViolation> {
    let violation = |field: String, description: &str| FieldViolation { field, description: description.to_owned() };
    let mut violations = Vec::new();
    for key in annotations.keys() {
        let field = || format!("annotations.`{}`", key.chars().take(100).collect::<String>());
        if is_reserved(key) {
            violations.push(violation(field(), "is reserved for Proviso or kubectl: it cannot be set here"));
        } else if !names::is_key(key) {
            let message =
                "is not a valid key: at most 63 of a-z, A-Z, 0-9, '-', '_' and '.', after an optional domain and '/'";
            violations.push(violation(field(), message));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        violations.push(violation("annotations".to_owned(), "are larger than 256 KiB in total"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(fields: &Value) -> Result<Change, Error> {
        let mut object = json!({"policy": {"spec": {
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [
                {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
        }}});
        for (field, value) in fields.as_object().unwrap() {
            object[field] = value.clone();
        }
        let input = Input::experiment(object.as_object().unwrap().clone(), "policies/cluster.p")?;
        experiment_change(input.mutable, "p")
    }

    #[test]
    fn the_settings_of_a_preview_have_defaults() {
        let content = change(&json!({})).unwrap();
        assert_eq!((content.preview_settings, content.ttl.as_str()), (PreviewSettings::default(), DEFAULT_TTL));
        let content = change(&json!({"sample_rate": 0.1, "logging": "Divergences", "ttl": "5400s"})).unwrap();
        let wanted = PreviewSettings { sample_rate: 0.1, logging: PreviewLogging::Divergences };
        assert_eq!(content.preview_settings, wanted);
        assert_eq!(content.ttl, "1h 30m");
        // The same time in another spelling is no change.
        assert_eq!(content.clone().keep_ttl("90m").ttl, "90m");
        assert_eq!(content.keep_ttl("91m").ttl, "1h 30m");
    }

    #[test]
    fn an_invalid_field_of_an_experiment_is_refused_by_its_name() {
        for (fields, field) in [
            (json!({"sampleRate": 0}), "sampleRate"),
            (json!({"sampleRate": 1.5}), "sampleRate"),
            (json!({"sampleRate": "1"}), "sampleRate"),
            (json!({"logging": "Some"}), "logging"),
            (json!({"ttl": "90m"}), "ttl"),
            (json!({"ttl": "59s"}), "ttl"),
            (json!({"ttl": "31536001s"}), "ttl"),
            (json!({"annotations": {"proviso.dev/changed-by": "root"}}), "annotations.`proviso.dev/changed-by`"),
        ] {
            let error = change(&fields).unwrap_err();
            assert_eq!(error.violations[0].field, field, "{fields}: {error}");
        }
    }
}
