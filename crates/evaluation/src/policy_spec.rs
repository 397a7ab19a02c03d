//! Strict parsing of a policy's spec: a field that this version of Proviso does not have is an error.

use proviso_crds::PolicySpec;
use proviso_crds::validation::{self, FieldError};
use serde_json::Value;

/// Reads and validates a spec. `at` is the field of the spec in its document, and empty if the document is the spec itself.
///
/// # Errors
/// Returns the first field that is unknown, of the wrong type or invalid.
pub fn read(at: &str, spec: &Value) -> Result<PolicySpec, FieldError> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(spec, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| unknown.push(path_text(&path)));
    let read: PolicySpec = read.map_err(|error: serde_json::Error| {
        let path = track.path().to_string();
        FieldError::new(join(at, if path == "." { "" } else { &path }), error.to_string())
    })?;
    if let Some(field) = unknown.pop() {
        return Err(FieldError::new(join(at, &field), "is not a field of a policy in this version of Proviso"));
    }
    match validation::policy(&read).into_iter().next() {
        None => Ok(read),
        Some(error) => {
            let field = error.field.trim_start_matches("spec").trim_start_matches('.');
            Err(FieldError::new(join(at, field), error.message))
        }
    }
}

/// Returns a path as text, such as `a.b[0].c`.
fn path_text(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_text(parent)),
        Path::Map { parent, key } => join(&path_text(parent), key),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => path_text(parent),
    }
}

fn join(at: &str, field: &str) -> String {
    match (at, field) {
        ("", "") => "the spec".to_owned(),
        ("", field) => field.to_owned(),
        (at, "") => at.to_owned(),
        (at, field) => format!("{at}.{field}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> Value {
        json!({
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        })
    }

    #[test]
    fn an_error_names_the_field_from_the_root_of_the_document() {
        let changed = |pointer: &str, field: &str, value: Value| {
            let mut spec = spec();
            spec.pointer_mut(pointer).unwrap()[field] = value;
            spec
        };
        assert!(read("spec", &spec()).is_ok());
        for (spec, in_manifest, alone) in [
            (changed("", "enabled", json!("yes")), "spec.enabled", "enabled"),
            (changed("/program/cel", "validation", json!([])), "spec.program.cel.validation", "program.cel.validation"),
            (
                changed("/program/cel/validations/0", "expression", json!(" ")),
                "spec.program.cel.validations[0].expression",
                "program.cel.validations[0].expression",
            ),
            (json!({}), "spec.program", "program"),
            (json!("cel"), "spec", "the spec"),
        ] {
            assert_eq!(read("spec", &spec).unwrap_err().field, in_manifest);
            assert_eq!(read("", &spec).unwrap_err().field, alone);
        }
    }
}
