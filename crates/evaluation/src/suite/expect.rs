//! The expectations of a case, and their comparison with an answer.

use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::source::Source;
use crate::policy_file::Answer;

/// The expectations of a case. An omitted field accepts any value; `allowed` is required.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Expect {
    allowed: bool,
    /// True if the policy's `admission` section must cover the request. Default: true.
    #[serde(default = "default_true")]
    asked: bool,
    /// A regular expression that must match the message of the denial, or one of its causes.
    message: Option<String>,
    /// The HTTP status of the denial.
    code: Option<u16>,
    /// Regular expressions that must each match a warning. An empty list expects no warnings.
    warnings: Option<Vec<String>>,
    /// True if the policy must mutate the object, false if it must not.
    mutated: Option<bool>,
    /// The expected fields of the object after the policy's mutation. Omitted fields accept any value.
    object: Option<Source>,
}

fn default_true() -> bool {
    true
}

impl Expect {
    /// Returns true if the case expects a failed evaluation, which is a denial with the code 500.
    pub(super) fn is_failure(&self) -> bool {
        self.code == Some(500)
    }

    /// Returns the differences between the answer and the expectations, one line each.
    ///
    /// # Errors
    /// Returns an error if an expectation is invalid, for example a regular expression.
    pub(super) fn differences(&self, suite: &Path, answer: &Answer, object: &Value) -> Result<Vec<String>, String> {
        let verdict = &answer.verdict;
        let mut found = Vec::new();
        if let (Some(why), true) = (&answer.skip_reason, self.asked) {
            return Ok(vec![format!("the policy does not cover this request: {why}")]);
        }
        if answer.skip_reason.is_none() && !self.asked {
            found.push("asked: expected false, but the policy covers this request".to_owned());
        }
        if verdict.allowed != self.allowed {
            let message = verdict.message.as_deref().map_or_else(String::new, |it| format!(": {it}"));
            found.push(format!("allowed: expected {}, found {}{message}", self.allowed, verdict.allowed));
        }
        let messages = verdict.message.iter().chain(verdict.causes.iter().map(|cause| &cause.message));
        let messages: Vec<_> = messages.map(String::as_str).collect();
        if let Some(wanted) = &self.message
            && !any_matches(&messages, wanted, "expect.message")?
        {
            found.push(format!("message: expected one like {wanted:?}, found {}", list(&messages)));
        }
        if let Some(wanted) = self.code
            && verdict.code != Some(wanted)
        {
            let code = verdict.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
            found.push(format!("code: expected {wanted}, found {code}"));
        }
        found.extend(self.warnings(&verdict.warnings)?);
        found.extend(self.mutation(suite, answer, object)?);
        Ok(found)
    }

    fn warnings(&self, warnings: &[String]) -> Result<Vec<String>, String> {
        let Some(wanted) = &self.warnings else { return Ok(Vec::new()) };
        let warnings: Vec<_> = warnings.iter().map(String::as_str).collect();
        if wanted.is_empty() && !warnings.is_empty() {
            return Ok(vec![format!("warnings: expected none, found {}", list(&warnings))]);
        }
        let mut found = Vec::new();
        for wanted in wanted {
            if !any_matches(&warnings, wanted, "expect.warnings")? {
                found.push(format!("warnings: expected one like {wanted:?}, found {}", list(&warnings)));
            }
        }
        Ok(found)
    }

    fn mutation(&self, suite: &Path, answer: &Answer, object: &Value) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        let is_mutated = answer.verdict.patch.is_some();
        if let Some(wanted) = self.mutated
            && wanted != is_mutated
        {
            found.push(format!("mutated: expected {wanted}, found {is_mutated}"));
        }
        if let Some(wanted) = &self.object {
            let wanted = wanted.read(suite).map_err(|error| format!("expect.object: {error}"))?;
            let object = answer.patched(object).map_err(|error| error.to_string())?;
            compare("object", &wanted, &object, &mut found);
        }
        Ok(found)
    }
}

