//! Checks of the spec of a policy or experiment. Pure, but slow if a source takes long to compile.

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proviso_core::PolicyId;
use proviso_core::confinement::{self, ExcludedName};
use proviso_crds::validation::{self, FieldError};
use proviso_crds::{ExperimentSpec, GROUP, PolicySpec, Program, ServiceRequests, check_audience};
use proviso_programs::templates::check_configuration;

/// The label with the name of a namespace, which the API server sets on every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Returns all errors of a policy that can be found without fetching modules. `namespace` is that of a `Policy`.
pub(super) fn policy(namespace: Option<&str>, name: &str, spec: &PolicySpec) -> Vec<FieldError> {
    check("spec", (namespace, name), spec, validation::policy(spec))
}

/// Returns all such errors of an experiment, whose `spec.policy` has to be a valid policy. `namespace` is that of a
/// `PolicyExperiment`.
pub(super) fn experiment(namespace: Option<&str>, name: &str, spec: &ExperimentSpec) -> Vec<FieldError> {
    check("spec.policy", (namespace, name), &spec.policy, validation::experiment(spec))
}

fn check(
    at: &str,
    (namespace, name): (Option<&str>, &str),
    spec: &PolicySpec,
    spec_errors: Vec<FieldError>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(error) = PolicyId::new(namespace, name) {
        errors.push(field_error("metadata.name", error.to_string()));
    }
    errors.extend(spec_errors);
    if let Some(request) = &spec.request {
        errors.extend(check_request(&format!("{at}.request"), namespace, request));
    }
    reject_file_modules(&format!("{at}.program"), &spec.program, &mut errors);
    errors.extend(proviso_crds::context::check(at, namespace, spec));
    for (index, rule) in spec.admission.iter().flat_map(|admission| &admission.rules).enumerate() {
        check_rule(&format!("{at}.admission.rules[{index}]"), namespace, rule, &mut errors);
    }
    let selector = spec.admission.as_ref().and_then(|admission| admission.namespace_selector.as_ref());
    if let (Some(namespace), Some(selector)) = (namespace, selector)
        && !can_select(namespace, selector)
    {
        let message = format!(
            "does not select {namespace}, and a Policy decides about its own namespace only: remove it, or use a ClusterPolicy"
        );
        errors.push(field_error(format!("{at}.admission.namespaceSelector"), message));
    }
    let configuration = spec.configuration.as_ref();
    errors.extend(configuration.and_then(|configuration| check_audience(at, namespace, configuration)));
    if errors.is_empty() {
        // Only a well-formed spec is compiled.
        errors = proviso_programs::check(at, spec);
        if let (Some(configuration), Ok(policy)) = (&spec.configuration, PolicyId::new(namespace, name)) {
            errors.extend(check_configuration(at, &policy, configuration, &spec.settings));
        }
    }
    errors
}

fn field_error(field: impl Into<String>, message: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), message: message.into() }
}

fn reject_file_modules(at: &str, program: &Program, errors: &mut Vec<FieldError>) {
    match program {
        Program::Wasm(wasm) if wasm.module.starts_with("file://") => {
            let message =
                "is a file, which replicas in a cluster do not have: name a module of a registry or an https:// URL";
            errors.push(field_error(format!("{at}.wasm.module"), message));
        }
        Program::Group(group) => {
            for (name, member) in &group.members {
                reject_file_modules(&format!("{at}.group.members.{name}.program"), &member.program, errors);
            }
        }
        Program::None | Program::Wasm(_) | Program::Rego(_) | Program::Cel(_) | Program::Requests(_) => {}
    }
}

/// Returns the errors of the section of a request policy that its schema and [`validation::policy`] do not find. `at` is its path.
fn check_request(at: &str, namespace: Option<&str>, request: &ServiceRequests) -> Vec<FieldError> {
    let level = request.level(at, namespace).err();
    let selector = request.criteria(None).err().map(|error| field_error(format!("{at}.selector"), error.to_string()));
    level.into_iter().chain(selector).collect()
}

/// Finds resources in a rule about which the policy never decides. `*` is valid: it means all resources about which
/// the policy may decide.
fn check_rule(at: &str, namespace: Option<&str>, rule: &RuleWithOperations, errors: &mut Vec<FieldError>) {
    let names = |list: &Option<Vec<String>>, name: &str| list.iter().flatten().any(|it| it == name);
    if namespace.is_none() {
        if names(&rule.api_groups, GROUP) {
            let message = format!(
                "has {GROUP}: no policy decides about Proviso's own objects, so that a broken policy can always be fixed"
            );
            errors.push(field_error(format!("{at}.apiGroups"), message));
        }
        return;
    }
    if rule.scope.as_deref() == Some("Cluster") {
        let message = "is Cluster, and a Policy decides about objects of its own namespace only: use a ClusterPolicy";
        errors.push(field_error(format!("{at}.scope"), message));
    }
    let (groups, resources) = (rule.api_groups.as_deref(), rule.resources.as_deref());
    for ExcludedName { field, name, why } in
        confinement::excluded_names(groups.unwrap_or_default(), resources.unwrap_or_default())
    {
        let remedy = if name == GROUP { "" } else { ": use a ClusterPolicy" };
        errors.push(field_error(format!("{at}.{}", field.as_str()), format!("has {name}: {why}{remedy}")));
    }
    let is_core = names(&rule.api_groups, "") || names(&rule.api_groups, "*");
    let is_namespaces = |it: &String| it.split('/').next() == Some("namespaces");
    if is_core && rule.resources.iter().flatten().any(is_namespaces) {
        let message =
            "has namespaces: a Policy decides about objects within its own namespace only: use a ClusterPolicy";
        errors.push(field_error(format!("{at}.resources"), message));
    }
}

