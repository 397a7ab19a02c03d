//! The format of OPA's case files: modules, data, input, a query and its expected answer.

use std::time::Duration;

use proviso_engines::rego::Query;
use proviso_engines::{CompileError, Deadline, EvaluationError};
use serde::Deserialize;
use serde_json::Value;

use super::Outcome;

const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

/// A case in the format of OPA's own tests. Irrelevant fields are not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Case {
    pub note: String,
    pub query: String,
    #[serde(default)]
    pub modules: Vec<String>,
    pub data: Option<Value>,
    pub input: Option<Value>,
    /// The input as a term of Rego.
    pub input_term: Option<String>,
    pub want_result: Option<Vec<Value>>,
    pub want_defined: Option<bool>,
    pub want_error: Option<String>,
    pub want_error_code: Option<String>,
    #[serde(default)]
    pub sort_bindings: bool,
    /// True if the expected error occurs only with strict builtin errors.
    #[serde(default)]
    pub strict_error: bool,
    #[serde(default)]
    pub ignore_generated_vars: bool,
}

/// Parses the cases of a file.
pub fn read(text: &str) -> Result<Vec<Case>, serde_yaml::Error> {
    serde_yaml::from_str(text).map(|file: File| file.cases)
}

enum Answer {
    Refused(CompileError),
    Failed(EvaluationError),
    Answers(Vec<Value>),
}

impl Case {
    /// Evaluates the case and compares the answer with the expected answer.
    pub fn outcome(&self) -> Outcome {
        let wants_error = self.want_error.is_some() || self.want_error_code.is_some();
        match self.answer() {
            Answer::Refused(_) | Answer::Failed(_) if wants_error => Outcome::Passed,
            Answer::Refused(error) => Outcome::Refused(error.to_string()),
            Answer::Failed(error) => Outcome::Denied(error.to_string()),
            // Without strict builtin errors, OPA's answer is undefined.
            Answer::Answers(answers) if wants_error && self.strict_error && answers.is_empty() => Outcome::Passed,
            Answer::Answers(answers) if wants_error => Outcome::Looser(to_json(&answers)),
            Answer::Answers(answers) => self.compare(answers),
        }
    }

    fn answer(&self) -> Answer {
        let input = match &self.input_term {
            Some(term) => {
                match Query::compile(&[], None, term).map(|query| query.evaluate(None, Deadline::after(TIMEOUT))) {
                    Ok(Ok(values)) => values.into_iter().next(),
                    Ok(Err(error)) => return Answer::Failed(error),
                    Err(error) => return Answer::Refused(error),
                }
            }
            None => self.input.clone(),
        };
        // A panic of the interpreter counts as a denial, as in the policy server.
        let evaluated = std::panic::catch_unwind(|| {
            Query::compile(&self.modules, self.data.as_ref(), &self.query)
                .map(|query| query.evaluate(input.as_ref(), Deadline::after(TIMEOUT)))
        });
        match evaluated {
            Err(_) => Answer::Failed(EvaluationError::Failed("the interpreter panicked".into())),
            Ok(Err(error)) => Answer::Refused(error),
            Ok(Ok(Err(error))) => Answer::Failed(error),
            Ok(Ok(Ok(answers))) => Answer::Answers(answers),
        }
    }

    fn compare(&self, answers: Vec<Value>) -> Outcome {
        let actual = self.normalize(answers);
        let same = match (&self.want_result, self.want_defined) {
            (Some(expected), _) => actual == self.normalize(expected.clone()),
            (None, Some(is_defined)) => actual.is_empty() != is_defined,
            (None, None) => true,
        };
        if same { Outcome::Passed } else { Outcome::Different(to_json(&actual)) }
    }

    /// Normalizes answers for a comparison that ignores the order of answers and the types of numbers.
    fn normalize(&self, answers: Vec<Value>) -> Vec<Value> {
        let mut answers: Vec<Value> = answers.into_iter().map(|answer| self.normalize_answer(answer)).collect();
        answers.sort_by_cached_key(Value::to_string);
        answers
    }

    fn normalize_answer(&self, mut answer: Value) -> Value {
        if let Value::Object(bindings) = &mut answer {
            bindings.retain(|name, _| !(self.ignore_generated_vars && name.starts_with("__local")));
            if self.sort_bindings {
                for list in bindings.values_mut().filter_map(Value::as_array_mut) {
                    list.sort_by_cached_key(|item| normalize_numbers(item.clone()).to_string());
                }
            }
        }
        normalize_numbers(answer)
    }
}

fn normalize_numbers(value: Value) -> Value {
    match value {
        #[allow(clippy::cast_possible_truncation, reason = "a whole number below 9e15 converts exactly")]
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float.fract() == 0.0 && float.abs() < 9e15 => (float as i64).into(),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(normalize_numbers).collect(),
        Value::Object(members) => {
            Value::Object(members.into_iter().map(|(name, value)| (name, normalize_numbers(value))).collect())
        }
        other => other,
    }
}

fn to_json(answers: &[Value]) -> String {
    Value::from(answers.to_vec()).to_string()
}
