//! Reads a changed policy from a file: its whole manifest, or only its spec. Pure.

use kube::core::GroupVersionKind;
use proviso_crds::{GROUP, VERSION};
use proviso_evaluation::policy_spec;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::objects::PolicyObject;

/// The fields that only a whole manifest has.
const MANIFEST_FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// The error of reading a changed policy from a file.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{file} cannot be read: {error}")]
    Read { file: String, error: std::io::Error },
    #[error("{file} is not YAML: {error}")]
    Yaml { file: String, error: serde_yaml::Error },
    #[error("{file} has {count} documents: it must have one, the policy or its spec")]
    Documents { file: String, count: usize },
    #[error("{file}: {field}: {message}")]
    Field { file: String, field: String, message: String },
}

/// Returns the new spec of a policy: the whole spec that `kubectl apply` of the file would set.
///
/// # Errors
/// When the file is not YAML with one document, is the manifest of another object, or has an invalid spec.
pub fn read(file: &str, text: &str, policy: &PolicyObject) -> Result<Value, ManifestError> {
    let document = only_document(file, text)?;
    let wrong = |field: String, message: String| ManifestError::Field { file: file.to_owned(), field, message };
    let Value::Object(document) = document else {
        return Err(wrong("the document".to_owned(), "is not an object".to_owned()));
    };
    let (spec, prefix) = if MANIFEST_FIELDS.iter().any(|field| document.contains_key(*field)) {
        check_identity(&document, policy).map_err(|(field, message)| wrong(field, message))?;
        (document.get("spec").cloned().unwrap_or(Value::Null), "spec")
    } else {
        (Value::Object(document), "")
    };
    // An unknown field is an error, because the API server would drop it without a message.
    policy_spec::read(prefix, &spec).map_err(|error| wrong(error.field, error.message))?;
    Ok(spec)
}

fn only_document(file: &str, text: &str) -> Result<Value, ManifestError> {
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize).collect::<Result<Vec<_>, _>>();
    let documents = documents.map_err(|error| ManifestError::Yaml { file: file.to_owned(), error })?;
    let mut documents: Vec<_> = documents.into_iter().filter(|it| !it.is_null()).collect();
    match (documents.pop(), documents.len()) {
        (Some(document), 0) => Ok(document),
        (last, before) => {
            let count = before + usize::from(last.is_some());
            Err(ManifestError::Documents { file: file.to_owned(), count })
        }
    }
}

/// Checks that the manifest is one of the policy. The error is the field that differs, and a message.
fn check_identity(manifest: &Map<String, Value>, policy: &PolicyObject) -> Result<(), (String, String)> {
    let id = &policy.id;
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, &format!("{:?}", policy.kind()));
    let namespace = &manifest.get("metadata").map_or(Value::Null, |metadata| metadata["namespace"].clone());
    let name = manifest.get("metadata").map_or(Value::Null, |metadata| metadata["name"].clone());
    for (field, is, wanted) in [
        ("apiVersion", manifest.get("apiVersion").cloned().unwrap_or_default(), gvk.api_version()),
        ("kind", manifest.get("kind").cloned().unwrap_or_default(), gvk.kind.clone()),
        ("metadata.name", name, id.name().to_owned()),
    ] {
        if is != wanted.as_str() {
            let is = if is.is_null() { "is missing".to_owned() } else { format!("is {is}") };
            return Err((field.to_owned(), format!("{is}, but for {id} it must be {wanted:?}")));
        }
    }
    match (namespace, id.namespace()) {
        // A manifest without a namespace is for the user's namespace, as for kubectl.
        (Value::Null, _) => Ok(()),
        (is, Some(wanted)) if is == wanted => Ok(()),
        (is, Some(wanted)) => {
            Err(("metadata.namespace".to_owned(), format!("is {is}, but for {id} it must be {wanted:?}")))
        }
        (is, None) => Err(("metadata.namespace".to_owned(), format!("is {is}, but {id} is cluster-scoped"))),
    }
}

/// Returns the spec of a policy with a program that allows everything. Its preview shows the effect of a deletion (AIP-236).
#[must_use]
pub fn no_op(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["program"] = serde_json::json!({"cel": {"validations": []}});
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, policy, spec};
    use serde_json::json;

    fn read_document(document: &Value) -> Result<Value, String> {
        read("changed.yaml", &serde_yaml::to_string(document).unwrap(), &policy(2, &active(2)))
            .map_err(|error| error.to_string())
    }

    fn manifest() -> Value {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels", "namespace": "team"},
            "spec": spec("team"),
        })
    }

    #[test]
    fn a_file_holds_the_policy_or_its_spec() {
        assert_eq!(read_document(&manifest()), Ok(spec("team")));
        assert_eq!(read_document(&spec("team")), Ok(spec("team")));
        let mut without_namespace = manifest();
        without_namespace["metadata"] = json!({"name": "labels"});
        assert_eq!(read_document(&without_namespace), Ok(spec("team")), "it is for the namespace of the policy");
    }

    #[test]
    fn a_manifest_of_another_policy_is_refused_by_its_field() {
        for (pointer, value, wanted) in [
            (
                "/kind",
                json!("ClusterPolicy"),
                "kind: is \"ClusterPolicy\", but for ns.team.labels it must be \"Policy\"",
            ),
            (
                "/apiVersion",
                json!("v1"),
                "apiVersion: is \"v1\", but for ns.team.labels it must be \"proviso.dev/v1alpha1\"",
            ),
            (
                "/metadata/name",
                json!("other"),
                "metadata.name: is \"other\", but for ns.team.labels it must be \"labels\"",
            ),
            ("/metadata/name", Value::Null, "metadata.name: is missing, but for ns.team.labels it must be \"labels\""),
            (
                "/metadata/namespace",
                json!("other"),
                "metadata.namespace: is \"other\", but for ns.team.labels it must be \"team\"",
            ),
        ] {
            let mut manifest = manifest();
            *manifest.pointer_mut(pointer).unwrap() = value;
            assert_eq!(read_document(&manifest).unwrap_err(), format!("changed.yaml: {wanted}"));
        }
    }

    #[test]
    fn an_invalid_spec_is_refused_with_file_and_field() {
        let mut unknown = spec("team");
        unknown["program"]["cel"]["validation"] = json!([]);
        let mut wrong = manifest();
        wrong["spec"]["enabled"] = json!("yes");
        let mut invalid = manifest();
        invalid["spec"]["program"]["cel"]["validations"][0]["expression"] = json!(" ");
        for (document, wanted) in [
            (unknown, "changed.yaml: program.cel.validation: is not a field of a policy"),
            (wrong, "changed.yaml: spec.enabled: invalid type"),
            (invalid, "changed.yaml: spec.program.cel.validations[0].expression: is empty"),
            (json!({"kind": "Policy"}), "changed.yaml: apiVersion: is missing"),
            (json!([]), "changed.yaml: the document: is not an object"),
        ] {
            let error = read_document(&document).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
        for (text, wanted) in [
            ("a: [", "changed.yaml is not YAML"),
            ("", "has 0 documents"),
            ("a: 1\n---\nb: 2\n", "changed.yaml has 2 documents"),
        ] {
            let error = read("changed.yaml", text, &policy(2, &active(2))).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_no_op_keeps_everything_but_the_program() {
        let (before, after) = (spec("team"), no_op(&spec("team")));
        assert_eq!(after["program"], json!({"cel": {"validations": []}}));
        assert_eq!((&after["admission"], &after["settings"]), (&before["admission"], &before["settings"]));
        assert!(policy_spec::read("spec", &after).is_ok());
    }
}
