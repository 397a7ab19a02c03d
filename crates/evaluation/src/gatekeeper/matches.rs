//! `spec.match` of a constraint: selects the objects that the constraint covers, by the rules of Gatekeeper.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use proviso_core::matching::labels;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::Value;

use crate::documents::group;

/// The `match` section of a constraint. An object must match all fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Matches {
    pub kinds: Vec<Kinds>,
    pub scope: Option<String>,
    pub namespaces: Vec<String>,
    pub excluded_namespaces: Vec<String>,
    pub label_selector: Option<LabelSelector>,
    pub namespace_selector: Option<LabelSelector>,
    pub name: Option<String>,
    pub source: Option<String>,
}

/// Kinds of some API groups. An empty list and `*` match all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Kinds {
    pub api_groups: Vec<String>,
    pub kinds: Vec<String>,
}

/// An object to match, and its Namespace if it is known.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub object: &'a Value,
    pub namespace: Option<&'a Value>,
}

impl Matches {
    /// Validates the selectors and `source`.
    ///
    /// # Errors
    /// Returns the first invalid selector, or a `source` that Gatekeeper does not have.
    pub fn check(&self) -> Result<(), FieldError> {
        for (field, selector) in
            [("labelSelector", &self.label_selector), ("namespaceSelector", &self.namespace_selector)]
        {
            selector
                .as_ref()
                .map_or(Ok(()), |it| to_selector(it).map(drop))
                .map_err(|message| FieldError::new(format!("spec.match.{field}"), message))?;
        }
        match self.source.as_deref() {
            None | Some("" | "All" | "Original" | "Generated") => Ok(()),
            Some(other) => {
                let message = format!("is {other:?}, but must be one of All, Original and Generated");
                Err(FieldError::new("spec.match.source", message))
            }
        }
    }

    /// Returns true if the constraint covers the object.
    ///
    /// # Errors
    /// Returns an error if the constraint has a `namespaceSelector`, and the object's Namespace is not known.
    pub fn covers(&self, subject: Subject<'_>) -> Result<bool, String> {
        Ok(self.kind(subject)
            && self.scope(subject)
            && self.namespaces(subject)
            && selects(self.label_selector.as_ref(), subject.object)?
            && self.namespace_labels(subject)?
            && self.name(subject)
            // ExpansionTemplates are not supported, so there are no generated objects.
            && self.source.as_deref() != Some("Generated"))
    }

    fn kind(&self, subject: Subject<'_>) -> bool {
        let has = |list: &[String], wanted: &str| list.is_empty() || list.iter().any(|it| it == "*" || it == wanted);
        let kind = subject.object["kind"].as_str().unwrap_or_default();
        let group = group(subject.object);
        self.kinds.is_empty() || self.kinds.iter().any(|it| has(&it.kinds, kind) && has(&it.api_groups, group))
    }

    fn scope(&self, subject: Subject<'_>) -> bool {
        let has_namespace = subject.own_namespace().is_some() || subject.namespace.is_some();
        match self.scope.as_deref() {
            Some("Cluster") => subject.is_namespace() || !has_namespace,
            Some("Namespaced") => !subject.is_namespace() && has_namespace,
            _ => true,
        }
    }

    fn namespaces(&self, subject: Subject<'_>) -> bool {
        // Gatekeeper applies `namespaces` and `excludedNamespaces` only to objects with a namespace.
        let Some(name) = subject.namespace_name() else { return true };
        let names = |list: &[String]| list.iter().any(|pattern| matches_pattern(pattern, name));
        (self.namespaces.is_empty() || names(&self.namespaces)) && !names(&self.excluded_namespaces)
    }

    fn namespace_labels(&self, subject: Subject<'_>) -> Result<bool, String> {
        let Some(selector) = &self.namespace_selector else { return Ok(true) };
        match subject.namespace {
            _ if subject.is_namespace() => selects(Some(selector), subject.object),
            Some(namespace) => selects(Some(selector), namespace),
            None if subject.own_namespace().is_none() => Ok(true),
            None => Err("the constraint has a namespaceSelector, and the object's Namespace is not known: put the \
                         Namespace into the inventory of the case"
                .to_owned()),
        }
    }

