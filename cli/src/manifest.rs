//! A changed policy in a file: its whole manifest, or only its spec. Pure.

use kube::core::GroupVersionKind;
use proviso_crds::{GROUP, VERSION};
use proviso_evaluation::policy_spec;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::objects::PolicyObject;

/// Fields that only a whole manifest has.
const OF_MANIFEST: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Why a file holds no new version of a policy.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{file} cannot be read: {error}")]
    Read { file: String, error: std::io::Error },
    #[error("{file} is no YAML: {error}")]
    Yaml { file: String, error: serde_yaml::Error },
    #[error("{file} has {count} documents: it must be one, the policy or its spec")]
    Documents { file: String, count: usize },
    #[error("{file}: {field}: {message}")]
    Field { file: String, field: String, message: String },
}

/// The spec that a file makes of a policy: as a whole, as `kubectl apply` of that file would.
///
/// # Errors
/// When it is of another policy, or none of this version of Proviso.
pub fn read(file: &str, text: &str, policy: &PolicyObject) -> Result<Value, ManifestError> {
    let document = only_document(file, text)?;
    let wrong = |field: String, message: String| ManifestError::Field { file: file.to_owned(), field, message };
    let Value::Object(document) = document else {
        return Err(wrong("the document".to_owned(), "is no object".to_owned()));
    };
    let (spec, prefix) = if OF_MANIFEST.iter().any(|field| document.contains_key(*field)) {
        check_whose(&document, policy).map_err(|(field, message)| wrong(field, message))?;
        (document.get("spec").cloned().unwrap_or(Value::Null), "spec")
    } else {
        (Value::Object(document), "")
    };
    // Strictly: the API server would drop an unknown field, and nobody would notice.
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

/// Field and message of what makes it a manifest of something else.
fn check_whose(manifest: &Map<String, Value>, policy: &PolicyObject) -> Result<(), (String, String)> {
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
            return Err((field.to_owned(), format!("{is}, and of {id} it is {wanted:?}")));
        }
    }
    match (namespace, id.namespace()) {
        // As for kubectl, what is not said is the namespace that is worked in.
        (Value::Null, _) => Ok(()),
        (is, Some(wanted)) if is == wanted => Ok(()),
        (is, Some(wanted)) => Err(("metadata.namespace".to_owned(), format!("is {is}, and of {id} it is {wanted:?}"))),
        (is, None) => Err(("metadata.namespace".to_owned(), format!("is {is}, and {id} has none"))),
    }
}

/// A policy's spec with a program that allows everything: what previews its deletion (AIP-236).
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

    fn of(document: &Value) -> Result<Value, String> {
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
        assert_eq!(of(&manifest()), Ok(spec("team")));
        assert_eq!(of(&spec("team")), Ok(spec("team")));
        let mut nowhere = manifest();
        nowhere["metadata"] = json!({"name": "labels"});
        assert_eq!(of(&nowhere), Ok(spec("team")), "kubectl takes it for this namespace, too");
    }

    #[test]
    fn another_policy_is_told_by_file_and_field() {
        for (pointer, value, wanted) in [
            ("/kind", json!("ClusterPolicy"), "kind: is \"ClusterPolicy\", and of ns.team.labels it is \"Policy\""),
            ("/apiVersion", json!("v1"), "apiVersion: is \"v1\", and of ns.team.labels it is \"proviso.dev/v1alpha1\""),
            ("/metadata/name", json!("other"), "metadata.name: is \"other\", and of ns.team.labels it is \"labels\""),
            ("/metadata/name", Value::Null, "metadata.name: is missing, and of ns.team.labels it is \"labels\""),
            (
                "/metadata/namespace",
                json!("other"),
                "metadata.namespace: is \"other\", and of ns.team.labels it is \"team\"",
            ),
        ] {
            let mut manifest = manifest();
            *manifest.pointer_mut(pointer).unwrap() = value;
            assert_eq!(of(&manifest).unwrap_err(), format!("changed.yaml: {wanted}"));
        }
    }

    #[test]
    fn what_is_wrong_in_a_spec_is_told_by_file_and_field() {
        let mut unknown = spec("team");
        unknown["program"]["cel"]["validation"] = json!([]);
        let mut wrong = manifest();
        wrong["spec"]["enabled"] = json!("yes");
        let mut invalid = manifest();
        invalid["spec"]["program"]["cel"]["validations"][0]["expression"] = json!(" ");
        for (document, wanted) in [
            (unknown, "changed.yaml: program.cel.validation: is no field of a policy"),
            (wrong, "changed.yaml: spec.enabled: invalid type"),
            (invalid, "changed.yaml: spec.program.cel.validations[0].expression: is empty"),
            (json!({"kind": "Policy"}), "changed.yaml: apiVersion: is missing"),
            (json!([]), "changed.yaml: the document: is no object"),
        ] {
            let error = of(&document).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
        for (text, wanted) in [
            ("a: [", "changed.yaml is no YAML"),
            ("", "has 0 documents"),
            ("a: 1\n---\nb: 2\n", "changed.yaml has 2 documents"),
        ] {
            let error = read("changed.yaml", text, &policy(2, &active(2))).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_no_op_is_the_policy_without_its_program() {
        let (before, after) = (spec("team"), no_op(&spec("team")));
        assert_eq!(after["program"], json!({"cel": {"validations": []}}));
        assert_eq!((&after["admission"], &after["settings"]), (&before["admission"], &before["settings"]));
        assert!(policy_spec::read("spec", &after).is_ok());
    }
}
