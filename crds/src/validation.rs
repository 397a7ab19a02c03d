//! Validation of specs beyond their schema. It is pure: it compiles and fetches nothing.

use std::fmt;

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::EnforcementPoint as Point;
use crate::request::{MAX_DESCRIPTION, MAX_DISPLAY_NAME, MAX_SERVICE_TYPES, PRIORITIES, ServiceRequests};
use crate::{Admission, Cel, ExperimentSpec, Group, PolicySpec, Program, Rego, Wasm};
use crate::{configuration, object_requests};

/// The maximum size of `settings`, in bytes of JSON.
pub const MAX_SETTINGS: usize = 256 * 1024;
/// The maximum depth of `settings`, in levels of lists and objects; `settings` itself is the first level.
pub const MAX_SETTINGS_NESTING: usize = 64;
/// The maximum number of members in a group.
pub const MAX_MEMBERS: usize = 32;

/// The maximum length of `request.user`, in bytes.
const MAX_USER: usize = 253;
/// The maximum length of an item of `request.serviceTypes`, in characters.
const MAX_SERVICE_TYPE: usize = 253;

/// An error in the value of one field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct FieldError {
    /// The path of the field, such as `spec.admission.rules[0].operations`.
    pub field: String,
    /// The cause and the remedy, worded to follow the path of the field: "is missing: …".
    pub message: String,
}

impl FieldError {
    /// Returns an error about `field`, such as `spec.admission.rules[0].operations`.
    #[must_use]
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Returns the errors in the spec of a policy; an empty list if the spec is valid.
#[must_use]
pub fn policy(spec: &PolicySpec) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.policy("spec", spec);
    errors.0
}

/// Returns the errors in the spec of an experiment; an empty list if the spec is valid.
#[must_use]
pub fn experiment(spec: &ExperimentSpec) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if let Err(error) = proviso_core::policy_id::check_name(&spec.policy_ref.name) {
        errors.add("spec.policyRef.name", error.to_string());
    }
    if !(spec.sample_rate > 0.0 && spec.sample_rate <= 1.0) {
        let message = format!(
            "is {}: must be more than 0, and at most 1: 0.1 previews a tenth of the requests",
            spec.sample_rate
        );
        errors.add("spec.sampleRate", message);
    }
    if let Err(message) = spec.time_to_live() {
        errors.add("spec.ttl", message);
    }
    errors.policy("spec.policy", &spec.policy);
    errors.0
}

