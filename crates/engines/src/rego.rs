//! Rego policies, interpreted by regorus: what a dialect asks of a policy, and what its answer means.
//! Where regorus would quietly mean something else than OPA, a policy is refused when it is compiled.
//!
//! The interpreter runs, not regorus' faster virtual machine: that one answers "undefined" where rules
//! conflict, which loses violations, and has neither `with` nor `walk` over loops.

mod answer;
mod bounds;
pub(crate) mod builtins;
mod contract;
mod graph;
mod inspect;
mod inventory;
mod layout;
mod names;
mod negation;
mod parse;
mod query;
pub(crate) mod response;
mod syntax;
pub(crate) mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::review::Operation;
use proviso_core::{Review, Verdict};
use regorus::unstable::{Module, Ref};
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, Value};
use tokio::time::timeout_at;

use crate::host::Objects;
use crate::isolation::Isolation;
use crate::{CompileError, Deadline, EvaluationError, Host, NoHost};
use contract::Contract;
use inspect::Documents;
use inventory::Inventory;
use parse::Text;

pub use contract::Dialect;
pub use query::Query;

/// How many steps the interpreter takes between two looks at the clock.
const STEPS_BETWEEN_CHECKS: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A Rego policy with its settings. A clone costs next to nothing, and shares the places in which evaluations run.
#[derive(Clone, Debug)]
pub struct Program {
    prepared: Arc<Prepared>,
    isolation: Isolation,
    host: Arc<dyn Host>,
}

struct Prepared {
    /// Cloned for each evaluation, which costs less than a microsecond.
    engine: Engine,
    contract: Contract,
    settings: Value,
    /// For policies that look at other objects.
    inventory: Option<Inventory>,
}

impl fmt::Debug for Prepared {
    /// Without the settings: they may hold what is not for logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Prepared").field("contract", &self.contract).finish_non_exhaustive()
    }
}

/// How long a policy may take for a request that says next to nothing.
const TRIAL_TIME: Duration = Duration::from_secs(10);
const TRIAL_REQUEST: &str = r#"{"request": {
    "uid": "trial", "operation": "CREATE", "name": "trial", "namespace": "trial", "dryRun": true,
    "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
    "userInfo": {"username": "trial", "groups": []}, "object": {"metadata": {}}, "oldObject": null, "options": null}}"#;

impl Program {
    /// Makes a policy of one module ready: see [`Program::compile_with`].
    ///
    /// # Errors
    /// As there.
    pub fn compile(
        source: &str,
        dialect: Dialect,
        entrypoint: Option<&str>,
        settings: &serde_json::Value,
    ) -> Result<Self, CompileError> {
        Self::compile_with(source, &[], dialect, entrypoint, settings)
    }

    /// Makes a policy ready. `source` is its module, `libraries` are modules of packages below `lib` that it may import; each
    /// is at most 256 KiB, in Rego v0 or v1. `entrypoint` names the rule that decides, as `data.a.b` or `a/b`; without one it
    /// is `violation` for Gatekeeper, and `main`, `response`, or `deny` and `warn`, whichever the package has, for admission
    /// policies.
    ///
    /// # Errors
    /// When a module does not parse, has no rule that could deny, or uses what this version does not run: builtins that are
    /// missing, data outside of its modules, recursion, nesting that is too deep.
    pub fn compile_with(
        source: &str,
        libraries: &[String],
        dialect: Dialect,
        entrypoint: Option<&str>,
        settings: &serde_json::Value,
    ) -> Result<Self, CompileError> {
        let main = Text { name: syntax::MAIN.to_owned(), text: source };
        let named = |(index, text)| Text { name: format!("libs[{index}]"), text };
        let libraries = libraries.iter().map(String::as_str).enumerate().map(named);
        let documents = if dialect == Dialect::Gatekeeper { Documents::Inventory } else { Documents::None };
        let mut engine = parse::parse(&std::iter::once(main).chain(libraries).collect::<Vec<_>>(), documents)?;
        let (contract, uses_inventory) = {
            let modules = engine.get_modules();
            check_libraries(modules)?;
            let package = inspect::inspect(modules, documents)?;
            (Contract::new(dialect, entrypoint, &package)?, package.uses_inventory)
        };
        let settings = value::read(&settings.to_string())
            .map_err(|error| CompileError::Invalid(format!("the settings are not valid: {error}")))?;
        set_up(&mut engine)?;
        if uses_inventory {
            engine.add_data(inventory::empty()).map_err(|error| CompileError::Invalid(error.to_string()))?;
        }
        for ask in contract.asks() {
            // Also prepares the engine, so that no evaluation has to.
            engine
                .compile_with_entrypoint(&ask.rule().into())
                .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        }
        let inventory = uses_inventory.then(Inventory::default);
        let prepared = Prepared { engine, contract, settings, inventory };
        prepared.try_out()?;
        Ok(Self { prepared: Arc::new(prepared), isolation: Isolation::new(), host: Arc::new(NoHost) })
    }

