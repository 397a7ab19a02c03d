//! Gatekeeper's suites (`test.gatekeeper.sh/v1alpha1`), as `gator verify` runs them.

use std::path::Path;

use proviso_core::review::Operation;
use proviso_crds::validation::FieldError;
use proviso_engines::{Deadline, Program};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::filter::Filter;
use super::report::{CaseReport, Outcome, TestReport};
use super::source::resolve;
use crate::documents::{self, Document, exactly_one, typed};
use crate::evaluator::{Evaluator, TIMEOUT};
use crate::gatekeeper::{Constraint, ConstraintError, Subject, Template};
use crate::inventory::with_inventory;
use crate::review::{self, Request};

pub(super) const GROUP: &str = "test.gatekeeper.sh";
pub(super) const VERSION: &str = "test.gatekeeper.sh/v1alpha1";

/// A template, a constraint and test cases. File names are relative to the folder of the suite.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    #[serde(default)]
    name: String,
    template: String,
    constraint: String,
    expansion: Option<String>,
    #[serde(default)]
    cases: Vec<Case>,
    /// True if the template's schema must reject the constraint.
    #[serde(default)]
    invalid: bool,
    #[serde(default)]
    skip: bool,
}

/// An object, and the expected violations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    name: String,
    object: String,
    #[serde(default)]
    inventory: Vec<String>,
    #[serde(default)]
    assertions: Vec<Assertion>,
    #[serde(default)]
    skip: bool,
}

/// The expected number of violations whose message matches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Assertion {
    #[serde(default)]
    violations: Violations,
    message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
enum Violations {
    #[default]
    Some,
    None,
    Exactly(u64),
}

impl TryFrom<Value> for Violations {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            // Some YAML parsers read `yes` and `no` as booleans.
            Value::String(text) if text == "yes" => Ok(Self::Some),
            Value::String(text) if text == "no" => Ok(Self::None),
            Value::Bool(yes) => Ok(if *yes { Self::Some } else { Self::None }),
            Value::Number(number) => {
                number.as_u64().map(Self::Exactly).ok_or_else(|| format!("{number} is not 0 or more"))
            }
            other => Err(format!("{other} is not yes, no or a number")),
        }
    }
}

/// Reads the tests of a suite.
///
/// # Errors
/// Returns an error if the suite has an unknown field, or a field is missing or invalid.
pub(super) fn read(suite: &Value) -> Result<Vec<Test>, FieldError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Document {
        api_version: String,
        #[serde(rename = "kind")]
        _kind: String,
        #[serde(rename = "metadata", default)]
        _metadata: Value,
        #[serde(rename = "skip", default)]
        _skip: bool,
        #[serde(default)]
        tests: Vec<Test>,
    }
    let Document { api_version, tests, .. } = typed("", suite)?;
    if api_version != VERSION {
        let message = format!("is {api_version:?}, and must be {VERSION:?}");
        return Err(FieldError::new("apiVersion", message));
    }
    Ok(tests)
}

/// The constraint of a test, and the compiled program of its template.
struct Prepared {
    constraint: Constraint,
    /// The program without an inventory. Each case has its own inventory.
    program: Program,
}

impl Test {
    pub(super) fn is_chosen(&self, filter: &Filter) -> bool {
        filter.selects_test(&self.name, self.cases.iter().map(|case| case.name.as_str()))
    }

    pub(super) async fn run(&self, suite: &Path, filter: &Filter, evaluator: &Evaluator) -> TestReport {
        let cases = async {
            let prepared = self.prepare(suite, evaluator).await?;
            let mut cases = Vec::new();
            for case in &self.cases {
                let is_chosen = !case.skip && filter.selects_case(&self.name, &case.name);
                cases.push(CaseReport::of(&case.name, is_chosen, case.run(suite, &prepared)).await);
            }
            Ok(cases)
        };
        TestReport::of(&self.name, !self.skip && self.is_chosen(filter), cases).await
    }

