//! CEL validations as `ValidatingAdmissionPolicy` has them: conditions over `object`, `oldObject`, `request`
//! and `params`, all of which must hold.

pub(crate) mod bounds;
mod check;
pub(crate) mod functions;
mod interrupt;
pub(crate) mod syntax;
mod variables;

use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::value::Val;
use cel::{Context, Env, IdedExpr, Value};
use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};

use crate::isolation::Isolation;
use crate::{CompileError, Deadline, EvaluationError};
use variables::Variables;

/// The standard library and CEL's string functions, built once: it costs more than an evaluation.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    if let Err(error) = environment.add_extension(cel::extensions::strings) {
        // Without them, policies that use them fail, and so deny.
        tracing::error!(%error, "CEL's string functions could not be declared");
    }
    Arc::new(environment)
});

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validation {
    /// Must evaluate to true, or the request is denied. At most 16 KiB.
    pub expression: String,
    /// What a denial says. Default, also for an empty one: `failed expression: <expression>`.
    pub message: Option<String>,
    /// `Unauthorized` (401), `Forbidden` (403), `RequestEntityTooLarge` (413) or `Invalid` (422, the default).
    pub reason: Option<String>,
}

/// Validations with their parameters. None at all allow everything.
#[derive(Debug)]
pub struct Program {
    prepared: Arc<Prepared>,
    isolation: Isolation,
}

struct Prepared {
    conditions: Vec<Condition>,
    params: Box<dyn Val>,
}

impl fmt::Debug for Prepared {
    /// Without the parameters: they may hold what is not for logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expressions = self.conditions.iter().map(|condition| &condition.expression);
        formatter.debug_list().entries(expressions).finish()
    }
}

struct Condition {
    /// As it was written, on one line.
    expression: String,
    tree: IdedExpr,
    message: String,
    reason: &'static str,
    code: u16,
}

impl Program {
    /// Makes validations ready; `params` is what they see under this name.
    ///
    /// # Errors
    /// When an expression does not parse, is not a condition, is nested too deep, or uses a variable or
    /// function that is not there; when a reason is not one of the four.
    pub fn compile(validations: Vec<Validation>, params: &serde_json::Value) -> Result<Self, CompileError> {
        let conditions = validations.into_iter().map(Condition::compile).collect::<Result<_, _>>()?;
        let params = variables::read(&params.to_string())
            .map_err(|error| CompileError::Invalid(format!("the parameters are not valid: {error}")))?;
        Ok(Self { prepared: Arc::new(Prepared { conditions, params }), isolation: Isolation::new() })
    }

    /// Decides on a review: it is denied when a validation does not hold, with the message, reason and code
    /// of the first such. When several do not hold, each is a cause.
    ///
    /// # Errors
    /// When an expression has no value, or one that is no boolean, or does not end in time.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        if self.prepared.conditions.is_empty() {
            return Ok(Verdict::allow());
        }
        let prepared = Arc::clone(&self.prepared);
        let review = review.clone();
        self.isolation.run(deadline, move || prepared.evaluate(&review, deadline)).await
    }
}

impl Condition {
    fn compile(validation: Validation) -> Result<Self, CompileError> {
        let source = &validation.expression;
        let expression = source.split_whitespace().collect::<Vec<_>>().join(" ");
        let within = |error: CompileError| match error {
            CompileError::Invalid(message) => CompileError::Invalid(format!("expression {expression:?}: {message}")),
            CompileError::Unsupported(message) => {
                CompileError::Unsupported(format!("expression {expression:?}: {message}"))
            }
        };
        let (reason, code) = match validation.reason.as_deref() {
            Some("Unauthorized") => ("Unauthorized", 401),
            Some("Forbidden") => ("Forbidden", 403),
            Some("RequestEntityTooLarge") => ("RequestEntityTooLarge", 413),
            Some("Invalid") | None => ("Invalid", 422),
            Some(other) => {
                let message =
                    format!("the reason is {other:?}, not Unauthorized, Forbidden, Invalid or RequestEntityTooLarge");
                return Err(within(CompileError::Invalid(message)));
            }
        };
        let mut tree = compile(source).map_err(within)?;
        // Only now: the check would find a function that nobody wrote.
        interrupt::insert(&mut tree).map_err(within)?;
        let message = validation
            .message
            .filter(|message| !message.is_empty())
            .unwrap_or_else(|| format!("failed expression: {expression}"));
        Ok(Self { expression, tree, message, reason, code })
    }
}

fn compile(source: &str) -> Result<IdedExpr, CompileError> {
    bounds::check(source)?;
    let parsed = syntax::parse(&ENVIRONMENT, source)?;
    check::check(&parsed)?;
    Ok(parsed.tree)
}

impl Prepared {
    fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let variables = Variables::new(review, self.params.as_ref());
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(&variables);
        interrupt::declare(&mut context, deadline).map_err(|error| EvaluationError::Failed(format!("CEL: {error}")))?;
        let mut failed = Vec::new();
        for condition in &self.conditions {
            let holds = condition.holds(&context);
            // Loops end early when the time is over: what came out then means nothing.
            if deadline.is_over() {
                return Err(EvaluationError::DeadlineExceeded);
            }
            if !holds? {
                failed.push(condition);
            }
        }
        Ok(verdict(&failed))
    }
}

impl Condition {
    fn holds(&self, context: &Context<'_, '_>) -> Result<bool, EvaluationError> {
        let failed = |why: String| EvaluationError::Failed(format!("expression {:?}: {why}", self.expression));
        // Not `resolve_val`: that one is inlined into this crate, with frames of 30 KiB in a development build.
        match Value::resolve(&self.tree, context).map_err(|error| failed(error.to_string()))? {
            Value::Bool(holds) => Ok(holds),
            other => Err(failed(format!("the value is a {}, not a bool", other.type_of()))),
        }
    }
}

fn verdict(failed: &[&Condition]) -> Verdict {
    let Some(first) = failed.first() else { return Verdict::allow() };
    let causes = if failed.len() > 1 { failed } else { &[] };
    Verdict {
        code: Some(first.code),
        reason: Some(first.reason.to_owned()),
        causes: causes.iter().map(|condition| Cause { field: None, message: condition.message.clone() }).collect(),
        ..Verdict::deny(first.message.clone())
    }
}