#[derive(Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    fn policy(&mut self, at: &str, spec: &PolicySpec) {
        self.0.extend(object_requests::check(at, spec));
        self.0.extend(configuration::check(at, spec));
        let point = if spec.request.is_some() { Point::Request } else { Point::Admission };
        match spec.program {
            Program::None if spec.configuration.is_none() => {
                let message = "is missing: a policy with `admission` or `request` needs the program that decides";
                self.add(format!("{at}.program"), message);
            }
            _ => self.program(&format!("{at}.program"), &spec.program, point),
        }
        self.settings(&format!("{at}.settings"), &spec.settings);
        if let Some(seconds) = spec.timeout_eval_seconds {
            self.seconds(&format!("{at}.timeoutEvalSeconds"), seconds);
        }
        match (&spec.admission, &spec.request, &spec.configuration) {
            (Some(admission), None, None) => self.admission(&format!("{at}.admission"), admission),
            (None, Some(request), None) => self.request(&format!("{at}.request"), request),
            // `configuration::check` checks the section.
            (None, None, Some(_)) => {}
            (Some(_), Some(_), _) => {
                let message = "is set together with `admission`: a policy has one of them; make two policies";
                self.add(format!("{at}.request"), message);
            }
            (Some(_), None, Some(_)) | (None, Some(_), Some(_)) => {
                let message =
                    "is set together with `admission` or `request`: a policy has one of them; make two policies";
                self.add(format!("{at}.configuration"), message);
            }
            (None, None, None) => {
                let message = "is missing: say in `admission` or in `request` which requests the policy decides about, or in \
                               `configuration` what it configures";
                self.add(format!("{at}.admission"), message);
            }
        }
    }

    fn request(&mut self, at: &str, request: &ServiceRequests) {
        if !PRIORITIES.contains(&request.priority) {
            let (first, last) = PRIORITIES.into_inner();
            self.add(format!("{at}.priority"), format!("is {}: must be {first} to {last}", request.priority));
        }
        let has_length = |text: &Option<String>, least: usize, most: usize| {
            text.as_ref().is_none_or(|text| (least..=most).contains(&text.chars().count()))
        };
        if !has_length(&request.display_name, 1, MAX_DISPLAY_NAME) {
            self.add(format!("{at}.displayName"), format!("must have 1 to {MAX_DISPLAY_NAME} characters"));
        }
        if !has_length(&request.description, 0, MAX_DESCRIPTION) {
            self.add(format!("{at}.description"), format!("must have at most {MAX_DESCRIPTION} characters"));
        }
        if request.service_types.len() > MAX_SERVICE_TYPES {
            let message = format!("has {} items: at most {MAX_SERVICE_TYPES} are allowed", request.service_types.len());
            self.add(format!("{at}.serviceTypes"), message);
        }
        let is_service_type = |name: &str| !name.is_empty() && name.chars().count() <= MAX_SERVICE_TYPE;
        if let Some(index) = request.service_types.iter().position(|name| !is_service_type(name)) {
            self.add(format!("{at}.serviceTypes[{index}]"), format!("must have 1 to {MAX_SERVICE_TYPE} characters"));
        }
        if request.user.as_ref().is_some_and(|user| user.is_empty() || user.len() > MAX_USER) {
            self.add(format!("{at}.user"), format!("must have 1 to {MAX_USER} characters"));
        }
        let requirements = request.selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
        for (index, requirement) in requirements.enumerate() {
            self.requirement(&format!("{at}.selector.matchExpressions[{index}]"), requirement);
        }
    }

    fn program(&mut self, at: &str, program: &Program, point: Point) {
        match program {
            Program::Wasm(wasm) => self.wasm(&format!("{at}.wasm"), wasm, point),
            Program::Rego(rego) => self.rego(&format!("{at}.rego"), rego, point),
            Program::Cel(cel) => {
                self.fields_of_point(&format!("{at}.cel"), cel, point);
                for (index, validation) in cel.validations.iter().enumerate() {
                    if validation.expression.trim().is_empty() {
                        self.add(format!("{at}.cel.validations[{index}].expression"), "is empty");
                    }
                }
            }
            Program::Group(group) => self.group(&format!("{at}.group"), group, point),
            // `object_requests::check` checks the whole spec.
            Program::Requests(_) | Program::None => {}
        }
    }

    /// Refuses the fields of a CEL program that have no effect.
    fn fields_of_point(&mut self, at: &str, cel: &Cel, point: Point) {
        let only_admission =
            "is for policies with `admission`: a request policy changes the payload by `patch` in `result`";
        let fields = [
            ("result", cel.result.is_some(), Point::Request, "is for policies with `request`"),
            ("mutations", !cel.mutations.is_empty(), Point::Admission, only_admission),
            (
                "auditAnnotations",
                !cel.audit_annotations.is_empty(),
                Point::Admission,
                "is for policies with `admission`",
            ),
        ];
        for (field, is_set, wanted, message) in fields {
            if is_set && point != wanted {
                self.add(format!("{at}.{field}"), message);
            }
        }
    }

    fn wasm(&mut self, at: &str, wasm: &Wasm, point: Point) {
        if point == Point::Request && wasm.mode == Some(crate::WasmMode::Gatekeeper) {
            self.add(format!("{at}.mode"), "is gatekeeper: a request policy needs another mode, such as opa");
        }
        if !["registry://", "https://", "file://"].iter().any(|scheme| wasm.module.starts_with(scheme)) {
            let message = format!("{:?} must start with registry://, https:// or file://", wasm.module);
            self.add(format!("{at}.module"), message);
        }
        if let Some(digest) = &wasm.digest {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)) {
                self.add(format!("{at}.digest"), "is not `sha256:` and 64 hexadecimal digits in lower case");
            }
        }
    }

    fn rego(&mut self, at: &str, rego: &Rego, point: Point) {
        let dialect_point = if rego.dialect == crate::RegoDialect::Request { Point::Request } else { Point::Admission };
        match (point, dialect_point) {
            (Point::Admission, Point::Request) => {
                self.add(format!("{at}.dialect"), "is Request, which is for policies with `request`");
            }
            (Point::Request, Point::Admission) => {
                self.add(format!("{at}.dialect"), "must be Request: the policy has `request`");
            }
            _ => {}
        }
        match (rego.dialect, rego.entrypoint.as_deref()) {
            (crate::RegoDialect::Gatekeeper, Some(_)) => {
                let message =
                    "is for the dialects Admission and Request: the entrypoint of Gatekeeper is always `violation`";
                self.add(format!("{at}.entrypoint"), message);
            }
            (crate::RegoDialect::Request, Some(rule)) if !["result", "main"].contains(&rule) => {
                let message = format!("is {rule:?}: the entrypoint of the dialect Request is `result` or `main`");
                self.add(format!("{at}.entrypoint"), message);
            }
            _ => {}
        }
        if !rego.libs.is_empty() && rego.dialect != crate::RegoDialect::Gatekeeper {
            self.add(format!("{at}.libs"), "is for the dialect Gatekeeper");
        }
    }

    fn group(&mut self, at: &str, group: &Group, point: Point) {
        if group.members.is_empty() || group.members.len() > MAX_MEMBERS {
            let message = format!("has {} members: a group has 1 to {MAX_MEMBERS}", group.members.len());
            self.add(format!("{at}.members"), message);
        }
        for (name, member) in &group.members {
            let at = format!("{at}.members.{name}");
            match *member.program {
                Program::Group(_) => {
                    self.add(format!("{at}.program"), "is a group: a group cannot be a member of a group");
                }
                Program::Requests(_) => {
                    let message =
                        "is `requests`, which cannot be a member of a group: make it the program of another policy";
                    self.add(format!("{at}.program"), message);
                }
                _ => self.program(&format!("{at}.program"), &member.program, point),
            }
            self.settings(&format!("{at}.settings"), &member.settings);
        }
    }

    fn settings(&mut self, at: &str, settings: &Map<String, Value>) {
        let depth = settings.values().map(nesting).max().unwrap_or(0);
        if depth >= MAX_SETTINGS_NESTING {
            self.add(at, format!("is nested deeper than {MAX_SETTINGS_NESTING} levels"));
            return;
        }
        let size = serde_json::to_vec(settings).map_or(0, |json| json.len());
        if size > MAX_SETTINGS {
            self.add(at, format!("has {size} bytes as JSON, at most {MAX_SETTINGS} (256 KiB) are allowed"));
        }
    }

    fn seconds(&mut self, at: &str, seconds: u32) {
        if !(1..=30).contains(&seconds) {
            self.add(at, format!("is {seconds}: must be 1 to 30 seconds"));
        }
    }

    fn admission(&mut self, at: &str, admission: &Admission) {
        if admission.rules.is_empty() {
            self.add(format!("{at}.rules"), "is empty: the policy would match no requests");
        }
        for (index, rule) in admission.rules.iter().enumerate() {
            self.rule(&format!("{at}.rules[{index}]"), rule);
        }
        self.seconds(&format!("{at}.timeoutSeconds"), admission.timeout_seconds);
        for (name, selector) in
            [("namespaceSelector", &admission.namespace_selector), ("objectSelector", &admission.object_selector)]
        {
            let requirements = selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
            for (index, requirement) in requirements.enumerate() {
                self.requirement(&format!("{at}.{name}.matchExpressions[{index}]"), requirement);
            }
        }
    }

    /// Checks a selector requirement by the rules of the API server (`ValidateLabelSelectorRequirement`). The API server
    /// would refuse a webhook with an invalid requirement.
    fn requirement(&mut self, at: &str, requirement: &LabelSelectorRequirement) {
        let LabelSelectorRequirement { key, operator, values } = requirement;
        let has_values = values.as_ref().is_some_and(|values| !values.is_empty());
        match (operator.as_str(), has_values) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            ("In" | "NotIn", false) => {
                self.add(at, format!("{operator} of the label {key:?} has no values: list at least one"));
            }
            ("Exists" | "DoesNotExist", true) => {
                let other = if operator == "Exists" { "In" } else { "NotIn" };
                let message = format!("{operator} of the label {key:?} has values: remove them, or use {other}");
                self.add(at, message);
            }
            _ => {
                const OPERATORS: &str = "In, NotIn, Exists, DoesNotExist";
                self.add(
                    at,
                    format!("the operator of the label {key:?} is {operator:?}, which is none of {OPERATORS}"),
                );
            }
        }
    }

    fn rule(&mut self, at: &str, rule: &RuleWithOperations) {
        const OPERATIONS: [&str; 5] = ["CREATE", "UPDATE", "DELETE", "CONNECT", "*"];
        const SCOPES: [&str; 3] = ["Cluster", "Namespaced", "*"];
        for (name, values) in [
            ("operations", &rule.operations),
            ("apiGroups", &rule.api_groups),
            ("apiVersions", &rule.api_versions),
            ("resources", &rule.resources),
        ] {
            if values.as_ref().is_none_or(Vec::is_empty) {
                self.add(format!("{at}.{name}"), "is missing or empty: list at least one, or `*` for all");
            }
        }
        for operation in rule.operations.iter().flatten().filter(|name| !OPERATIONS.contains(&name.as_str())) {
            self.add(
                format!("{at}.operations"),
                format!("has {operation:?}, which is none of {}", OPERATIONS.join(", ")),
            );
        }
        if let Some(scope) = rule.scope.as_ref().filter(|scope| !SCOPES.contains(&scope.as_str())) {
            self.add(format!("{at}.scope"), format!("is {scope:?}, which is none of {}", SCOPES.join(", ")));
        }
    }
}