    /// Reads the constraint and compiles the template.
    ///
    /// # Errors
    /// Returns the outcome of a test that runs no cases: the test cannot be run, or it tests only the constraint (`invalid`).
    async fn prepare(&self, suite: &Path, evaluator: &Evaluator) -> Result<Prepared, Outcome> {
        if self.expansion.is_some() {
            let message = "expansion: ExpansionTemplates are not supported: test the generated objects directly";
            return Err(Outcome::Error(message.to_owned()));
        }
        let error = |error: String| Outcome::Error(error);
        let template = one(suite, &self.template, Template::is, "ConstraintTemplates").map_err(error)?;
        let place = template.place.clone();
        let template = Template::read(&template.value).map_err(|wrong| Outcome::Error(format!("{place}: {wrong}")))?;
        let is_meant = |value: &Value| Constraint::is(value);
        let constraint = one(suite, &self.constraint, is_meant, "constraints").map_err(error)?;
        let place = constraint.place.clone();
        let constraint = match Constraint::read(&constraint.value, &template) {
            Err(ConstraintError::Schema(_)) if self.invalid => return Err(Outcome::Passed),
            Err(wrong) => return Err(Outcome::Error(format!("{place}: {wrong}"))),
            Ok(_) if self.invalid => {
                let message = "the constraint is valid, but the template's schema should reject it";
                return Err(Outcome::Failed(message.to_owned()));
            }
            Ok(constraint) => constraint,
        };
        match evaluator.compile_template(&template, &constraint.parameters).await {
            Ok(program) => Ok(Prepared { constraint, program }),
            Err(wrong) => Err(Outcome::Error(format!("{}: {wrong}", resolve(suite, &self.template).display()))),
        }
    }
}

impl Case {
    async fn run(&self, suite: &Path, prepared: &Prepared) -> Result<Outcome, String> {
        if self.assertions.is_empty() {
            return Err("assertions: are missing: state the expected violations".to_owned());
        }
        let file = resolve(suite, &self.object);
        let mut objects = values(&file)?;
        let Some(object) = objects.pop() else { return Err(format!("{} holds no object", file.display())) };
        // In old suites, the file of the object also has the inventory, before the object.
        let mut inventory = objects;
        for file in &self.inventory {
            inventory.extend(values(&resolve(suite, file))?);
        }
        let review = if review::is_review(&object) {
            review::completed(&object)
        } else {
            let operation = Some(Operation::Create);
            Request { operation, object: Some(object), ..Request::default() }.to_review()
        };
        let review = review.map_err(|error| format!("{}: {error}", file.display()))?;
        let messages = prepared.violations(&review, &inventory).await?;
        for (index, assertion) in self.assertions.iter().enumerate() {
            if let Some(message) = assertion.check(index, &messages)? {
                return Ok(Outcome::Failed(message));
            }
        }
        Ok(Outcome::Passed)
    }
}

impl Prepared {
    /// Evaluates a review with these objects in the inventory, and returns the messages of its violations.
    async fn violations(&self, review: &Value, inventory: &[Value]) -> Result<Vec<String>, String> {
        match covers(&self.constraint, &review["request"], inventory) {
            Ok(true) if self.constraint.is_tested() => {}
            Ok(_) => return Ok(Vec::new()),
            // Gatekeeper denies an object if the matching fails.
            Err(message) => return Ok(vec![message]),
        }
        let review = review::admission(review).map_err(|error| error.to_string())?;
        let program = with_inventory(&self.program, inventory);
        let verdict = program.evaluate(&review, Deadline::after(TIMEOUT)).await.map_err(|error| error.to_string())?;
        Ok(match (verdict.allowed, verdict.causes.is_empty()) {
            (true, _) => Vec::new(),
            // A single violation is the message of the verdict, and has no cause.
            (false, true) => vec![verdict.message.unwrap_or_default()],
            (false, false) => verdict.causes.into_iter().map(|cause| cause.message).collect(),
        })
    }
}