    /// Lets the policy see the objects that the host has, as `data.inventory`. They are asked for only if it looks at them.
    #[must_use]
    pub fn with_host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
        self
    }

    /// Whether the policy looks at other objects than the one under review.
    #[must_use]
    pub fn uses_inventory(&self) -> bool {
        self.prepared.inventory.is_some()
    }

    /// Decides on a review.
    ///
    /// # Errors
    /// When the policy raises an error, does not end in time, or gives an answer its dialect does not know.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let objects = match &self.prepared.inventory {
            Some(_) => Some(self.objects(deadline).await?),
            None => None,
        };
        let prepared = Arc::clone(&self.prepared);
        let review = review.clone();
        let evaluate = move || match (&prepared.inventory, objects) {
            (Some(inventory), Some(objects)) => {
                let engine = inventory.engine(&prepared.engine, prepared.contract.asks(), objects)?;
                prepared.evaluate(engine, &review, deadline)
            }
            _ => prepared.evaluate(prepared.engine.clone(), &review, deadline),
        };
        self.isolation.run(deadline, evaluate).await
    }

    /// A host that keeps its word answers in time; one that does not is not waited for.
    async fn objects(&self, deadline: Deadline) -> Result<Arc<Objects>, EvaluationError> {
        match timeout_at(deadline.instant().into(), self.host.objects(deadline)).await {
            Ok(objects) => objects.map_err(EvaluationError::Failed),
            Err(_) => Err(EvaluationError::DeadlineExceeded),
        }
    }
}

/// Gives an engine what all that is evaluated finds there.
fn set_up(engine: &mut Engine) -> Result<(), CompileError> {
    builtins::install(engine)?;
    engine.set_strict_builtin_errors(false);
    // What a policy prints goes nowhere: a server's standard error is not a policy's to write to.
    engine.set_gather_prints(true);
    Ok(())
}

fn set_deadline(engine: &mut Engine, deadline: Deadline) {
    engine.set_execution_timer_config(ExecutionTimerConfig {
        limit: deadline.instant().saturating_duration_since(Instant::now()),
        check_interval: STEPS_BETWEEN_CHECKS,
    });
}

/// Gatekeeper's rule: what is not below `lib` could be taken for the policy itself.
fn check_libraries(modules: &[Ref<Module>]) -> Result<(), CompileError> {
    for library in modules.iter().skip(1) {
        let package = syntax::path(&library.package.refr);
        if package.first() != Some(&"lib") {
            let message = format!("is of package {}: libraries are packages below `lib`", package.join("."));
            return Err(CompileError::Invalid(syntax::at(&library.package.span, &message)));
        }
    }
    Ok(())
}

impl Prepared {
    /// Evaluates a request for a nearly empty object. The interpreter finds unsafe variables and the like only
    /// now; found later, they would deny every request.
    fn try_out(&self) -> Result<(), CompileError> {
        let trial =
            Review::admission(TRIAL_REQUEST.into()).map_err(|error| CompileError::Invalid(error.to_string()))?;
        match self.evaluate(self.engine.clone(), &trial, Deadline::after(TRIAL_TIME)) {
            // An answer that makes no sense for such a request is no fault.
            Ok(_) | Err(EvaluationError::InvalidAnswer(_) | EvaluationError::Overloaded) => Ok(()),
            Err(EvaluationError::Failed(why)) => Err(CompileError::Invalid(why)),
            Err(error @ EvaluationError::DeadlineExceeded) => {
                Err(CompileError::Invalid(format!("a nearly empty request: {error}")))
            }
        }
    }

    fn evaluate(&self, mut engine: Engine, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        engine.set_input(self.input(review)?);
        let mut verdict = Verdict::allow();
        for ask in self.contract.asks() {
            set_deadline(&mut engine, deadline);
            let value = engine
                .eval_rule(ask.rule().to_owned())
                .map_err(|error| failed(&error.to_string(), error.downcast_ref(), deadline))?;
            ask.answer(&value, review, &mut verdict)?;
        }
        // The interpreter looks at the clock between steps, and one builtin may be the last step.
        if deadline.is_over() {
            return Err(EvaluationError::DeadlineExceeded);
        }
        Ok(verdict)
    }

    fn input(&self, review: &Review) -> Result<Value, EvaluationError> {
        let unreadable = |error: serde_json::Error| EvaluationError::Failed(format!("the request: {error}"));
        let mut request: Value = value::read(review.request_json()).map_err(unreadable)?;
        let mut members = BTreeMap::from([("parameters".into(), self.settings.clone())]);
        match self.contract.dialect() {
            Dialect::Gatekeeper => {
                if review.head().is_some_and(|head| head.operation == Some(Operation::Delete)) {
                    show_deleted_object(&mut request);
                }
                members.insert("review".into(), request);
            }
            Dialect::Admission => {
                members.insert("apiVersion".into(), "admission.k8s.io/v1".into());
                members.insert("kind".into(), "AdmissionReview".into());
                members.insert("request".into(), request);
            }
        }
        Ok(members.into())
    }
}

/// An error of the interpreter's, and the limit that it tells of, if it does.
fn failed(error: &str, limit: Option<&LimitError>, deadline: Deadline) -> EvaluationError {
    if deadline.is_over() || matches!(limit, Some(LimitError::TimeLimitExceeded { .. })) {
        EvaluationError::DeadlineExceeded
    } else {
        EvaluationError::Failed(error.trim().to_owned())
    }
}

/// Gatekeeper's templates find an object that is deleted in `review.object`, where the API server has null.
fn show_deleted_object(request: &mut Value) {
    if let Ok(members) = request.as_object_mut() {
        let old = members.get(&"oldObject".into()).cloned();
        if let Some(old) = old.filter(|old| *old != Value::Null) {
            members.insert("object".into(), old);
        }
    }
}