/// Returns true if the regular expression of `field` matches one of the texts.
pub(super) fn any_matches(texts: &[&str], wanted: &str, field: &str) -> Result<bool, String> {
    let regex = Regex::new(wanted).map_err(|error| format!("{field}: {error}"))?;
    Ok(texts.iter().any(|text| regex.is_match(text)))
}

/// Returns the texts for a message.
pub(super) fn list(texts: &[&str]) -> String {
    if texts.is_empty() { "none".to_owned() } else { texts.join("; ") }
}

/// Appends the differences between `wanted` and `found`. Fields that `wanted` does not have are ignored; lists must have the
/// same length.
pub(super) fn compare(at: &str, wanted: &Value, found: &Value, differences: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (name, wanted) in wanted {
                compare(&format!("{at}.{name}"), wanted, found.get(name).unwrap_or(&Value::Null), differences);
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{at}[{index}]"), wanted, found, differences);
            }
        }
        (wanted, found) if wanted == found => {}
        (wanted, Value::Null) => differences.push(format!("{at}: expected {wanted}, found nothing")),
        (wanted, found) => differences.push(format!("{at}: expected {wanted}, found {found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_core::Verdict;
    use serde_json::json;

    fn differences(expect: Value, verdict: Verdict) -> Vec<String> {
        let expect: Expect = serde_json::from_value(expect).unwrap();
        let answer = Answer { verdict, skip_reason: None, failure: None };
        expect.differences(Path::new(""), &answer, &json!({"a": {"b": 1}, "c": [1, {"d": 2}]})).unwrap()
    }

    #[test]
    fn a_denial_is_compared_by_message_code_and_causes() {
        let denied = || Verdict {
            code: Some(403),
            causes: vec![proviso_core::verdict::Cause { field: None, message: "the cause".into() }],
            ..Verdict::deny("no owner")
        };
        for (expect, wanted) in [
            (json!({"allowed": false}), vec![]),
            (json!({"allowed": false, "message": "own", "code": 403, "warnings": []}), vec![]),
            (json!({"allowed": false, "message": "^the cause$"}), vec![]),
            (json!({"allowed": true}), vec!["allowed: expected true, found false: no owner"]),
            (
                json!({"allowed": false, "message": "team"}),
                vec!["message: expected one like \"team\", found no owner; the cause"],
            ),
            (json!({"allowed": false, "code": 422}), vec!["code: expected 422, found 403"]),
            (
                json!({"allowed": false, "asked": false}),
                vec!["asked: expected false, but the policy covers this request"],
            ),
            (json!({"allowed": false, "warnings": ["x"]}), vec!["warnings: expected one like \"x\", found none"]),
        ] {
            assert_eq!(differences(expect.clone(), denied()), wanted, "{expect}");
        }
    }

    #[test]
    fn an_object_needs_only_the_fields_that_are_expected() {
        let patch = serde_json::from_value(json!([{"op": "add", "path": "/a/e", "value": true}])).unwrap();
        let verdict = || Verdict { patch: Some(patch), warnings: vec!["careful".into()], ..Verdict::allow() };
        let verdict = verdict();
        for (expect, wanted) in [
            (json!({"allowed": true, "mutated": true, "object": {"a": {"e": true}}}), vec![]),
            (json!({"allowed": true, "object": {"c": [1, {}]}, "warnings": ["^care"]}), vec![]),
            (json!({"allowed": true, "mutated": false}), vec!["mutated: expected false, found true"]),
            (json!({"allowed": true, "object": {"a": {"e": false}}}), vec!["object.a.e: expected false, found true"]),
            (json!({"allowed": true, "object": {"c": [1]}}), vec!["object.c: expected [1], found [1,{\"d\":2}]"]),
            (json!({"allowed": true, "object": {"f": 1}}), vec!["object.f: expected 1, found nothing"]),
            (json!({"allowed": true, "warnings": []}), vec!["warnings: expected none, found careful"]),
        ] {
            assert_eq!(differences(expect.clone(), verdict.clone()), wanted, "{expect}");
        }
    }
}