/// Returns true if the constraint covers the object or the old object of the request.
fn covers(constraint: &Constraint, request: &Value, inventory: &[Value]) -> Result<bool, String> {
    let name = request["namespace"].as_str().unwrap_or_default();
    let is_namespace = |it: &&Value| it["kind"] == "Namespace" && it["apiVersion"] == "v1";
    let namespace = inventory.iter().filter(is_namespace).find(|it| it["metadata"]["name"] == name);
    for object in [&request["object"], &request["oldObject"]] {
        if !object.is_null() && constraint.matches.covers(Subject { object, namespace })? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Assertion {
    /// Returns the difference between the messages and the assertion; `None` if the assertion holds.
    fn check(&self, index: usize, messages: &[String]) -> Result<Option<String>, String> {
        let regex = self.message.as_deref().map(Regex::new).transpose();
        let regex = regex.map_err(|error| format!("assertions[{index}].message: {error}"))?;
        let count = messages.iter().filter(|it| regex.as_ref().is_none_or(|regex| regex.is_match(it))).count();
        let wanted = match self.violations {
            Violations::Some if count > 0 => return Ok(None),
            Violations::Some => "at least one".to_owned(),
            Violations::None if count == 0 => return Ok(None),
            Violations::None => "none".to_owned(),
            Violations::Exactly(wanted) if usize::try_from(wanted) == Ok(count) => return Ok(None),
            Violations::Exactly(wanted) => wanted.to_string(),
        };
        let like =
            self.message.as_ref().map_or_else(String::new, |message| format!(" with a message like {message:?}"));
        let mut text = format!("violations{like}: expected {wanted}, found {count}");
        for message in messages {
            text.push_str("\n- ");
            text.push_str(message);
        }
        Ok(Some(text))
    }
}

/// Returns the only document of a file for which `is_meant` is true.
fn one(suite: &Path, file: &str, is_meant: impl Fn(&Value) -> bool, what: &'static str) -> Result<Document, String> {
    let file = resolve(suite, file);
    let documents = documents::read(&file).map_err(|error| error.to_string())?;
    let documents = documents.into_iter().filter(|it| is_meant(&it.value)).collect();
    exactly_one(&file, documents, what).map_err(|error| error.to_string())
}

fn values(file: &Path) -> Result<Vec<Value>, String> {
    let documents = documents::read(file).map_err(|error| error.to_string())?;
    Ok(documents.into_iter().map(|document| document.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_assertion_counts_violations_by_their_messages() {
        let messages = ["label owner is missing".to_owned(), "label team is missing".to_owned()];
        for (assertion, of_two, of_none) in [
            (json!({}), true, false),
            (json!({"violations": "yes"}), true, false),
            (json!({"violations": true}), true, false),
            (json!({"violations": "no"}), false, true),
            (json!({"violations": 2}), true, false),
            (json!({"violations": 0}), false, true),
            (json!({"violations": 1, "message": "owner"}), true, false),
            (json!({"violations": "no", "message": "^owner"}), true, true),
            (json!({"message": "label (owner|team)"}), true, false),
        ] {
            let read: Assertion = serde_json::from_value(assertion.clone()).unwrap();
            let holds = |messages: &[String]| read.check(0, messages).unwrap().is_none();
            assert_eq!((holds(&messages), holds(&[])), (of_two, of_none), "{assertion}");
        }
        for wrong in [json!({"violations": -1}), json!({"violations": "maybe"}), json!({"violation": 1})] {
            assert!(serde_json::from_value::<Assertion>(wrong.clone()).is_err(), "{wrong}");
        }
        let bad: Assertion = serde_json::from_value(json!({"message": "("})).unwrap();
        assert!(bad.check(1, &[]).unwrap_err().starts_with("assertions[1].message"));
    }
}
