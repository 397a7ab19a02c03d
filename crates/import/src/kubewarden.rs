//! Converts Kubewarden's policies and groups, which have nearly the same fields under other names.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proviso_crds::ContextAwareResource;
use proviso_crds::validation::FieldError;
use proviso_evaluation::documents::{Document, typed};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::draft::{Draft, Drafts};

pub(crate) const GROUP: &str = "policies.kubewarden.io";
pub(crate) const KINDS: [&str; 4] =
    ["ClusterAdmissionPolicy", "AdmissionPolicy", "ClusterAdmissionPolicyGroup", "AdmissionPolicyGroup"];

/// The capabilities that a module needs to read its `contextAwareResources`. Kubewarden has no other calls to read objects.
const READ_CAPABILITIES: [&str; 3] =
    ["kubernetes/get_resource", "kubernetes/list_resources_all", "kubernetes/list_resources_by_namespace"];

/// The spec of policies and groups.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    policy_server: Option<String>,
    mode: Option<String>,
    rules: Vec<RuleWithOperations>,
    #[serde(default)]
    match_conditions: Vec<MatchCondition>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
    failure_policy: Option<String>,
    side_effects: Option<String>,
    timeout_seconds: Option<u32>,
    timeout_eval_seconds: Option<u32>,
    background_audit: Option<bool>,
    message: Option<String>,
    // Only policies have these.
    module: Option<String>,
    settings: Option<Map<String, Value>>,
    mutating: Option<bool>,
    #[serde(default)]
    context_aware_resources: Vec<ContextAwareResource>,
    // Only groups have these.
    expression: Option<String>,
    #[serde(default)]
    policies: BTreeMap<String, Member>,
    // Only cluster-wide policies have this: they also cover requests in the namespace of Kubewarden.
    allow_inside_admission_controller_namespace: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Member {
    module: String,
    settings: Option<Map<String, Value>>,
    #[serde(default)]
    context_aware_resources: Vec<ContextAwareResource>,
}

pub(crate) fn import(documents: &[Document]) -> Drafts {
    let (mut drafts, mut errors) = (Vec::new(), Vec::new());
    for document in documents {
        match draft(document) {
            Ok(draft) => drafts.push(draft),
            Err(error) => errors.push(document.error(error).into()),
        }
    }
    if errors.is_empty() { Ok(drafts) } else { Err(errors) }
}

fn draft(document: &Document) -> Result<Draft, FieldError> {
    let spec: Spec = typed("spec", &document.value["spec"])?;
    let metadata = &document.value["metadata"];
    let is_of_cluster = document.kind().starts_with("Cluster");
    let namespace = metadata["namespace"].as_str();
    if !is_of_cluster && namespace.is_none() {
        return Err(FieldError::new(
            "metadata.namespace",
            "is missing: a namespaced policy covers the requests of its namespace",
        ));
    }
    let mut out = json!({"program": program(&spec)?, "admission": admission(&spec)?});
    if document.kind().ends_with("Group") {
        refuse("spec.module", spec.module.is_some())?;
        refuse("spec.mutating", spec.mutating == Some(true))?;
    } else {
        out["settings"] = Value::Object(spec.settings.clone().unwrap_or_default());
        if let Some(message) = &spec.message {
            out["admission"]["message"] = message.as_str().into();
        }
        if !spec.context_aware_resources.is_empty() {
            out["contextAwareResources"] = json!(spec.context_aware_resources);
        }
    }
    let read = spec.policies.values().map(|member| &member.context_aware_resources);
    if read.chain([&spec.context_aware_resources]).any(|resources| !resources.is_empty()) {
        out["hostCapabilities"] = json!(READ_CAPABILITIES);
    }
    if let Some(server) = &spec.policy_server {
        out["policyServer"] = server.as_str().into();
    }
    if let Some(seconds) = spec.timeout_eval_seconds {
        out["timeoutEvalSeconds"] = seconds.into();
    }
    let origin_note = format!("From Kubewarden's {}.", document.kind());
    let capabilities_note = "A module that calls other host capabilities (registries, DNS, certificates, permissions) needs them in \
                `hostCapabilities`: see `proviso inspect`.";
    Ok(Draft {
        place: document.place.clone(),
        namespace: namespace.filter(|_| !is_of_cluster).map(ToOwned::to_owned),
        name: metadata["name"].as_str().unwrap_or_default().to_owned(),
        origin: metadata.clone(),
        spec: out,
        notes: vec![origin_note, capabilities_note.to_owned()],
    })
}

