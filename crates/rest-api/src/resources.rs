//! The messages of the API, and what of them a client may write.

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

/// The most that the annotations of one resource may have together, in bytes: Kubernetes' own limit.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// What annotations begin with that are ours or of tools: neither shown nor writable here.
const RESERVED: [&str; 2] = ["proviso.dev/", "kubectl.kubernetes.io/"];

/// A rule that admits or denies. Its spec is that of the kinds `Policy` and `ClusterPolicy`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    /// `policies/cluster.NAME` or `policies/ns.NAMESPACE.NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    uid: Option<String>,
    /// Of this version of the spec (AIP-154). An update that has it fails if there is another version meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// What decides, with which settings, and about what.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<PolicySpec>,
    /// Small amounts of data of yours, at most 256 KiB together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// Where the newest version stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state: Option<State>,
    /// The reason of a state that is not as it should be: one word in CamelCase, which is stable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The message for people that belongs to `stateReason`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// A possible next version of a policy (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyExperiment {
    /// `policies/POLICY/experiments/NAME`.
    name: String,
    #[schemars(extend("readOnly" = true))]
    uid: String,
    /// Of this version. `commit` demands it.
    etag: String,
    /// The policy as it would become, under the name of the live one. Of its fields only the spec counts.
    policy: Policy,
    /// Not there before previewing was started for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    preview_metadata: Option<PolicyPreviewMetadata>,
    /// Small amounts of data of yours, at most 256 KiB together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    /// Start previewing on creation and after every change. Default: false.
    auto_start: bool,
    /// How the verdicts differ since previewing was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    divergence: Option<DivergenceCounts>,
    /// Requests about which the verdicts differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("readOnly" = true))]
    samples: Vec<DivergenceSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    create_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    update_time: Option<Time>,
    /// The reason for which the newest version does not work: one word in CamelCase, which is stable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("readOnly" = true))]
    state_reason: Option<String>,
    /// The message for people that belongs to `stateReason`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("readOnly" = true))]
    state_message: String,
}

/// Previewing, as it was started and stopped last (AIP-236).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyPreviewMetadata {
    state: PreviewState,
    /// What every line of the log about a preview starts with.
    log_prefix: String,
    start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_time: Option<Time>,
}

fn shown(annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.into_iter().filter(|(key, _)| !is_reserved(key)).collect()
}

/// Whether this annotation is not the API's business: stores keep it as it is.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED.iter().any(|prefix| key.starts_with(prefix))
}

/// A message is always JSON.
fn value(message: impl Serialize) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

impl StoredPolicy {
    pub(crate) fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        value(Policy {
            name: Some(format!("policies/{}", self.id)),
            uid: Some(meta.uid),
            etag: Some(meta.etag),
            spec: Some(self.spec.clone()),
            annotations: shown(meta.annotations),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state: Some(self.state),
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// What a client can change of it.
    pub(crate) fn mutable(&self) -> Value {
        json!({"spec": self.spec, "annotations": shown(self.meta.annotations.clone())})
    }
}

impl StoredExperiment {
    pub(crate) fn to_json(&self) -> Value {
        let meta = self.meta.clone();
        let policy = Some(format!("policies/{}", self.name.policy));
        value(PolicyExperiment {
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
            annotations: shown(meta.annotations),
            auto_start: self.auto_start,
            divergence: self.divergence.clone(),
            samples: self.samples.clone(),
            create_time: meta.create_time,
            update_time: meta.update_time,
            state_reason: self.problem.as_ref().map(|problem| problem.reason.to_string()),
            state_message: self.problem.as_ref().map(|problem| problem.message.clone()).unwrap_or_default(),
        })
    }

    /// What a client can change of it.
    pub(crate) fn mutable(&self) -> Value {
        let annotations = shown(self.meta.annotations.clone());
        json!({"policy": {"spec": self.spec}, "annotations": annotations, "autoStart": self.auto_start})
    }
}

const POLICY: &[&str] =
    &["name", "uid", "etag", "spec", "annotations", "createTime", "updateTime", "state", "stateReason", "stateMessage"];
const EXPERIMENT: &[&str] = &[
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

/// What a client sent of a resource.
#[derive(Debug)]
pub(crate) struct Input {
    pub name: Option<String>,
    pub etag: Option<String>,
    /// What can be changed, in the form of [`StoredPolicy::mutable`]; not checked further.
    pub mutable: Value,
}

fn text(field: &str, message: &Map<String, Value>) -> Result<Option<String>, Error> {
    match message.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Error::invalid(field, "is no text")),
    }
}

impl Input {
    /// A policy. Fields that only the server writes are ignored (AIP-203).
    pub(crate) fn policy(object: Map<String, Value>) -> Result<Self, Error> {
        let mut message = body::message("", object, POLICY)?;
        let (name, etag) = (text("name", &message)?, text("etag", &message)?);
        let mut mutable = Map::new();
        for field in ["spec", "annotations"] {
            mutable.extend(message.remove(field).map(|value| (field.to_owned(), value)));
        }
        Ok(Self { name, etag, mutable: mutable.into() })
    }

