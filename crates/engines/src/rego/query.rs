//! Queries to a set of modules, as `opa eval` answers them. A query has the same parser, checks and builtins as a policy, but
//! no dialect. Tests use it to compare answers with OPA's; policies are [`super::Program`]s.

use regorus::unstable::{Parser, Source};
use regorus::{Engine, Value};
use serde_json::Value as Json;

use super::inspect::Documents;
use super::parse::{self, ModuleSource};
use super::{evaluation_error, negation, set_deadline, set_up, value};
use crate::memory::{self, DEFAULT_MEMORY_LIMIT};
use crate::{CompileError, Deadline, EvaluationError};

/// A query, with the modules and the data that it reads.
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
    /// Compiles a query. `data` is the base document, which the modules may read.
    ///
    /// # Errors
    /// The errors of [`super::Program::compile`] that concern modules, and [`CompileError::Invalid`] if the data or the query
    /// does not parse.
    pub fn compile(modules: &[String], data: Option<&Json>, query: &str) -> Result<Self, CompileError> {
        let invalid = |error: String| CompileError::Invalid(error.trim().to_owned());
        let named = |(index, text)| ModuleSource { name: format!("module {index}"), text };
        let sources: Vec<ModuleSource<'_>> = modules.iter().map(String::as_str).enumerate().map(named).collect();
        let mut engine = parse::parse(&sources, Documents::Any)?;
        set_up(&mut engine)?;
        if let Some(data) = data {
            let data = value::read(&data.to_string()).map_err(|error| invalid(error.to_string()))?;
            engine.add_data(data).map_err(|error| invalid(error.to_string()))?;
        }
        let query = rewrite_negations(query)?.unwrap_or_else(|| query.to_owned());
        Ok(Self { engine, query })
    }

    /// Evaluates the query. Returns one answer for each solution: the bindings of its variables, or the value of the last
    /// expression if the query has no variables.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if the modules raise an error, [`EvaluationError::DeadlineExceeded`] if they do not end in
    /// time, [`EvaluationError::InvalidAnswer`] if an answer cannot be represented as JSON.
    pub fn evaluate(&self, input: Option<&Json>, deadline: Deadline) -> Result<Vec<Json>, EvaluationError> {
        memory::evaluate(DEFAULT_MEMORY_LIMIT, || self.evaluate_within_limit(input, deadline))
    }

    fn evaluate_within_limit(&self, input: Option<&Json>, deadline: Deadline) -> Result<Vec<Json>, EvaluationError> {
        let mut engine = self.engine.clone();
        if let Some(input) = input {
            let input = value::read(&input.to_string()).map_err(|error| EvaluationError::Failed(error.to_string()))?;
            engine.set_input(input);
        }
        set_deadline(&mut engine, deadline);
        let results = engine
            .eval_query(self.query.clone(), false)
            .map_err(|error| evaluation_error(&error.to_string(), error.downcast_ref(), deadline))?;
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

/// Returns the query with its negations rewritten; `None` if nothing has to be rewritten.
fn rewrite_negations(query: &str) -> Result<Option<String>, CompileError> {
    let invalid = |error: String| CompileError::Invalid(error.trim().to_owned());
    let source = Source::from_contents("query".into(), query.into()).map_err(|error| invalid(error.to_string()))?;
    let mut parser = Parser::new(&source).map_err(|error| invalid(error.to_string()))?;
    // This parser does not know the keywords of Rego v1. The engine parses such a query, with its own meaning of negations.
    match parser.parse_user_query() {
        Ok(query) => negation::rewrite_query(&query),
        Err(_) => Ok(None),
    }
}