/// Returns false if the selector excludes this namespace by its name.
fn can_select(namespace: &str, selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let mut by_label = labels.filter(|(key, _)| *key == NAMESPACE_NAME).map(|(_, value)| value == namespace);
    let mut by_expression = expressions.filter(|it| it.key == NAMESPACE_NAME).map(|it| {
        let is_listed = it.values.iter().flatten().any(|value| value == namespace);
        match it.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "DoesNotExist" => false,
            _ => true,
        }
    });
    by_label.all(|it| it) && by_expression.all(|it| it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::PreviewLogging;
    use serde_json::{Value, json};

    fn spec() -> Value {
        json!({
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [
                {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]},
            ]},
        })
    }

    fn fields(namespace: Option<&str>, name: &str, spec: &Value) -> Vec<String> {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let found: Vec<_> = policy(namespace, name, &spec).into_iter().map(|error| error.field).collect();
        // An experiment has the same errors, one level deeper.
        let reference = proviso_crds::PolicyRef { name: "a".to_owned() };
        let other = ExperimentSpec {
            policy_ref: reference,
            policy: spec,
            auto_start: false,
            sample_rate: 1.0,
            logging: PreviewLogging::All,
            ttl: "336h".to_owned(),
        };
        let deeper = experiment(namespace, name, &other).into_iter().map(|error| error.field);
        assert_eq!(deeper.map(|it| it.replace("spec.policy.", "spec.")).collect::<Vec<_>>(), found);
        found
    }

    #[test]
    fn each_error_names_its_field() {
        let with = |pointer: &str, value: Value| {
            let mut spec = spec();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match spec.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
                parent => parent[key] = value,
            }
            spec
        };
        let rule = |field: &str, value: Value| with(&format!("/admission/rules/0/{field}"), value);
        let selector = |value: Value| with("/admission/namespaceSelector", value);
        let (cluster, team) = (None, Some("team"));
        for (namespace, spec, expected) in [
            (cluster, spec(), None),
            (team, spec(), None),
            (
                cluster,
                with("/program", json!({"cel": {"validations": [{"expression": "("}]}})),
                Some("spec.program.cel"),
            ),
            (cluster, with("/program", json!({"wasm": {"module": "file:///a"}})), Some("spec.program.wasm.module")),
            (cluster, rule("resources", json!([])), Some("spec.admission.rules[0].resources")),
            (cluster, rule("apiGroups", json!(["proviso.dev"])), Some("spec.admission.rules[0].apiGroups")),
            (cluster, rule("scope", json!("Cluster")), None),
            (team, rule("scope", json!("Cluster")), Some("spec.admission.rules[0].scope")),
            (cluster, rule("resources", json!(["secrets"])), None),
            (team, rule("resources", json!(["pods", "secrets"])), Some("spec.admission.rules[0].resources")),
            (team, rule("resources", json!(["namespaces/finalize"])), Some("spec.admission.rules[0].resources")),
            (team, rule("resources", json!(["pods", "pods/exec"])), Some("spec.admission.rules[0].resources")),
            (team, rule("resources", json!(["rolebindings"])), Some("spec.admission.rules[0].resources")),
            (cluster, rule("resources", json!(["rolebindings"])), None),
            (team, rule("apiGroups", json!(["rbac.authorization.k8s.io"])), Some("spec.admission.rules[0].apiGroups")),
            (team, rule("apiGroups", json!(["proviso.dev"])), Some("spec.admission.rules[0].apiGroups")),
            (
                team,
                selector(json!({"matchLabels": {NAMESPACE_NAME: "other"}})),
                Some("spec.admission.namespaceSelector"),
            ),
            (team, selector(json!({"matchLabels": {NAMESPACE_NAME: "team", "a": "b"}})), None),
            (
                team,
                selector(
                    json!({"matchExpressions": [{"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["team"]}]}),
                ),
                Some("spec.admission.namespaceSelector"),
            ),
            (cluster, selector(json!({"matchLabels": {NAMESPACE_NAME: "other"}})), None),
        ] {
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(fields(namespace, "a", &spec), expected, "{namespace:?} {spec}");
        }
        assert_eq!(fields(cluster, "A", &spec()), ["metadata.name"]);
    }
}
