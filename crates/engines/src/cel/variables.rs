//! What expressions see: parts of the review and the world, read when they are first asked for, and the parameters.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, ExecutionError, Value};
use proviso_core::Review;

use super::asking::Asking;
use super::environment::ENVIRONMENT;
use super::expression::Expression;
use super::interrupt::Budget;
use super::prepared::Prepared;
use super::{json, library};
use crate::EvaluationError;

/// What is the same for all expressions of one evaluation.
pub(super) struct World {
    /// None where nothing asks for it, or there is none.
    pub namespace: Result<Option<Arc<serde_json::Value>>, String>,
    pub asking: Asking,
    pub budget: Budget,
}

/// A value that is read once; none inside where that failed.
type Once<T> = OnceLock<Option<T>>;

/// The variables of one evaluation.
pub(super) struct Variables<'a> {
    prepared: &'a Prepared,
    review: &'a Review,
    /// As JSON; other than the review's once it has been changed.
    object_json: Option<&'a str>,
    world: &'a World,
    object: Once<Box<dyn Val>>,
    old_object: Once<Box<dyn Val>>,
    request: Once<Box<dyn Val>>,
    namespace: Once<Box<dyn Val>>,
    authorizer: Once<[Box<dyn Val>; 2]>,
    /// In the order of their definitions.
    composed: Vec<Once<Box<dyn Val>>>,
    /// Names of what could not be read, and why.
    failures: Mutex<Vec<(&'static str, String)>>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(
        prepared: &'a Prepared,
        review: &'a Review,
        object_json: Option<&'a str>,
        world: &'a World,
    ) -> Self {
        Self {
            prepared,
            review,
            object_json,
            world,
            object: OnceLock::new(),
            old_object: OnceLock::new(),
            request: OnceLock::new(),
            namespace: OnceLock::new(),
            authorizer: OnceLock::new(),
            composed: prepared.variables.iter().map(|_| OnceLock::new()).collect(),
            failures: Mutex::default(),
        }
    }

    /// The value of an expression. Errors name it.
    pub(super) fn evaluate(&self, expression: &Expression) -> Result<Value, EvaluationError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(self);
        let declared = self.world.budget.declare(&mut context);
        declared.map_err(|error| EvaluationError::Failed(format!("CEL: {error}")))?;
        // Not `resolve_val`: that one is inlined into this crate, with frames of 30 KiB in a development build.
        let value = Value::resolve(&expression.tree, &context);
        self.world.budget.check().map_err(|error| name(expression, error))?;
        value.map_err(|error| {
            let why = self.explain(&error);
            EvaluationError::Failed(format!("expression {:?}: {why}", expression.text))
        })
    }

    fn fail(&self, name: &'static str, why: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push((name, why));
    }

    /// To cel, what could not be read is not there.
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
        read.map_err(|error| self.fail(name, format!("{name} cannot be read: {error}"))).ok()
    }

    fn namespace(&self) -> Option<Box<dyn Val>> {
        const NAME: &str = "namespaceObject";
        let found = self.world.namespace.as_ref().map_err(|why| self.fail(NAME, format!("{NAME}: {why}"))).ok()?;
        let read = json::from_value(found.as_deref().unwrap_or(&serde_json::Value::Null));
        read.map_err(|error| self.fail(NAME, format!("{NAME}: {error}"))).ok()
    }

    fn authorizer(&self) -> Option<&[Box<dyn Val>; 2]> {
        let make = || {
            let variables = library::authorizer::variables(self.review, &self.world.asking);
            if variables.is_none() {
                self.fail("authorizer", "authorizer: the request does not say who asks".to_owned());
            }
            variables
        };
        self.authorizer.get_or_init(make).as_ref()
    }

    /// Recursive only as deep as the check lets variables be.
    fn composed(&self, name: &str) -> Option<&dyn Val> {
        let index = self.prepared.variables.iter().position(|variable| variable.name == name)?;
        let make = || {
            let made = self.evaluate(&self.prepared.variables[index].expression).and_then(|value| {
                let made: Result<Box<dyn Val>, ExecutionError> = value.try_into();
                let kept = made.and_then(|value| library::kept::keep(value.as_ref()).map(|()| value));
                kept.map_err(|error| EvaluationError::Failed(error.to_string()))
            });
            match made {
                Ok(value) => Some(value),
                Err(EvaluationError::Failed(why)) => {
                    self.fail("variables", format!("variables.{name}: {why}"));
                    None
                }
                // The evaluation around ends for the same.
                Err(_) => None,
            }
        };
        self.composed.get(index)?.get_or_init(make).as_deref()
    }
}

/// The time's text is one that dashboards look for; all others name their expression.
fn name(expression: &Expression, error: EvaluationError) -> EvaluationError {
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
