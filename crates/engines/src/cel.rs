//! CEL policies like `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy`. A program has conditions that must all hold,
//! mutations of the object, and audit annotations. Expressions read `object`, `oldObject`, `request`, `params`,
//! `namespaceObject`, `authorizer` and `variables`.

mod blocking_host;
pub(crate) mod bounds;
mod check;
mod construct;
mod environment;
mod expression;
pub(crate) mod functions;
mod interrupt;
mod json;
mod library;
mod mutation;
mod prepared;
mod rewrite;
mod run;
mod source;
pub(crate) mod syntax;
mod template;
mod variables;

use std::fmt;
use std::sync::Arc;

use proviso_core::request::Chain;
use proviso_core::{Review, Verdict};

use crate::host::{Host, NoHost};
use crate::memory::{self, DEFAULT_MEMORY_LIMIT};
use crate::{CompileError, Deadline, EvaluationError, isolation, request};
use blocking_host::BlockingHost;
use interrupt::Budget;
use prepared::Prepared;
use variables::EvaluationContext;

pub use source::{AuditAnnotation, Mutation, PatchType, Source, Validation, Variable};
pub use template::Template;

/// A compiled CEL program with its parameters. An empty program allows every request. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Program {
    prepared: Arc<Prepared>,
    host: Arc<dyn Host>,
    /// The memory limit of one evaluation, in bytes.
    memory_limit: usize,
}

impl fmt::Debug for Prepared {
    /// Omits the parameters, which may contain secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expressions = self.conditions.iter().map(|condition| &condition.expression.text);
        formatter.debug_list().entries(expressions).finish()
    }
}

impl Program {
    /// Compiles a program. `params` is the value of the variable `params`. The program has no host: see
    /// [`Program::with_host`].
    ///
    /// # Errors
    /// [`CompileError::Invalid`] if an expression does not parse or uses an unknown variable, a condition is not boolean, a name
    /// or key is not valid or not unique, or a reason is unknown. [`CompileError::Unsupported`] if an expression is too large or
    /// nested too deep, or uses an unknown function.
    pub fn compile(source: impl Into<Source>, params: &serde_json::Value) -> Result<Self, CompileError> {
        let prepared = memory::compile(DEFAULT_MEMORY_LIMIT, || Prepared::compile(source.into(), params))?;
        let (prepared, memory_limit) = (Arc::new(prepared), DEFAULT_MEMORY_LIMIT);
        Ok(Self { prepared, host: Arc::new(NoHost), memory_limit })
    }

    /// Sets the memory limit of one evaluation, in bytes. Default: [`DEFAULT_MEMORY_LIMIT`].
    #[must_use]
    pub fn with_memory_limit(mut self, limit: usize) -> Self {
        self.memory_limit = limit;
        self
    }

    /// Sets the host that answers `namespaceObject` and `authorizer`.
    #[must_use]
    pub fn with_host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
        self
    }

    /// Returns true if the program reads `authorizer`, which needs a host that checks permissions.
    #[must_use]
    pub fn reads_authorizer(&self) -> bool {
        self.prepared.needs_authorizer
    }

    /// Evaluates the program for a review. The verdict is a denial if a validation fails. Its message, reason and code are those
    /// of the first validation that fails. If several validations fail, each is a cause.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if an expression has no value or a value of another type, or a mutation does not apply.
    /// [`EvaluationError::DeadlineExceeded`] or [`EvaluationError::Overloaded`] if the evaluation does not end in time.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        if self.prepared.is_empty() {
            return Ok(Verdict::allow());
        }
        let context = EvaluationContext {
            namespace: self.namespace(review, deadline).await,
            host: BlockingHost::new(Arc::clone(&self.host), deadline),
            budget: Budget::new(deadline),
        };
        let prepared = Arc::clone(&self.prepared);
        let review = review.clone();
        let limit = self.memory_limit;
        isolation::run(deadline, move || memory::evaluate(limit, || run::run(&prepared, &review, &context))).await
    }

    /// Evaluates the program for the next policy of a chain. `object` is the payload, and `request` the input of the chain. A validation
    /// that fails rejects the request. Returns `None` if the value of `result` is null.
    ///
    /// # Errors
    /// The errors of [`Self::evaluate`].
    pub async fn evaluate_request(
        &self,
        chain: &Chain,
        deadline: Deadline,
    ) -> Result<Option<serde_json::Value>, EvaluationError> {
        let input = request::to_review(chain)?;
        let payload = request::to_json(chain.input().payload)?;
        let context = EvaluationContext {
            namespace: Ok(None),
            host: BlockingHost::new(Arc::clone(&self.host), deadline),
            budget: Budget::new(deadline),
        };
        let (prepared, limit) = (Arc::clone(&self.prepared), self.memory_limit);
        let evaluate = move || memory::evaluate(limit, || run::run_request(&prepared, &input, &payload, &context));
        isolation::run(deadline, evaluate).await
    }

    /// Reads the Namespace of the request, if an expression needs it. `None` if no expression reads it, or if the object is not
    /// namespaced. A Namespace itself is not namespaced, although its request has a namespace.
    async fn namespace(&self, review: &Review, deadline: Deadline) -> Result<Option<Arc<serde_json::Value>>, String> {
        let Some(head) = review.head().filter(|_| self.prepared.needs_namespace) else { return Ok(None) };
        let is_namespace = head.kind.group.is_empty() && head.kind.kind == "Namespace";
        if is_namespace || head.namespace.is_empty() {
            return Ok(None);
        }
        blocking_host::namespace(self.host.as_ref(), &head.namespace, deadline).await.map(Some)
    }
}