    fn name(&self, subject: Subject<'_>) -> bool {
        let Some(pattern) = self.name.as_deref().filter(|it| !it.is_empty()) else { return true };
        let text = |field: &str| subject.object["metadata"][field].as_str().unwrap_or_default();
        // A generated name is not complete yet: the API server appends a suffix after admission.
        matches_pattern(pattern, text("name"))
            || pattern.ends_with('*') && matches_pattern(pattern, text("generateName"))
    }
}

impl<'a> Subject<'a> {
    fn is_namespace(&self) -> bool {
        self.object["kind"] == "Namespace" && group(self.object).is_empty()
    }

    fn own_namespace(&self) -> Option<&'a str> {
        self.object["metadata"]["namespace"].as_str().filter(|it| !it.is_empty())
    }

    fn namespace_name(&self) -> Option<&'a str> {
        let name = |object: &'a Value| object["metadata"]["name"].as_str();
        if self.is_namespace() {
            return name(self.object);
        }
        self.namespace.and_then(name).or_else(|| self.own_namespace())
    }
}

/// Returns true if a text matches a pattern, which may begin and end with an asterisk.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => text.contains(rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => pattern == text,
    }
}

fn to_selector(selector: &LabelSelector) -> Result<Selector, String> {
    selector.clone().try_into().map_err(|error: kube::core::ParseExpressionError| error.to_string())
}

fn selects(selector: Option<&LabelSelector>, object: &Value) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(true) };
    Ok(to_selector(selector)?.matches(&labels(&object["metadata"])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn covers(matches: Value, object: &Value, namespace: Option<&Value>) -> Result<bool, String> {
        let matches: Matches = serde_json::from_value(matches).unwrap();
        matches.check().unwrap();
        matches.covers(Subject { object, namespace })
    }

    #[test]
    fn an_object_must_match_every_field() {
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "web", "namespace": "team-a", "labels": {"app": "web"},
        }});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {}}});
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": {"a": "b"}}});
        for (matches, of_deployment, of_node, of_namespace) in [
            (json!({}), true, true, true),
            (json!({"kinds": [{"apiGroups": ["apps"], "kinds": ["Deployment"]}]}), true, false, false),
            (json!({"kinds": [{"apiGroups": ["*"], "kinds": ["*"]}]}), true, true, true),
            (json!({"kinds": [{"apiGroups": [""]}]}), false, true, true),
            (json!({"kinds": [{"kinds": ["Node"]}, {"kinds": ["Deployment"]}]}), true, true, false),
            (json!({"scope": "Cluster"}), false, true, true),
            (json!({"scope": "Namespaced"}), true, false, false),
            (json!({"namespaces": ["team-*"]}), true, true, true),
            (json!({"namespaces": ["other"]}), false, true, false),
            (json!({"excludedNamespaces": ["*-a"]}), false, true, false),
            (json!({"excludedNamespaces": ["*eam*"]}), false, true, false),
            (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), true, false, false),
            (json!({"name": "we*"}), true, false, false),
            (json!({"source": "Original"}), true, true, true),
            (json!({"source": "Generated"}), false, false, false),
        ] {
            for (object, wanted) in [(&deployment, of_deployment), (&node, of_node), (&namespace, of_namespace)] {
                assert_eq!(covers(matches.clone(), object, None), Ok(wanted), "{matches}: {object}");
            }
        }
    }

    #[test]
    fn a_namespace_selector_needs_the_namespace() {
        let selector = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}});
        let namespace =
            |value: &str| json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"labels": {"a": value}}});
        assert_eq!(covers(selector.clone(), &pod, Some(&namespace("b"))), Ok(true));
        assert_eq!(covers(selector.clone(), &pod, Some(&namespace("c"))), Ok(false));
        assert!(covers(selector.clone(), &pod, None).unwrap_err().contains("inventory"));
        assert_eq!(covers(selector.clone(), &namespace("b"), None), Ok(true), "its own labels count");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        assert_eq!(covers(selector, &node, None), Ok(true), "what has no namespace is not kept out");
    }
}