/// Returns the depth of nested lists and objects. The recursion is bounded, because parsers limit the depth of the values
/// that they accept.
fn nesting(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(nesting).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut spec = json!({
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        });
        change(&mut spec);
        policy(&serde_json::from_value(spec).unwrap()).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_minimal_policy_is_valid() {
        assert!(fields(|_| ()).is_empty());
    }

    #[test]
    fn every_selector_operator_is_accepted_in_its_valid_form() {
        let found = fields(|spec| {
            spec["admission"]["objectSelector"] = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["x"]}, {"key": "b", "operator": "NotIn", "values": [""]},
                {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist", "values": []},
            ]});
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn each_error_names_its_field() {
        let group = |members: Value| json!({"group": {"members": members, "expression": "a()", "message": "m"}});
        let cel = json!({"cel": {"validations": []}});
        for (pointer, value, field) in [
            ("/admission", Value::Null, "spec.admission"),
            ("/admission/rules", json!([]), "spec.admission.rules"),
            ("/admission/rules/0/operations", json!([]), "spec.admission.rules[0].operations"),
            ("/admission/rules/0/operations", json!(["create"]), "spec.admission.rules[0].operations"),
            ("/admission/rules/0/resources", Value::Null, "spec.admission.rules[0].resources"),
            ("/admission/rules/0/scope", json!("All"), "spec.admission.rules[0].scope"),
            ("/admission/timeoutSeconds", json!(31), "spec.admission.timeoutSeconds"),
            (
                "/admission/objectSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
                "spec.admission.objectSelector.matchExpressions[0]",
            ),
            (
                "/admission/objectSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In"}]}),
                "spec.admission.objectSelector.matchExpressions[1]",
            ),
            (
                "/admission/namespaceSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}),
                "spec.admission.namespaceSelector.matchExpressions[0]",
            ),
            (
                "/admission/namespaceSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
                "spec.admission.namespaceSelector.matchExpressions[0]",
            ),
            (
                "/admission/objectSelector",
                json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": ["x"]}]}),
                "spec.admission.objectSelector.matchExpressions[0]",
            ),
            ("/timeoutEvalSeconds", json!(0), "spec.timeoutEvalSeconds"),
            ("/program", json!({"wasm": {"module": "oci://x"}}), "spec.program.wasm.module"),
            ("/program", json!({"wasm": {"module": "file://x", "digest": "sha256:0"}}), "spec.program.wasm.digest"),
            (
                "/program",
                json!({"cel": {"validations": [{"expression": " "}]}}),
                "spec.program.cel.validations[0].expression",
            ),
            (
                "/program",
                json!({"rego": {"source": "", "dialect": "Gatekeeper", "entrypoint": "a/b"}}),
                "spec.program.rego.entrypoint",
            ),
            (
                "/program",
                json!({"rego": {"source": "", "dialect": "Admission", "libs": [""]}}),
                "spec.program.rego.libs",
            ),
            ("/program", group(json!({})), "spec.program.group.members"),
            (
                "/program",
                group(json!({"a": {"program": group(json!({"b": {"program": cel}}))}})),
                "spec.program.group.members.a.program",
            ),
        ] {
            let found = fields(|spec| {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                spec.pointer_mut(parent).unwrap()[key] = value.clone();
            });
            assert_eq!(found, [field], "{pointer} = {value}");
        }
    }

    #[test]
    fn each_error_of_a_request_policy_names_its_field() {
        /// A change of the spec, and the field of the error.
        type Case = (fn(&mut Value), &'static str);
        let check = |change: fn(&mut Value)| {
            let mut spec = json!({
                "program": {"rego": {"source": "", "dialect": "Request", "entrypoint": "main"}},
                "request": {"displayName": "ä".repeat(255), "description": "ä".repeat(2048), "user": "ana"},
            });
            change(&mut spec);
            policy(&serde_json::from_value(spec).unwrap()).into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        assert_eq!(check(|_| ()), Vec::<String>::new());
        let cases: [Case; 7] = [
            (|spec| spec["request"]["displayName"] = json!(""), "spec.request.displayName"),
            (|spec| spec["request"]["displayName"] = json!("a".repeat(256)), "spec.request.displayName"),
            (|spec| spec["request"]["description"] = json!("a".repeat(2049)), "spec.request.description"),
            (|spec| spec["request"]["priority"] = json!(0), "spec.request.priority"),
            (|spec| spec["request"]["user"] = json!(""), "spec.request.user"),
            (|spec| spec["program"]["rego"]["entrypoint"] = json!("data.a.main"), "spec.program.rego.entrypoint"),
            (|spec| spec["program"]["rego"]["dialect"] = json!("Admission"), "spec.program.rego.dialect"),
        ];
        for (change, field) in cases {
            assert_eq!(check(change), [field]);
        }
    }

    #[test]
    fn settings_that_are_too_large_or_too_deep_are_refused() {
        let huge = fields(|spec| spec["settings"] = json!({"a": "x".repeat(MAX_SETTINGS)}));
        assert_eq!(huge, ["spec.settings"]);
        let deep = (0..MAX_SETTINGS_NESTING).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(fields(|spec| spec["settings"] = json!({"a": deep})), ["spec.settings"]);
        assert!(fields(|spec| spec["settings"] = json!({"a": "x".repeat(MAX_SETTINGS - 100)})).is_empty());
    }
}
