//! The messages of the API, and the validation of the fields that a client may write.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::names;
use proviso_crds::{DivergenceCounts, DivergenceSample, PolicySpec, PreviewState, validation};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::body;
use crate::error::{Error, FieldViolation};
use crate::filter::{Field, Kind};
use crate::mask::Fields;
use crate::store::{Change, State, StoredExperiment, StoredPolicy};

/// The maximum total size of the annotations of one resource, in bytes. Kubernetes has the same limit.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The prefixes of the annotations of Proviso and of kubectl. The API neither shows them nor lets clients write them.
const RESERVED: [&str; 2] = ["proviso.dev/", "kubectl.kubernetes.io/"];

/// A policy, which admits or denies requests. Its spec is the spec of the kinds `Policy` and `ClusterPolicy`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    /// The resource name: `policies/cluster.NAME` or `policies/ns.NAMESPACE.NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The unique id of the policy. It differs from the id of a deleted policy of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    uid: Option<String>,
    /// The etag of this version of the spec (AIP-154). An update with an etag fails if the policy has another version.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// The program of the policy, its settings, and the requests that the policy decides about.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<PolicySpec>,
    /// Small amounts of data of the client: at most 256 KiB in total. Default: no annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// The time of creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    /// The time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// The state of the newest version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state: Option<State>,
    /// The reason why the newest version is not active: one stable word in upper camel case. Absent if the policy has no
    /// problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The details of `stateReason`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// A possible next version of a policy (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyExperiment {
    /// The resource name: `policies/POLICY/experiments/NAME`.
    name: String,
    /// The unique id of the experiment. It differs from the id of a deleted experiment of the same name.
    #[schemars(extend("readOnly" = true))]
    uid: String,
    /// The etag of this version of the experiment (AIP-154). `commit` requires it.
    etag: String,
    /// The next version of the policy, with the name of the live policy. Only its spec is used; the other fields are ignored.
    policy: Policy,
    /// The state of the preview. Absent before the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    preview_metadata: Option<PolicyPreviewMetadata>,
    /// Small amounts of data of the client: at most 256 KiB in total. Default: no annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// True if the preview starts on creation and after each change of the experiment. Default: false.
    auto_start: bool,
    /// The numbers of requests by the difference between the live verdict and the experiment's, since the last start of the
    /// preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    divergence: Option<DivergenceCounts>,
    /// Samples of the requests on which the verdicts differ: at most 20 groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("readOnly" = true))]
    samples: Vec<DivergenceSample>,
    /// The time of creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    /// The time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// The reason why the newest version does not work: one stable word in upper camel case. Absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The details of `stateReason`, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// The state of a preview, with the times of its last start and stop (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyPreviewMetadata {
    /// `ACTIVE` while requests are previewed, else `SUSPENDED`.
    state: PreviewState,
    /// The text that every log line about a preview starts with.
    log_prefix: String,
    /// The time of the last start.
    start_time: Time,
    /// The time of the last stop. Absent before the first stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_time: Option<Time>,
}

/// Returns the annotations that the API shows to clients.
fn visible_annotations(annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.into_iter().filter(|(key, _)| !is_reserved(key)).collect()
}

/// Returns true if clients of the API may not write this annotation. Stores keep such annotations unchanged.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED.iter().any(|prefix| key.starts_with(prefix))
}

/// Converts a message to JSON.
fn to_value(message: impl Serialize) -> Value {
    // Serializing does not fail: the map keys of every message are strings.
    serde_json::to_value(message).unwrap_or_default()
}

