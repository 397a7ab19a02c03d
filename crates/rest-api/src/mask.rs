//! Update masks (AIP-134): the fields of the body that replace the fields of the resource.

use std::sync::LazyLock;

use proviso_crds::PolicySpec;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::body::to_camel_case;
use crate::error::Error;

/// The schema of a policy's spec without references. It determines the valid paths in a spec.
static SPEC_SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<PolicySpec>().to_value()
});

/// The fields of a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    /// The path of the policy's spec.
    pub spec: &'static str,
    /// The other fields that a client can change. If the field is a map, its keys can be changed too.
    pub mutable: &'static [&'static str],
    /// The output-only fields: a mask may name them without effect (AIP-203).
    pub output: &'static [&'static str],
}

/// Replaces fields in `current`, the resource, by the fields of `body`: the fields that the mask names, or without a mask
/// all fields of the body. `current` and `body` have only the fields that a client can change.
pub(crate) fn apply(current: &mut Value, body: &Value, mask: Option<&str>, fields: Fields) -> Result<(), Error> {
    let everything = || {
        let mutable = fields.mutable.iter().copied().chain([fields.spec]);
        mutable.map(|path| path.split('.').map(ToOwned::to_owned).collect::<Vec<_>>())
    };
    let paths: Vec<Vec<String>> = match mask.map(str::trim).filter(|mask| !mask.is_empty()) {
        None => everything().filter(|path| get(body, path).is_some()).collect(),
        Some("*") => everything().collect(),
        Some(mask) => {
            let mut paths = Vec::new();
            for text in split(mask, ',') {
                paths.extend(path(&text, fields)?);
            }
            paths
        }
    };
    for path in paths {
        match get(body, &path) {
            Some(value) => set(current, &path, value.clone()),
            None => remove(current, &path),
        }
    }
    Ok(())
}

/// Parses one entry of a mask into the path of a field. `None` means that the field is output-only.
fn path(text: &str, fields: Fields) -> Result<Option<Vec<String>>, Error> {
    let words = split(text.trim(), '.');
    let camels: Vec<String> = words.iter().map(|word| to_camel_case(word)).collect();
    let spec: Vec<&str> = fields.spec.split('.').collect();
    if spec.starts_with(&camels.iter().map(String::as_str).collect::<Vec<_>>()) && !camels.is_empty() {
        // The entry names the spec, or the message around the spec, in which only the spec can be changed.
        return Ok(Some(spec.into_iter().map(ToOwned::to_owned).collect()));
    }
    if camels.iter().map(String::as_str).take(spec.len()).eq(spec.iter().copied()) {
        let inner = &words[spec.len()..];
        if has_path(&SPEC_SCHEMA, inner) {
            return Ok(Some(camels[..spec.len()].iter().chain(inner).cloned().collect()));
        }
    } else if let Some(first) = camels.first() {
        if first == "annotations" && words.len() > 1 {
            return Ok(Some(vec![first.clone(), words[1..].join(".")]));
        }
        if words.len() == 1 && fields.mutable.contains(&first.as_str()) {
            return Ok(Some(camels));
        }
        let is_inside =
            |output: &&str| camels.join(".") == **output || camels.join(".").starts_with(&format!("{output}."));
        if fields.output.iter().any(is_inside) {
            return Ok(None);
        }
    }
    Err(Error::invalid("updateMask", format!("names {text:?}, which is not a field")))
}

/// Splits the text at each letter `at` outside backticks. Splitting at dots, the last step, removes the backticks.
fn split(text: &str, at: char) -> Vec<String> {
    let (mut parts, mut is_quoted) = (vec![String::new()], false);
    for letter in text.chars() {
        if letter == '`' {
            is_quoted = !is_quoted;
            if at == '.' {
                continue;
            }
        }
        match parts.last_mut() {
            Some(part) if letter != at || is_quoted => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts
}

/// Returns true if a value of this schema can have a field at this path.
fn has_path(schema: &Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    if let Some(inner) = schema["properties"].get(first) {
        return has_path(inner, rest);
    }
    let any = ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| schema[key].as_array()).flatten();
    if any.into_iter().any(|schema| has_path(schema, path)) {
        return true;
    }
    match &schema["additionalProperties"] {
        Value::Object(_) => has_path(&schema["additionalProperties"], rest),
        Value::Bool(true) => true,
        _ => schema["x-kubernetes-preserve-unknown-fields"] == true,
    }
}

/// Returns the value at `path`. `None` means that the value is absent or null.
pub(crate) fn get<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key)).filter(|value| !value.is_null())
}

