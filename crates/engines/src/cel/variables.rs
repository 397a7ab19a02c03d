//! The variables of expressions: parts of the request, answers of the host, and the parameters. Each is converted when an
//! expression first reads it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, ExecutionError, IdedExpr, Value};
use proviso_core::Review;

use super::blocking_host::BlockingHost;
use super::environment::ENVIRONMENT;
use super::expression::Expression;
use super::interrupt::Budget;
use super::prepared::Prepared;
use super::{json, library};
use crate::EvaluationError;

/// The host and the limits that all expressions of one evaluation share.
pub(super) struct EvaluationContext {
    /// The Namespace of the request, or the error of the host. `None` if no expression reads it, or if the object is not
    /// namespaced.
    pub namespace: Result<Option<Arc<serde_json::Value>>, String>,
    pub host: BlockingHost,
    pub budget: Budget,
}

/// A value that is read when it is first needed. The inner `Option` is `None` if reading failed.
type Once<T> = OnceLock<Option<T>>;

/// The variables of one evaluation.
pub(super) struct Variables<'a> {
    prepared: &'a Prepared,
    review: &'a Review,
    /// The object as JSON. After a mutation it differs from the object of the review.
    object_json: Option<&'a str>,
    context: &'a EvaluationContext,
    object: Once<Box<dyn Val>>,
    old_object: Once<Box<dyn Val>>,
    request: Once<Box<dyn Val>>,
    namespace: Once<Box<dyn Val>>,
    authorizer: Once<[Box<dyn Val>; 2]>,
    /// The values of `variables`, in the order of their definitions.
    composed: Vec<Once<Box<dyn Val>>>,
    /// The names of the variables that could not be read, with the reasons.
    failures: Mutex<Vec<(&'static str, String)>>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(
        prepared: &'a Prepared,
        review: &'a Review,
        object_json: Option<&'a str>,
        context: &'a EvaluationContext,
    ) -> Self {
        Self {
            prepared,
            review,
            object_json,
            context,
            object: OnceLock::new(),
            old_object: OnceLock::new(),
            request: OnceLock::new(),
            namespace: OnceLock::new(),
            authorizer: OnceLock::new(),
            composed: prepared.variables.iter().map(|_| OnceLock::new()).collect(),
            failures: Mutex::default(),
        }
    }

    /// Evaluates an expression. Errors name it.
    pub(super) fn evaluate(&self, expression: &Expression) -> Result<Value, EvaluationError> {
        let budget = &self.context.budget;
        let value = resolve(&expression.tree, self, budget).map_err(|error| with_expression(expression, error))?;
        value.map_err(|error| {
            let why = self.explain(&error);
            EvaluationError::Failed(format!("expression {:?}: {why}", expression.text))
        })
    }

    fn record_failure(&self, name: &'static str, why: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push((name, why));
    }

    /// Returns the message of an error. cel reports a variable that could not be read as undeclared: the recorded reason replaces
    /// this message.
    fn explain(&self, error: &ExecutionError) -> String {
        if let ExecutionError::UndeclaredReference(name) = error {
            let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, why)) = failures.iter().rev().find(|(failed, _)| *failed == name.as_str()) {
                return why.clone();
            }
        }
        error.to_string()
    }

    fn read(&self, name: &'static str, json: Option<&str>) -> Option<Box<dyn Val>> {
        let read = json::read(json.unwrap_or("null"));
        read.map_err(|error| self.record_failure(name, format!("{name} cannot be read: {error}"))).ok()
    }

    fn namespace(&self) -> Option<Box<dyn Val>> {
        const NAME: &str = "namespaceObject";
        let found = self.context.namespace.as_ref();
        let found = found.map_err(|why| self.record_failure(NAME, format!("{NAME}: {why}"))).ok()?;
        let read = json::from_value(found.as_deref().unwrap_or(&serde_json::Value::Null));
        read.map_err(|error| self.record_failure(NAME, format!("{NAME}: {error}"))).ok()
    }

    fn authorizer(&self) -> Option<&[Box<dyn Val>; 2]> {
        let make = || {
            let variables = library::authorizer::variables(self.review, &self.context.host);
            if variables.is_none() {
                self.record_failure("authorizer", "authorizer: the user of the request cannot be read".to_owned());
            }
            variables
        };
        self.authorizer.get_or_init(make).as_ref()
    }

    /// Returns a variable of `variables`. The recursion is bounded: the check limits the depth of variables.
    fn composed(&self, name: &str) -> Option<&dyn Val> {
        let index = self.prepared.variables.iter().position(|variable| variable.name == name)?;
        let make = || {
            let evaluated = self.evaluate(&self.prepared.variables[index].expression).and_then(|value| {
                let converted: Result<Box<dyn Val>, ExecutionError> = value.try_into();
                let counted = converted.and_then(|value| library::memory::count(value.as_ref()).map(|()| value));
                counted.map_err(|error| EvaluationError::Failed(error.to_string()))
            });
            match evaluated {
                Ok(value) => Some(value),
                Err(EvaluationError::Failed(why)) => {
                    self.record_failure("variables", format!("variables.{name}: {why}"));
                    None
                }
                // The enclosing evaluation ends with the same error.
                Err(_) => None,
            }
        };
        self.composed.get(index)?.get_or_init(make).as_deref()
    }
}

/// Evaluates an expression with these variables. The outer result is the error of an exhausted budget.
pub(super) fn resolve(
    expression: &IdedExpr,
    variables: &dyn VariableResolver,
    budget: &Budget,
) -> Result<Result<Value, ExecutionError>, EvaluationError> {
    let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
    context.set_variable_resolver(variables);
    let declared = budget.declare(&mut context);
    declared.map_err(|error| EvaluationError::Failed(format!("CEL: {error}")))?;
    // Not `resolve_val`: it would be inlined into this crate, with stack frames of 30 KiB in a development build.
    let value = Value::resolve(expression, &context);
    budget.check().map(|()| value)
}

/// Adds the expression to the message of an error. A timeout keeps its text, because dashboards search for it.
fn with_expression(expression: &Expression, error: EvaluationError) -> EvaluationError {
    match error {
        EvaluationError::Failed(why) => EvaluationError::Failed(format!("expression {:?}: {why}", expression.text)),
        other => other,
    }
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let value = match variable {
            "object" => self.object.get_or_init(|| self.read("object", self.object_json)).as_deref(),
            "oldObject" => {
                self.old_object.get_or_init(|| self.read("oldObject", self.review.old_object_json())).as_deref()
            }
            "request" => self.request.get_or_init(|| self.read("request", Some(self.review.request_json()))).as_deref(),
            "namespaceObject" => self.namespace.get_or_init(|| self.namespace()).as_deref(),
            "params" => Some(self.prepared.params.as_ref()),
            "authorizer" => self.authorizer().map(|[authorizer, _]| authorizer.as_ref()),
            "authorizer.requestResource" => self.authorizer().map(|[_, resource]| resource.as_ref()),
            _ => self.composed(variable.strip_prefix("variables.")?),
        };
        value.map(CowVal::Borrowed)
    }
}