impl StoredPolicy {
    pub(crate) fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        to_value(Policy {
            name: Some(format!("policies/{}", self.id)),
            uid: Some(meta.uid),
            etag: Some(meta.etag),
            spec: Some(self.spec.clone()),
            annotations: visible_annotations(meta.annotations),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state: Some(self.state),
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// Returns the fields of the policy that a client can change.
    pub(crate) fn mutable(&self) -> Value {
        json!({"spec": self.spec, "annotations": visible_annotations(self.meta.annotations.clone())})
    }
}

impl StoredExperiment {
    pub(crate) fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        let policy = Some(format!("policies/{}", self.name.policy));
        to_value(PolicyExperiment {
            name: self.name.to_string(),
            uid: meta.uid,
            etag: meta.etag,
            policy: Policy { name: policy, spec: Some(self.spec.clone()), ..Policy::default() },
            preview_metadata: self.preview.clone().map(|preview| PolicyPreviewMetadata {
                state: preview.state,
                log_prefix: preview.log_prefix,
                start_time: preview.start_time,
                stop_time: preview.stop_time,
            }),
            annotations: visible_annotations(meta.annotations),
            auto_start: self.auto_start,
            divergence: self.divergence.clone(),
            samples: self.samples.clone(),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// Returns the fields of the experiment that a client can change.
    pub(crate) fn mutable(&self) -> Value {
        let annotations = visible_annotations(self.meta.annotations.clone());
        json!({"policy": {"spec": self.spec}, "annotations": annotations, "autoStart": self.auto_start})
    }
}

const POLICY_FIELD_NAMES: &[&str] =
    &["name", "uid", "etag", "spec", "annotations", "createTime", "updateTime", "state", "stateReason", "stateMessage"];
const EXPERIMENT_FIELD_NAMES: &[&str] = &[
    "name",
    "uid",
    "etag",
    "policy",
    "previewMetadata",
    "annotations",
    "autoStart",
    "divergence",
    "samples",
    "createTime",
    "updateTime",
    "stateReason",
    "stateMessage",
];

pub(crate) const POLICY_FIELDS: Fields = Fields {
    spec: "spec",
    mutable: &["annotations"],
    output: &["name", "uid", "etag", "createTime", "updateTime", "state", "stateReason", "stateMessage"],
};
pub(crate) const EXPERIMENT_FIELDS: Fields = Fields {
    spec: "policy.spec",
    mutable: &["annotations", "autoStart"],
    output: &[
        "name",
        "uid",
        "etag",
        "previewMetadata",
        "divergence",
        "samples",
        "createTime",
        "updateTime",
        "stateReason",
        "stateMessage",
        "policy.name",
        "policy.uid",
        "policy.etag",
        "policy.annotations",
        "policy.createTime",
        "policy.updateTime",
        "policy.state",
        "policy.stateReason",
        "policy.stateMessage",
    ],
};

pub(crate) const POLICY_FILTERS: &[Field] = &[
    Field { path: "name", kind: Kind::Text },
    Field { path: "uid", kind: Kind::Text },
    Field { path: "etag", kind: Kind::Text },
    Field { path: "annotations", kind: Kind::Map },
    Field { path: "state", kind: Kind::Enum(&["PENDING", "UPDATING", "ACTIVE", "FAILED", "DISABLED"]) },
];
pub(crate) const EXPERIMENT_FILTERS: &[Field] = &[
    Field { path: "name", kind: Kind::Text },
    Field { path: "uid", kind: Kind::Text },
    Field { path: "etag", kind: Kind::Text },
    Field { path: "policy.name", kind: Kind::Text },
    Field { path: "annotations", kind: Kind::Map },
    Field { path: "autoStart", kind: Kind::Flag },
    Field { path: "previewMetadata.state", kind: Kind::Enum(&["ACTIVE", "SUSPENDED"]) },
];
pub(crate) const OPERATION_FILTERS: &[Field] = &[
    Field { path: "name", kind: Kind::Text },
    Field { path: "done", kind: Kind::Flag },
    Field { path: "metadata.target", kind: Kind::Text },
];

/// The resource in the body of a request.
#[derive(Debug)]
pub(crate) struct Input {
    pub name: Option<String>,
    pub etag: Option<String>,
    /// The fields that a client can change, in the form of [`StoredPolicy::mutable`]. Their values are not validated yet.
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
        for field in ["annotations", "autoStart"] {
            mutable.extend(message.remove(field).map(|value| (field.to_owned(), value)));
        }
        Ok(Self { name, etag, mutable: mutable.into() })
    }
}

/// Validates the new content of a resource, as far as the validation needs no cluster and no compiler.
pub(crate) fn validated_change(mut mutable: Value, fields: Fields) -> Result<Change, Error> {
    let path: Vec<String> = fields.spec.split('.').map(ToOwned::to_owned).collect();
    let spec = crate::mask::get(&mutable, &path).cloned();
    let spec = spec.ok_or_else(|| {
        Error::invalid(fields.spec, "is missing: set the program and the requests that it decides about")
    })?;
    let spec: PolicySpec = body::typed(fields.spec, spec)?;
    let mut take = |field: &str| mutable.as_object_mut().and_then(|mutable| mutable.remove(field));
    let annotations = take("annotations").filter(|value| !value.is_null());
    let annotations: BTreeMap<String, String> =
        annotations.map(|value| body::typed("annotations", value)).transpose()?.unwrap_or_default();
    let auto_start = take("autoStart").filter(|value| !value.is_null());
    let auto_start = auto_start.map(|value| body::typed("autoStart", value)).transpose()?.unwrap_or_default();
    let mut violations: Vec<FieldViolation> = validation::policy(&spec)
        .into_iter()
        .map(|error| FieldViolation { field: error.field.replacen("spec", fields.spec, 1), description: error.message })
        .collect();
    violations.extend(annotation_violations(&annotations));
    if violations.is_empty() {
        Ok(Change { spec, annotations, auto_start })
    } else {
        Err(Error::violations(violations))
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