fn set(value: &mut Value, path: &[String], new: Value) {
    match path.split_first() {
        None => *value = new,
        Some((first, rest)) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            set(&mut value[first], rest, new);
        }
    }
}

fn remove(value: &mut Value, path: &[String]) {
    match (path, value.as_object_mut()) {
        ([last], Some(object)) => {
            object.remove(last);
        }
        ([first, rest @ ..], Some(object)) => {
            if let Some(inner) = object.get_mut(first) {
                remove(inner, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const FIELDS: Fields = Fields {
        spec: "policy.spec",
        mutable: &["annotations", "autoStart"],
        output: &["name", "policy.name", "previewMetadata"],
    };

    fn applied(mask: Option<&str>) -> Result<Value, Error> {
        let mut current = json!({
            "policy": {"spec": {"settings": {"a": 1, "b": 2}, "enabled": true}}, "annotations": {"x": "1", "y.z/k": "2"},
            "autoStart": true,
        });
        let body = json!({
            "policy": {"spec": {"settings": {"a": 3}, "enabled": false}}, "annotations": {"x": "9"},
        });
        apply(&mut current, &body, mask, FIELDS).map(|()| current)
    }

    #[test]
    fn a_mask_replaces_only_the_fields_that_it_names() {
        for (mask, pointer, wanted) in [
            ("policy.spec.settings", "/policy/spec/settings", Some(json!({"a": 3}))),
            ("policy.spec.settings", "/policy/spec/enabled", Some(json!(true))),
            ("policy.spec.settings.a", "/policy/spec/settings", Some(json!({"a": 3, "b": 2}))),
            ("policy.spec.settings.b", "/policy/spec/settings", Some(json!({"a": 1}))),
            ("policy", "/policy/spec/settings", Some(json!({"a": 3}))),
            ("annotations.x", "/annotations", Some(json!({"x": "9", "y.z/k": "2"}))),
            ("annotations.`y.z/k`", "/annotations", Some(json!({"x": "1"}))),
            ("auto_start", "/autoStart", None),
            ("*", "/autoStart", None),
            ("preview_metadata.state, name", "/policy/spec/settings/a", Some(json!(1))),
            ("policy.spec.timeoutEvalSeconds", "/policy/spec/enabled", Some(json!(true))),
            ("policy.spec.program.rego.source,annotations", "/annotations", Some(json!({"x": "9"}))),
        ] {
            assert_eq!(applied(Some(mask)).unwrap().pointer(pointer), wanted.as_ref(), "{mask}: {pointer}");
        }
        let unmasked = applied(None).unwrap();
        assert_eq!((&unmasked["policy"]["spec"]["settings"], &unmasked["autoStart"]), (&json!({"a": 3}), &json!(true)));
    }

    #[test]
    fn a_mask_that_names_an_unknown_field_is_refused() {
        for mask in ["setings", "policy.spec.setings", "policy.etag2", "annotations,,", ".", "policy.spec.program.lua"]
        {
            let error = applied(Some(mask)).unwrap_err();
            assert_eq!(error.violations[0].field, "updateMask", "{mask}");
        }
    }

    proptest! {
        #[test]
        fn applying_a_mask_never_panics(mask in ".{0,40}", words in "(policy|spec|annotations|settings|\\.|,|`|\\*| ){0,12}") {
            let _ = applied(Some(&mask));
            let _ = applied(Some(&words));
        }
    }
}
