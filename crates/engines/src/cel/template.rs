//! Templates: an expression that computes a JSON object from the variables `component` and `params`. A template has no host, and its
//! result depends on nothing but these variables: a map is read in the order of its keys.

use std::fmt;
use std::sync::Arc;

use cel::IdedExpr;
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::objects::Key;
use serde_json::{Map, Value as Json};

use super::check::{KnownVariables, Purpose};
use super::interrupt::Budget;
use super::{expression, json, library, rewrite, variables};
use crate::template;
use crate::{CompileError, Deadline, EvaluationError};

/// A compiled CEL template with its parameters. A clone is cheap.
#[derive(Clone)]
pub struct Template(Arc<Prepared>);

struct Prepared {
    tree: IdedExpr,
    params: Box<dyn Val>,
}

impl fmt::Debug for Template {
    /// Omits the expression and the parameters, which may contain secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Template {
    /// Compiles a template of at most [`crate::MAX_TEMPLATE`] bytes. `params` is the value of the variable `params`.
    ///
    /// # Errors
    /// [`CompileError::Invalid`] if the expression does not parse, or reads another variable than `component` and `params`.
    /// [`CompileError::Unsupported`] if it is too large or nested too deep, or uses an unknown function.
    pub fn compile(expression: &str, params: &Map<String, Json>) -> Result<Self, CompileError> {
        template::compile(|| {
            let (mut tree, _) = expression::compile(expression, Purpose::Template, &KnownVariables::new())?;
            rewrite::sort_maps(&mut tree);
            let params = json::from_value(&Json::Object(params.clone()))
                .map_err(|error| CompileError::Invalid(format!("the settings are not valid: {error}")))?;
            Ok(Self(Arc::new(Prepared { tree, params })))
        })
    }

    /// Evaluates the template for a component: the value of the variable `component`. Blocks the thread.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if the expression has no value or takes too much memory, [`EvaluationError::InvalidAnswer`] if the
    /// value is no map, is too large or has no representation in JSON, [`EvaluationError::DeadlineExceeded`] if the evaluation does not
    /// end in time.
    pub fn render(&self, component: &Json, deadline: Deadline) -> Result<Map<String, Json>, EvaluationError> {
        template::render(deadline, || {
            library::memory::reset();
            let component = json::from_value(component)
                .map_err(|error| EvaluationError::Failed(format!("component cannot be read: {error}")))?;
            let variables = Variables { component, params: self.0.params.as_ref() };
            // The messages have no part of the source, which may be confidential.
            let value = variables::resolve(&self.0.tree, &variables, &Budget::new(deadline))?
                .map_err(|error| EvaluationError::Failed(error.to_string()))?;
            if !matches!(value, cel::Value::Map(_)) {
                return Err(EvaluationError::InvalidAnswer(format!("the value is a {}, not a map", value.type_of())));
            }
            if min_bytes(&value, 0) > template::MAX_CONTENT {
                return Err(template::too_large());
            }
            template::to_object(&json::write(&value).map_err(EvaluationError::InvalidAnswer)?)
        })
    }
}

/// The variables of one evaluation.
struct Variables<'a> {
    component: Box<dyn Val>,
    params: &'a dyn Val,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            "component" => Some(CowVal::Borrowed(self.component.as_ref())),
            "params" => Some(CowVal::Borrowed(self.params)),
            _ => None,
        }
    }
}

/// Adds to `bytes` a lower bound of the size of a value as JSON, in bytes. Stops when the content is too large. The recursion is
/// bounded: an expression cannot construct deep values.
fn min_bytes(value: &cel::Value, mut bytes: usize) -> usize {
    bytes += match value {
        cel::Value::String(text) => text.len() + 2,
        cel::Value::Bytes(data) => data.len(),
        _ => 1,
    };
    match value {
        cel::Value::List(items) => {
            for item in items.iter() {
                if bytes > template::MAX_CONTENT {
                    break;
                }
                bytes = min_bytes(item, bytes);
            }
        }
        cel::Value::Map(map) => {
            for (key, member) in map.map.iter() {
                if bytes > template::MAX_CONTENT {
                    break;
                }
                bytes += if let Key::String(key) = key { key.len() + 2 } else { 1 };
                bytes = min_bytes(member, bytes);
            }
        }
        _ => {}
    }
    bytes
}