    /// An experiment of the policy of this name, which is the only one that the message within may have (AIP-236).
    pub(crate) fn experiment(object: Map<String, Value>, policy: &str) -> Result<Self, Error> {
        let mut message = body::message("", object, EXPERIMENT)?;
        let (name, etag) = (text("name", &message)?, text("etag", &message)?);
        let mut mutable = Map::new();
        match message.remove("policy") {
            None | Some(Value::Null) => {}
            Some(Value::Object(inner)) => {
                let mut inner = body::message("policy", inner, POLICY)?;
                if let Some(named) =
                    inner.get("name").filter(|named| !named.is_null() && *named != "" && *named != policy)
                {
                    let description = format!("is {named}, which is not the live policy's: {policy}");
                    return Err(Error::invalid("policy.name", description));
                }
                if let Some(spec) = inner.remove("spec") {
                    mutable.insert("policy".to_owned(), json!({"spec": spec}));
                }
            }
            Some(_) => return Err(Error::invalid("policy", "is no JSON object")),
        }
        for field in ["annotations", "autoStart"] {
            mutable.extend(message.remove(field).map(|value| (field.to_owned(), value)));
        }
        Ok(Self { name, etag, mutable: mutable.into() })
    }
}

/// What a resource is to become, checked as far as that needs no cluster and no compiler.
pub(crate) fn change(mut mutable: Value, fields: Fields) -> Result<Change, Error> {
    let path: Vec<String> = fields.spec.split('.').map(ToOwned::to_owned).collect();
    let spec = crate::mask::get(&mutable, &path).cloned();
    let spec = spec.ok_or_else(|| Error::invalid(fields.spec, "is missing: say what decides, and about what"))?;
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
    violations.extend(wrong_annotations(&annotations));
    if violations.is_empty() {
        Ok(Change { spec, annotations, auto_start })
    } else {
        Err(Error::violations(violations))
    }
}

fn wrong_annotations(annotations: &BTreeMap<String, String>) -> Vec<FieldViolation> {
    let wrong = |field: String, description: &str| FieldViolation { field, description: description.to_owned() };
    let mut violations = Vec::new();
    for key in annotations.keys() {
        let field = || format!("annotations.`{}`", key.chars().take(100).collect::<String>());
        if is_reserved(key) {
            violations.push(wrong(field(), "is Proviso's own or kubectl's: it cannot be set here"));
        } else if !names::is_key(key) {
            let message = "is no key: at most 63 characters of a-z, A-Z, 0-9, '-', '_' and '.', if need be after a domain and '/'";
            violations.push(wrong(field(), message));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        violations.push(wrong("annotations".to_owned(), "are larger than 256 KiB together"));
    }
    violations
}
