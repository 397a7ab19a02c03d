//! The differences of two specs: as a list of fields, and as text.

use proviso_crds::PolicySpec;
use serde_json::Value;
use similar::TextDiff;

/// The largest number of names in a field path, such as 3 in `program.cel.validations`.
const MAX_DEPTH: usize = 3;
/// The number of unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Returns the fields in which two specs differ, sorted by name.
#[must_use]
pub fn changes(old: &Value, new: &Value) -> Vec<String> {
    let mut fields = Vec::new();
    collect(old, new, &mut Vec::new(), &mut fields);
    fields
}

fn collect<'a>(old: &'a Value, new: &'a Value, at: &mut Vec<&'a str>, fields: &mut Vec<String>) {
    if old == new {
        return;
    }
    let (Value::Object(old), Value::Object(new), true) = (old, new, at.len() < MAX_DEPTH) else {
        fields.push(at.join("."));
        return;
    };
    let mut names: Vec<_> = old.keys().chain(new.keys()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        at.push(name);
        collect(old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null), at, fields);
        at.pop();
    }
}

/// Returns true if two specs are equal after defaults are filled in.
#[must_use]
pub fn is_same(old: &Value, new: &Value) -> bool {
    let read = |spec: &Value| serde_json::from_value::<PolicySpec>(spec.clone()).ok();
    old == new || read(old).is_some_and(|old| Some(old) == read(new))
}

/// Returns the unified diff of two specs as YAML; empty if they are equal.
///
/// # Errors
/// When a spec cannot be written as YAML, which does not happen with a spec of an API server.
pub fn diff(old: (&str, &Value), new: (&str, &Value)) -> Result<String, serde_yaml::Error> {
    let (before, after) = (serde_yaml::to_string(old.1)?, serde_yaml::to_string(new.1)?);
    Ok(lines_diff((old.0, &before), (new.0, &after)))
}

/// Returns the unified diff of two texts with their names; empty if they are equal.
#[must_use]
pub fn lines_diff(old: (&str, &str), new: (&str, &str)) -> String {
    let diff = TextDiff::from_lines(old.1, new.1);
    diff.unified_diff().context_radius(CONTEXT_LINES).header(old.0, new.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_fields_are_named_down_to_three_levels() {
        let old = json!({"a": 1, "b": {"c": {"d": {"e": 1}}}, "same": [1]});
        for (new, wanted) in [
            (old.clone(), vec![]),
            (json!({"a": 2, "b": old["b"], "same": [1]}), vec!["a"]),
            (json!({"a": 1, "b": {"c": {"d": {"e": 2}}}, "same": [1]}), vec!["b.c.d"]),
            (json!({"a": 1, "same": [1, 2], "new": {"x": 1}}), vec!["b", "new", "same"]),
        ] {
            assert_eq!(changes(&old, &new), wanted);
        }
    }

    #[test]
    fn specs_that_differ_only_in_defaults_are_the_same() {
        let spec = crate::objects::tests::spec("owner");
        let mut explicit = spec.clone();
        explicit["admission"]["timeoutSeconds"] = json!(10);
        assert!(is_same(&spec, &explicit) && !is_same(&spec, &crate::objects::tests::spec("team")));
        // A spec that this version cannot read is compared without defaults.
        let unreadable = |program: u32| json!({"program": program});
        assert!(is_same(&unreadable(1), &unreadable(1)) && !is_same(&unreadable(1), &unreadable(2)));
    }

    #[test]
    fn a_diff_shows_the_lines_of_a_program() {
        let spec = |last: &str| json!({"program": {"rego": {"source": format!("package a\n\n{last}\n")}}});
        let text = diff(("generation 1", &spec("x := 1")), ("generation 2", &spec("x := 2"))).unwrap();
        let wanted = "\
--- generation 1
+++ generation 2
@@ -3,4 +3,4 @@
     source: |
       package a
 
-      x := 1
+      x := 2
";
        assert_eq!(text, wanted);
        assert_eq!(diff(("a", &spec("x := 1")), ("b", &spec("x := 1"))).unwrap(), "");
    }
}