fn refuse(field: &str, is_there: bool) -> Result<(), FieldError> {
    if is_there { Err(FieldError::new(field, "is not a field of a group")) } else { Ok(()) }
}

fn program(spec: &Spec) -> Result<Value, FieldError> {
    match (&spec.module, &spec.expression) {
        (Some(reference), None) => Ok(json!({"wasm": {"module": module("spec.module", reference)?}})),
        (None, Some(expression)) => {
            let mut members = Map::new();
            for (name, member) in &spec.policies {
                let reference = module(&format!("spec.policies.{name}.module"), &member.module)?;
                let settings = member.settings.clone().unwrap_or_default();
                let mut out = json!({"program": {"wasm": {"module": reference}}, "settings": settings});
                if !member.context_aware_resources.is_empty() {
                    out["contextAwareResources"] = json!(member.context_aware_resources);
                }
                members.insert(name.clone(), out);
            }
            let message = spec.message.as_deref().ok_or_else(|| FieldError::new("spec.message", "is missing"))?;
            Ok(json!({"group": {"members": members, "expression": expression, "message": message}}))
        }
        (Some(_), Some(_)) => {
            Err(FieldError::new("spec", "has both `module` and `expression`: it is a policy or a group"))
        }
        (None, None) => Err(FieldError::new("spec.module", "is missing")),
    }
}

/// Returns the reference of a module. In Kubewarden, a reference without a scheme names an artifact in a registry.
fn module(field: &str, reference: &str) -> Result<String, FieldError> {
    match reference.split_once("://") {
        None => Ok(format!("registry://{reference}")),
        Some(("registry" | "https", _)) => Ok(reference.to_owned()),
        Some((scheme, _)) => Err(FieldError::new(
            field,
            format!("{scheme}:// has no equivalent: modules come from registry:// and https://"),
        )),
    }
}

fn admission(spec: &Spec) -> Result<Value, FieldError> {
    if spec.side_effects.as_deref().is_some_and(|it| !["None", "NoneOnDryRun"].contains(&it)) {
        return Err(FieldError::new("spec.sideEffects", "has no equivalent: policies here have no side effects"));
    }
    if spec.allow_inside_admission_controller_namespace == Some(true) {
        let message = "has no equivalent: remove it, and see `namespaceSelector`";
        return Err(FieldError::new("spec.allowInsideAdmissionControllerNamespace", message));
    }
    let mode = match spec.mode.as_deref() {
        None | Some("protect") => "Protect",
        Some("monitor") => "Monitor",
        Some(other) => return Err(FieldError::new("spec.mode", format!("is {other:?}, neither protect nor monitor"))),
    };
    let mut admission = json!({"rules": spec.rules, "mode": mode});
    let optional = [
        ("namespaceSelector", spec.namespace_selector.as_ref().map(|it| json!(it))),
        ("objectSelector", spec.object_selector.as_ref().map(|it| json!(it))),
        ("matchConditions", (!spec.match_conditions.is_empty()).then(|| json!(spec.match_conditions))),
        ("matchPolicy", spec.match_policy.as_ref().map(|it| json!(it))),
        ("failurePolicy", spec.failure_policy.as_ref().map(|it| json!(it))),
        ("timeoutSeconds", spec.timeout_seconds.map(|it| json!(it))),
        ("backgroundAudit", spec.background_audit.map(|it| json!(it))),
        ("mutating", spec.mutating.map(|it| json!(it))),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            admission[field] = value;
        }
    }
    Ok(admission)
}
