//! CEL as `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy` have it: conditions over `object`, `oldObject`,
//! `request`, `params`, `namespaceObject`, `authorizer` and `variables`, all of which must hold; changes of the object;
//! and entries of the audit log.

mod asking;
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
mod variables;

use std::fmt;
use std::sync::Arc;

use proviso_core::{Review, Verdict};

use crate::host::{Host, NoHost};
use crate::isolation::Isolation;
use crate::{CompileError, Deadline, EvaluationError};
use asking::Asking;
use interrupt::Budget;
use prepared::Prepared;
use variables::World;

pub use source::{AuditAnnotation, Mutation, PatchType, Source, Validation, Variable};

/// A program with its parameters. One without anything allows everything. A clone costs next to nothing, and shares the
/// places in which evaluations run.
#[derive(Clone, Debug)]
pub struct Program {
    prepared: Arc<Prepared>,
    host: Arc<dyn Host>,
    isolation: Isolation,
}

impl fmt::Debug for Prepared {
    /// Without the parameters: they may hold what is not for logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expressions = self.conditions.iter().map(|condition| &condition.expression.text);
        formatter.debug_list().entries(expressions).finish()
    }
}

impl Program {
    /// Makes a program ready; `params` is what its expressions see under this name. It may ask the world nothing: see
    /// [`Program::with_host`].
    ///
    /// # Errors
    /// When an expression does not parse, is not a condition where one is wanted, is nested too deep, or uses a variable or
    /// function that is not there; when a name is there twice or not valid; when a reason is not one of the four.
    pub fn compile(source: impl Into<Source>, params: &serde_json::Value) -> Result<Self, CompileError> {
        let prepared = Arc::new(Prepared::compile(source.into(), params)?);
        Ok(Self { prepared, host: Arc::new(NoHost), isolation: Isolation::new() })
    }

    /// The same program, with a world to ask: for `namespaceObject` and `authorizer`.
    #[must_use]
    pub fn with_host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
        self
    }

    /// Decides on a review: it is denied when a validation does not hold, with the message, reason and code
    /// of the first such. When several do not hold, each is a cause.
    ///
    /// # Errors
    /// When an expression has no value, or one of another type than is wanted, or does not end in time.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        if self.prepared.is_empty() {
            return Ok(Verdict::allow());
        }
        let world = World {
            namespace: self.namespace(review, deadline).await,
            asking: Asking::new(Arc::clone(&self.host), deadline),
            budget: Budget::new(deadline),
        };
        let prepared = Arc::clone(&self.prepared);
        let review = review.clone();
        self.isolation.run(deadline, move || run::run(&prepared, &review, &world)).await
    }

    /// The Namespace that the request is in, where an expression reads it. A Namespace itself is in none.
    async fn namespace(&self, review: &Review, deadline: Deadline) -> Result<Option<Arc<serde_json::Value>>, String> {
        let Some(head) = review.head().filter(|_| self.prepared.needs_namespace) else { return Ok(None) };
        let is_namespace = head.kind.group.is_empty() && head.kind.kind == "Namespace";
        if is_namespace || head.namespace.is_empty() {
            return Ok(None);
        }
        asking::namespace(self.host.as_ref(), &head.namespace, deadline).await.map(Some)
    }
}
