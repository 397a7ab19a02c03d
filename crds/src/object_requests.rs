//! `spec.program.requests`: the request policies of a policy server decide about Kubernetes objects.

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use proviso_core::request::ObjectBinding;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::program::Program;
use crate::validation::FieldError;
use crate::{Admission, PolicySpec};

/// The maximum length of `serviceType`, in bytes.
const MAX_SERVICE_TYPE: usize = 253;

/// The part of an object that the request policies of the policy server decide about. The user of the request is the one who sent the
/// object to the API server, and the tenant is that of the object's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRequests {
    /// The path of the payload in the object: keys with dots between them, or a JSON Pointer. Not within `metadata` and `status`.
    /// Default: `spec`.
    #[serde(default = "payload")]
    pub payload: String,
    /// The path of the service provider in the object, within the payload, such as `spec.providerName`. The policies see the value as
    /// the chosen provider, their constraints of providers bind it, and the provider that a policy chooses is written into it. Default:
    /// objects do not have the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The service type of the requests, for the `serviceTypes` of request policies. Default: `service_type` or `serviceType` of the
    /// payload if it has one, otherwise the kind of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_type: Option<String>,
}

fn payload() -> String {
    "spec".to_owned()
}

impl ObjectRequests {
    /// Returns the place of requests in objects. `at` is the path of this section.
    ///
    /// # Errors
    /// Returns an error if a path is not valid, or names a field that request policies must not change.
    pub fn binding(&self, at: &str) -> Result<ObjectBinding, FieldError> {
        ObjectBinding::new(&self.payload, self.provider.as_deref(), self.service_type.clone())
            .map_err(|(field, error)| FieldError::new(format!("{at}.{field}"), error.to_string()))
    }
}

/// Returns the errors of a spec whose program is `requests`. `at` is the path of the spec in its object.
pub(crate) fn check(at: &str, spec: &PolicySpec) -> Vec<FieldError> {
    let Program::Requests(requests) = &spec.program else { return Vec::new() };
    let section = format!("{at}.program.requests");
    let mut errors: Vec<_> = requests.binding(&section).err().into_iter().collect();
    if requests.service_type.as_ref().is_some_and(|name| name.is_empty() || name.len() > MAX_SERVICE_TYPE) {
        let message = format!("must have 1 to {MAX_SERVICE_TYPE} bytes");
        errors.push(FieldError::new(format!("{section}.serviceType"), message));
    }
    if spec.request.is_some() {
        let message = "is for policies with `admission`: a request policy is evaluated by this program itself";
        errors.push(FieldError::new(section, message));
    }
    for (field, is_set) in [
        ("settings", !spec.settings.is_empty()),
        ("contextAwareResources", !spec.context_aware_resources.is_empty()),
        ("hostCapabilities", !spec.host_capabilities.is_empty()),
    ] {
        if is_set {
            let message = "has no effect on the program `requests`: set it on the request policies";
            errors.push(FieldError::new(format!("{at}.{field}"), message));
        }
    }
    errors.extend(spec.admission.iter().flat_map(|admission| check_admission(&format!("{at}.admission"), admission)));
    errors
}

fn check_admission(at: &str, admission: &Admission) -> Vec<FieldError> {
    let rules = admission.rules.iter().enumerate();
    rules.flat_map(|(index, rule)| check_rule(&format!("{at}.rules[{index}]"), rule)).collect()
}

/// Refuses the requests that have no whole object.
fn check_rule(at: &str, rule: &RuleWithOperations) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let operations = rule.operations.iter().flatten();
    for operation in operations.filter(|operation| !["CREATE", "UPDATE"].contains(&operation.as_str())) {
        let message = format!(
            "has {operation:?}: the program `requests` decides about CREATE and UPDATE only, which have an object"
        );
        errors.push(FieldError::new(format!("{at}.operations"), message));
    }
    for resource in rule.resources.iter().flatten().filter(|resource| resource.contains('/')) {
        let message =
            format!("has the subresource {resource:?}: the program `requests` decides about whole objects only");
        errors.push(FieldError::new(format!("{at}.resources"), message));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::validation::policy;

    fn fields(change: impl Fn(&mut Value)) -> Vec<String> {
        let rule = json!({
            "operations": ["CREATE", "UPDATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["databases"],
        });
        let mut spec = json!({"program": {"requests": {}}, "admission": {"rules": [rule], "mutating": true}});
        change(&mut spec);
        policy(&serde_json::from_value(spec).unwrap()).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn each_error_names_its_field() {
        let requests = "spec.program.requests";
        let member = json!({"members": {"a": {"program": {"requests": {}}}}, "expression": "a()", "message": "m"});
        for (pointer, value, expected) in [
            ("/policyServer", json!("default"), None),
            ("/admission/mutating", json!(false), None),
            ("/program/requests", json!({"payload": "spec.a", "provider": "spec.a.b", "serviceType": "db"}), None),
            ("/program/requests/payload", json!("metadata"), Some(format!("{requests}.payload"))),
            ("/program/requests/payload", json!(""), Some(format!("{requests}.payload"))),
            ("/program/requests/provider", json!("status.provider"), Some(format!("{requests}.provider"))),
            ("/program/requests/provider", json!("other.provider"), Some(format!("{requests}.provider"))),
            ("/program/requests/serviceType", json!(""), Some(format!("{requests}.serviceType"))),
            ("/settings", json!({"a": 1}), Some("spec.settings".to_owned())),
            ("/hostCapabilities", json!(["*"]), Some("spec.hostCapabilities".to_owned())),
            (
                "/contextAwareResources",
                json!([{"apiVersion": "v1", "kind": "Pod"}]),
                Some("spec.contextAwareResources".to_owned()),
            ),
            (
                "/admission/rules/0/operations",
                json!(["CREATE", "DELETE"]),
                Some("spec.admission.rules[0].operations".to_owned()),
            ),
            ("/admission/rules/0/operations", json!(["*"]), Some("spec.admission.rules[0].operations".to_owned())),
            (
                "/admission/rules/0/resources",
                json!(["databases", "databases/status"]),
                Some("spec.admission.rules[0].resources".to_owned()),
            ),
            ("/admission/rules/0/resources", json!(["*/*"]), Some("spec.admission.rules[0].resources".to_owned())),
            ("/program", json!({ "group": member }), Some("spec.program.group.members.a.program".to_owned())),
        ] {
            let found = fields(|spec| {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                spec.pointer_mut(parent).unwrap()[key] = value.clone();
            });
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{pointer} = {value}");
        }
    }

    #[test]
    fn a_request_policy_cannot_evaluate_request_policies() {
        let found = fields(|spec| {
            spec["admission"] = Value::Null;
            spec["request"] = json!({});
        });
        assert_eq!(found, ["spec.program.requests"]);
    }
}
