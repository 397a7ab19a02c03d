//! Conversion of the value of a rule to a verdict. A value that the dialect does not define is an error, and therefore a
//! denial: it never counts as "no violations".

use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};
use regorus::Value;

use super::evaluated_rules::{Entrypoint, ResultForm};
use super::response;
use crate::EvaluationError;

impl Entrypoint {
    /// Adds the value of the rule to the verdict.
    pub(super) fn add_to_verdict(
        &self,
        value: &Value,
        review: &Review,
        verdict: &mut Verdict,
    ) -> Result<(), EvaluationError> {
        let invalid = |what: String| EvaluationError::InvalidAnswer(format!("{} {what}", self.rule()));
        if *value == Value::Undefined {
            return Err(invalid("is undefined".into()));
        }
        match (self.form, value) {
            (ResultForm::Decision, Value::Object(_)) => *verdict = response::read(value, review).map_err(invalid)?,
            (ResultForm::Request, _) => return Err(invalid("is the result of a request policy".into())),
            (ResultForm::Warnings, _) => verdict.warnings.extend(messages(value, true).map_err(invalid)?),
            (form, _) => deny(verdict, messages(value, form != ResultForm::Violations).map_err(invalid)?),
        }
        Ok(())
    }
}

/// Returns the messages of a set or list of objects with a `msg`. If `allow_strings`, the elements may be strings too.
fn messages(value: &Value, allow_strings: bool) -> Result<Vec<String>, String> {
    let elements: Vec<&Value> = match value {
        Value::Set(set) => set.iter_sorted().collect(),
        Value::Array(array) => array.iter().collect(),
        other => return Err(format!("is {}, not a set", name_of_type(other))),
    };
    let message = |element: &Value| match element {
        Value::String(message) if allow_strings => Ok(message.to_string()),
        Value::Object(members) => match members.get(&"msg".into()) {
            Some(Value::String(message)) => Ok(message.to_string()),
            Some(other) => Err(format!("has a msg that is {}, not a string", name_of_type(other))),
            None => Err("has an element without msg".to_owned()),
        },
        other => Err(format!("has an element that is {}", name_of_type(other))),
    };
    elements.into_iter().map(message).collect()
}

fn deny(verdict: &mut Verdict, messages: Vec<String>) {
    if messages.is_empty() {
        return;
    }
    verdict.allowed = false;
    verdict.message = Some(messages.join(", "));
    if messages.len() > 1 {
        verdict.causes = messages.into_iter().map(|message| Cause { field: None, message }).collect();
    }
}

fn name_of_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Set(_) => "a set",
        Value::Object(_) => "an object",
        Value::Undefined => "undefined",
    }
}
