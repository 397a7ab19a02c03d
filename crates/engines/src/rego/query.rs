//! A query to a set of modules, as `opa eval` answers it: the same reading, checks and builtins as a policy has, without a
//! dialect. For comparing with OPA; policies are [`super::Program`]s.

use regorus::unstable::{Parser, Source};
use regorus::{Engine, Value};
use serde_json::Value as Json;

use super::inspect::Documents;
use super::parse::{self, Text};
use super::{failed, negation, set_deadline, set_up, value};
use crate::{CompileError, Deadline, EvaluationError};

/// Modules and data with a query to them.
#[derive(Clone)]
pub struct Query {
    engine: Engine,
    query: String,
}

impl std::fmt::Debug for Query {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Query").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Query {
    /// Reads modules, the data that they may refer to, and the query.
    ///
    /// # Errors
    /// As [`super::Program::compile`].
    pub fn compile(modules: &[String], data: Option<&Json>, query: &str) -> Result<Self, CompileError> {
        let invalid = |error: String| CompileError::Invalid(error.trim().to_owned());
        let named = |(index, text)| Text { name: format!("module {index}"), text };
        let texts: Vec<Text<'_>> = modules.iter().map(String::as_str).enumerate().map(named).collect();
        let mut engine = parse::parse(&texts, Documents::Any)?;
        set_up(&mut engine)?;
        if let Some(data) = data {
            let data = value::read(&data.to_string()).map_err(|error| invalid(error.to_string()))?;
            engine.add_data(data).map_err(|error| invalid(error.to_string()))?;
        }
        let query = written_out(query)?.unwrap_or_else(|| query.to_owned());
        Ok(Self { engine, query })
    }

    /// Answers the query: for each way in which it holds its variables, or the value of its last expression.
    ///
    /// # Errors
    /// When the modules raise an error, or do not end in time.
    pub fn evaluate(&self, input: Option<&Json>, deadline: Deadline) -> Result<Vec<Json>, EvaluationError> {
        let mut engine = self.engine.clone();
        if let Some(input) = input {
            let input = value::read(&input.to_string()).map_err(|error| EvaluationError::Failed(error.to_string()))?;
            engine.set_input(input);
        }
        set_deadline(&mut engine, deadline);
        let results = engine
            .eval_query(self.query.clone(), false)
            .map_err(|error| failed(&error.to_string(), error.downcast_ref(), deadline))?;
        let mut answers = Vec::new();
        for result in results.result {
            let has_bindings = result.bindings.as_object().is_ok_and(|bindings| bindings.iter().next().is_some());
            let fails = |value: &Value| matches!(value, Value::Bool(false) | Value::Undefined);
            let value = match result.expressions.last() {
                _ if has_bindings && result.expressions.iter().any(|expression| fails(&expression.value)) => continue,
                _ if has_bindings => result.bindings,
                Some(expression) => expression.value.clone(),
                None => Value::Undefined,
            };
            if value == Value::Undefined {
                continue;
            }
            answers
                .push(serde_json::to_value(&value).map_err(|error| EvaluationError::InvalidAnswer(error.to_string()))?);
        }
        Ok(answers)
    }
}

fn written_out(query: &str) -> Result<Option<String>, CompileError> {
    let invalid = |error: String| CompileError::Invalid(error.trim().to_owned());
    let source = Source::from_contents("query".into(), query.into()).map_err(|error| invalid(error.to_string()))?;
    let mut parser = Parser::new(&source).map_err(|error| invalid(error.to_string()))?;
    // A query that uses newer keywords is read by the engine; it has no negation to be written out, or the engine's own.
    match parser.parse_user_query() {
        Ok(query) => negation::query_written_out(&query),
        Err(_) => Ok(None),
    }
}
