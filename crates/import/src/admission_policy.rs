//! Converts a Kubernetes `ValidatingAdmissionPolicy` or `MutatingAdmissionPolicy` to a policy for each of its bindings.

use k8s_openapi::api::admissionregistration::v1::MatchCondition;
use proviso_crds::validation::FieldError;
use proviso_crds::{CelAuditAnnotation, CelValidation, CelVariable};
use proviso_evaluation::documents::{Document, DocumentError, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::binding::{Binding, MatchResources};
use crate::draft::{Draft, Drafts};

pub(crate) const GROUP: &str = "admissionregistration.k8s.io";
pub(crate) const KINDS: [&str; 4] = [
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// The spec of both kinds of policy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    match_constraints: MatchResources,
    #[serde(default)]
    match_conditions: Vec<MatchCondition>,
    #[serde(default)]
    variables: Vec<CelVariable>,
    failure_policy: Option<String>,
    param_kind: Option<Value>,
    #[serde(default)]
    validations: Vec<CelValidation>,
    #[serde(default)]
    audit_annotations: Vec<CelAuditAnnotation>,
    #[serde(default)]
    mutations: Vec<Mutation>,
    reinvocation_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mutation {
    patch_type: String,
    apply_configuration: Option<Expression>,
    #[serde(rename = "jsonPatch")]
    json_patch: Option<Expression>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    expression: String,
}

pub(crate) fn import(documents: &[Document]) -> Drafts {
    let (mut drafts, mut errors) = (Vec::new(), Vec::new());
    let name = |document: &Document| document.value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let of = |policy: &Document, it: &&Document| {
        it.kind() == format!("{}Binding", policy.kind()) && it.value["spec"]["policyName"] == name(policy).as_str()
    };
    let policies = || documents.iter().filter(|it| !it.kind().ends_with("Binding"));
    for binding in documents.iter().filter(|it| it.kind().ends_with("Binding")) {
        if !policies().any(|policy| of(policy, &binding)) {
            let message = format!("is {}: this policy is not among the files", binding.value["spec"]["policyName"]);
            errors.push(binding.error(FieldError::new("spec.policyName", message)).into());
        }
    }
    for policy in policies() {
        let bindings: Vec<_> = documents.iter().filter(|it| of(policy, it)).collect();
        if bindings.is_empty() {
            let message = "has no binding among the files: a policy without a binding has no effect";
            errors.push(policy.error(FieldError::new("metadata.name", message)).into());
        }
        for binding in &bindings {
            // With a single binding the name of the policy is enough.
            let name = if bindings.len() == 1 { name(policy) } else { format!("{}-{}", name(policy), name(binding)) };
            match draft(policy, binding, name) {
                Ok(draft) => drafts.push(draft),
                Err(error) => errors.push(error.into()),
            }
        }
    }
    if errors.is_empty() { Ok(drafts) } else { Err(errors) }
}

fn draft(policy: &Document, binding: &Document, name: String) -> Result<Draft, DocumentError> {
    let of_policy = |error| policy.error(error);
    let of_binding = |error| binding.error(error);
    let spec: Spec = typed("spec", &policy.value["spec"]).map_err(of_policy)?;
    let bound: Binding = typed("spec", &binding.value["spec"]).map_err(of_binding)?;
    if spec.param_kind.is_some() {
        let message = "has no equivalent: `params` are the policy's own `settings` here: put them there, and remove \
                       paramKind and paramRef";
        return Err(of_policy(FieldError::new("spec.paramKind", message)));
    }
    let is_mutating = policy.kind().starts_with("Mutating");
    let mode = bound.mode(is_mutating).map_err(of_binding)?;
    let mut admission = spec.match_constraints.admission("spec.matchConstraints").map_err(of_policy)?;
    if let Some(narrower) = &bound.match_resources {
        narrower.narrow("spec.matchResources", &mut admission).map_err(of_binding)?;
    }
    if !spec.match_conditions.is_empty() {
        let given = admission["matchConditions"].as_array().cloned().unwrap_or_default();
        let own = spec.match_conditions.iter().map(|it| json!(it));
        admission["matchConditions"] = own.chain(given).collect();
    }
    if let Some(failure_policy) = &spec.failure_policy {
        if failure_policy == "Ignore" {
            let message = "Ignore has no equivalent: an expression that fails denies here (`failurePolicy` is only \
                           about a policy server that does not answer): guard the expressions, and remove it";
            return Err(of_policy(FieldError::new("spec.failurePolicy", message)));
        }
        admission["failurePolicy"] = failure_policy.as_str().into();
    }
    admission["mode"] = mode.into();
    if is_mutating {
        admission["mutating"] = true.into();
    }
    let cel = cel(&spec, is_mutating).map_err(of_policy)?;
    let origin_note = format!("From the {} {} and its binding.", policy.kind(), policy.value["metadata"]["name"]);
    let mut out = json!({"program": {"cel": cel}, "admission": admission});
    // The spec may have the word only in a message. Then the policy gets the capability without need, which is harmless: the
    // capability only checks permissions.
    if policy.value["spec"].to_string().contains("authorizer") {
        out["hostCapabilities"] = json!(["kubernetes/can_i"]);
    }
    Ok(Draft {
        place: policy.place.clone(),
        namespace: None,
        name,
        origin: policy.value["metadata"].clone(),
        spec: out,
        notes: vec![origin_note.replace('"', "")],
    })
}

fn cel(spec: &Spec, is_mutating: bool) -> Result<Value, FieldError> {
    let mut cel = json!({"validations": spec.validations});
    if !spec.variables.is_empty() {
        cel["variables"] = json!(spec.variables);
    }
    if !spec.audit_annotations.is_empty() {
        cel["auditAnnotations"] = json!(spec.audit_annotations);
    }
    if !is_mutating {
        return if spec.mutations.is_empty() {
            Ok(cel)
        } else {
            Err(FieldError::new("spec.mutations", "are not for this kind"))
        };
    }
    if spec.reinvocation_policy.as_deref() == Some("IfNeeded") {
        let message = "IfNeeded has no equivalent: use Never";
        return Err(FieldError::new("spec.reinvocationPolicy", message));
    }
    let mut mutations = Vec::new();
    for (index, mutation) in spec.mutations.iter().enumerate() {
        let expression = match (mutation.patch_type.as_str(), &mutation.apply_configuration, &mutation.json_patch) {
            ("ApplyConfiguration", Some(it), None) | ("JSONPatch", None, Some(it)) => &it.expression,
            (other, ..) => {
                let message = format!("is {other:?}, and the expression of this type is missing, or another is there");
                return Err(FieldError::new(format!("spec.mutations[{index}].patchType"), message));
            }
        };
        mutations.push(json!({"patchType": mutation.patch_type, "expression": expression}));
    }
    cel["mutations"] = mutations.into();
    Ok(cel)
}
