//! Converts the `match` of a constraint to webhook rules and selectors, and to `matchConditions` where rules and selectors are
//! not sufficient.

use proviso_crds::validation::FieldError;
use proviso_evaluation::documents::Document;
use proviso_evaluation::gatekeeper::{Kinds, Matches};
use proviso_evaluation::plural;
use serde_json::{Value, json};

use crate::error::ImportError;
use crate::resources::{self, ResourceNames};

/// The label of each Namespace with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The default operations of a template.
const OPERATIONS: [&str; 2] = ["CREATE", "UPDATE"];
/// The subresource whose requests have the kind Pod.
const EPHEMERAL: &str = "pods/ephemeralcontainers";

/// Returns the `admission` section for the constraint in `document`.
pub(crate) fn admission(
    document: &Document,
    matches: &Matches,
    operations: Option<&[String]>,
    named: &ResourceNames,
) -> Result<Value, Vec<ImportError>> {
    let mut errors = Vec::new();
    let wrong = |field: &str, message: String| document.error(FieldError::new(field, message)).into();
    let mut conditions = Vec::new();
    let all = OPERATIONS.map(ToOwned::to_owned);
    let rules = rules(document, matches, operations.unwrap_or(&all), named, &mut errors);
    let mut expressions = Vec::new();
    namespaces(matches, &mut expressions, &mut conditions);
    for pattern in matches.namespaces.iter().chain(&matches.excluded_namespaces).chain(&matches.name) {
        if !pattern.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || "-.:*".contains(it)) {
            errors.push(wrong("spec.match", format!("{pattern:?} is not a name or a name pattern")));
        }
    }
    if let Some(name) = matches.name.as_deref().filter(|it| !it.is_empty()) {
        conditions.push(("name", name_condition(name)));
    }
    if matches.source.as_deref() == Some("Generated") {
        let message = "has no equivalent: there are no ExpansionTemplates here";
        errors.push(wrong("spec.match.source", message.to_owned()));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut admission = json!({"rules": rules});
    if let Some(selector) = &matches.label_selector {
        admission["objectSelector"] = json!(selector);
    }
    let mut selector = json!(matches.namespace_selector.clone().unwrap_or_default());
    if !expressions.is_empty() {
        let given = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
        selector["matchExpressions"] = given.into_iter().chain(expressions).collect();
    }
    if selector != json!({}) {
        admission["namespaceSelector"] = selector;
    }
    if !conditions.is_empty() {
        let conditions =
            conditions.into_iter().map(|(name, expression)| json!({"name": name, "expression": expression}));
        admission["matchConditions"] = conditions.collect();
    }
    Ok(admission)
}

fn rules(
    document: &Document,
    matches: &Matches,
    operations: &[String],
    named: &ResourceNames,
    errors: &mut Vec<ImportError>,
) -> Vec<Value> {
    let all = [Kinds::default()];
    let kinds = if matches.kinds.is_empty() { &all[..] } else { &matches.kinds };
    let mut rules = Vec::new();
    for (index, it) in kinds.iter().enumerate() {
        let any = vec!["*".to_owned()];
        let groups = if it.api_groups.is_empty() { &any } else { &it.api_groups };
        let mut resources = Vec::new();
        if it.kinds.is_empty() || it.kinds.iter().any(|kind| kind == "*") {
            resources.extend(["*".to_owned(), EPHEMERAL.to_owned()]);
        } else {
            for kind in &it.kinds {
                match resources::known(groups, kind, named) {
                    Some(resource) => resources.push(resource),
                    None => errors.push(ImportError::UnknownResource {
                        place: document.place.clone(),
                        field: format!("spec.match.kinds[{index}].kinds"),
                        kind: kind.clone(),
                        guess: plural(kind),
                    }),
                }
            }
            if resources.iter().any(|it| it == "pods") {
                resources.push(EPHEMERAL.to_owned());
            }
        }
        let mut rule =
            json!({"apiGroups": groups, "apiVersions": ["*"], "operations": operations, "resources": resources});
        if let Some(scope @ ("Cluster" | "Namespaced")) = matches.scope.as_deref() {
            rule["scope"] = scope.into();
        }
        rules.push(rule);
    }
    rules
}

/// Converts namespace names to selector expressions, and namespace patterns to match conditions.
fn namespaces(matches: &Matches, expressions: &mut Vec<Value>, conditions: &mut Vec<(&'static str, String)>) {
    let (included, excluded) = (&matches.namespaces, &matches.excluded_namespaces);
    let is_pattern = |it: &&String| it.contains('*');
    let outside = "!has(request.namespace) || request.namespace == ''";
    if included.iter().any(|it| is_pattern(&it)) {
        let any: Vec<_> = included.iter().map(|it| like("request.namespace", it)).collect();
        conditions.push(("namespaces", format!("{outside} || {}", any.join(" || "))));
    } else if !included.is_empty() {
        expressions.push(json!({"key": NAME_LABEL, "operator": "In", "values": included}));
    }
    let (patterns, names): (Vec<_>, Vec<_>) = excluded.iter().partition(is_pattern);
    if !patterns.is_empty() {
        let any: Vec<_> = patterns.iter().map(|it| like("request.namespace", it)).collect();
        conditions.push(("excluded-namespaces", format!("{outside} || !({})", any.join(" || "))));
    }
    if !names.is_empty() {
        expressions.push(json!({"key": NAME_LABEL, "operator": "NotIn", "values": names}));
    }
}

/// Returns the match condition for object names. If the API server has not generated the name yet, `generateName` is matched.
fn name_condition(pattern: &str) -> String {
    let named = like("request.name", pattern);
    match pattern.strip_suffix('*') {
        Some(_) => {
            let generated = like("object.metadata.generateName", pattern);
            format!("{named} || (request.name == '' && has(object.metadata.generateName) && {generated})")
        }
        None => named,
    }
}

/// Returns a CEL expression that matches `text` with a pattern, which may begin and end with an asterisk.
fn like(text: &str, pattern: &str) -> String {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => format!("{text}.contains('{}')", rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => format!("{text}.endsWith('{end}')"),
        (None, Some(start)) => format!("{text}.startsWith('{start}')"),
        (None, None) => format!("{text} == '{pattern}'"),
    }
}
