//! Templates: a module whose rule `content` computes a JSON object from `input.component` and `input.parameters`. A template reads no
//! data, and uses no function whose result varies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use regorus::{Engine, Value};
use serde_json::{Map, Value as Json, json};

use super::inspect::{self, Documents};
use super::names::RuleKind;
use super::parse::{self, ModuleSource};
use super::syntax::{MAIN, to_text};
use super::{TRIAL_TIMEOUT, evaluation_error, set_deadline, set_up, value};
use crate::template::{self, MAX_TEMPLATE};
use crate::{CompileError, Deadline, EvaluationError};

/// The rule of the content.
const RULE: &str = "content";

/// A compiled Rego template with its settings. A clone is cheap.
#[derive(Clone)]
pub struct Template(Arc<Prepared>);

struct Prepared {
    /// The engine with the module. Each evaluation clones it.
    engine: Engine,
    /// The path of the rule, such as `data.package.content`.
    rule: String,
    settings: Value,
}

impl fmt::Debug for Template {
    /// Omits the settings, which may contain secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Template").field(&self.0.rule).finish()
    }
}

impl Template {
    /// Compiles a template: a module of at most [`MAX_TEMPLATE`] bytes in Rego v0 or v1, in any package. `settings` is the value of
    /// `input.parameters`.
    ///
    /// # Errors
    /// [`CompileError::Invalid`] if the module does not parse, has no rule `content`, or fails for a component without labels.
    /// [`CompileError::Unsupported`] if it uses a missing builtin, a builtin whose result varies, data outside of the module, recursion,
    /// or nesting that is too deep.
    pub fn compile(source: &str, settings: &Map<String, Json>) -> Result<Self, CompileError> {
        if source.len() > MAX_TEMPLATE {
            let size = source.len();
            return Err(CompileError::Unsupported(format!("it has {size} bytes; at most {MAX_TEMPLATE} are allowed")));
        }
        template::compile(|| {
            let mut engine = parse::parse(&[ModuleSource { name: MAIN.to_owned(), text: source }], Documents::None)?;
            let rule = rule_of(&mut engine)?;
            set_up(&mut engine)?;
            engine
                .compile_with_entrypoint(&rule.as_str().into())
                .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
            let settings = value::read(&Json::Object(settings.clone()).to_string())
                .map_err(|error| CompileError::Invalid(format!("the settings are not valid: {error}")))?;
            let prepared = Prepared { engine, rule, settings };
            prepared.evaluate_trial_component()?;
            Ok(Self(Arc::new(prepared)))
        })
    }

    /// Evaluates the template for a component: the value of `input.component`. Blocks the thread.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if the module raises an error, the rule is undefined or the evaluation takes too much memory,
    /// [`EvaluationError::InvalidAnswer`] if the value is no object or is too large, [`EvaluationError::DeadlineExceeded`] if the
    /// evaluation does not end in time.
    pub fn render(&self, component: &Json, deadline: Deadline) -> Result<Map<String, Json>, EvaluationError> {
        template::render(deadline, || match self.0.evaluate(component, deadline)? {
            Value::Undefined => Err(EvaluationError::Failed(format!(
                "the rule {RULE} is undefined for this component: add a default, or another definition of the rule"
            ))),
            value => template::to_object(&value),
        })
    }
}

impl Prepared {
    fn evaluate(&self, component: &Json, deadline: Deadline) -> Result<Value, EvaluationError> {
        let component = value::read(&component.to_string())
            .map_err(|error| EvaluationError::Failed(format!("component cannot be read: {error}")))?;
        let input = BTreeMap::from([("component".into(), component), ("parameters".into(), self.settings.clone())]);
        let mut engine = self.engine.clone();
        engine.set_input(input.into());
        set_deadline(&mut engine, deadline);
        let value = engine
            .eval_rule(self.rule.clone())
            .map_err(|error| evaluation_error(&without_source(&error.to_string()), error.downcast_ref(), deadline))?;
        // The interpreter checks the deadline between steps only. One long builtin call may be the last step.
        if deadline.has_passed() { Err(EvaluationError::DeadlineExceeded) } else { Ok(value) }
    }

    /// Evaluates a component without labels. The interpreter reports unsafe variables and similar errors only during an evaluation.
    fn evaluate_trial_component(&self) -> Result<(), CompileError> {
        let component = json!({"namespace": "trial", "name": "trial", "labels": {}});
        match self.evaluate(&component, Deadline::after(TRIAL_TIMEOUT)) {
            Ok(_) | Err(EvaluationError::InvalidAnswer(_) | EvaluationError::Overloaded(_)) => Ok(()),
            Err(EvaluationError::Failed(why)) => Err(CompileError::Invalid(why)),
            Err(EvaluationError::DeadlineExceeded) => Err(CompileError::Invalid(format!(
                "its evaluation for a component without labels takes longer than {} s",
                TRIAL_TIMEOUT.as_secs()
            ))),
        }
    }
}

/// Returns the path of the rule of the content.
fn rule_of(engine: &mut Engine) -> Result<String, CompileError> {
    let modules = engine.get_modules();
    let package = inspect::inspect(modules, Documents::None)?;
    if let Some(message) = package.varies {
        return Err(CompileError::Unsupported(message));
    }
    match package.rules.get(RULE) {
        Some(RuleKind::Value) => Ok(format!("data.{}.{RULE}", to_text(&package.path))),
        Some(RuleKind::Scalar) => {
            Err(CompileError::Invalid(format!("the rule {RULE} is no object: write {RULE} := {{…}}")))
        }
        Some(RuleKind::Function(_)) => {
            Err(CompileError::Invalid(format!("{RULE} is a function, not a rule: write {RULE} := {{…}}")))
        }
        None => Err(CompileError::Invalid(format!("package {} has no rule {RULE}", to_text(&package.path)))),
    }
}

/// Returns an error of the interpreter on one line, without the line of the source that it shows: the source may be confidential.
fn without_source(error: &str) -> String {
    let position = error.lines().find_map(|line| line.trim().strip_prefix("--> "));
    let message = error.split_once("\nerror: ").map(|(_, message)| message);
    match (position, message) {
        (Some(position), Some(message)) => format!("{position}: {message}", message = message.trim()),
        _ => error.trim().to_owned(),
    }
}
