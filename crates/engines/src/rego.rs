//! Rego policies, interpreted by regorus. The dialect of a policy defines which rules are evaluated and what their values mean.
//! The compiler refuses a policy if regorus would silently give it another meaning than OPA does.
//!
//! Evaluations use regorus' interpreter, not its faster virtual machine. The virtual machine answers "undefined" when rules
//! conflict, which loses violations, and supports neither `with` nor `walk` over loops.

mod answer;
mod bounds;
pub(crate) mod builtins;
mod evaluated_rules;
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
mod template;
pub(crate) mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::request::Chain;
use proviso_core::review::Operation;
use proviso_core::{Review, Verdict};
use regorus::unstable::{Module, Ref};
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, Value};
use tokio::time::timeout_at;

use crate::host::Objects;
use crate::memory::{self, DEFAULT_MEMORY_LIMIT};
use crate::{CompileError, Deadline, EvaluationError, Host, NoHost, isolation, request};
use evaluated_rules::{Entrypoint, EvaluatedRules};
use inspect::Documents;
use inventory::Inventory;
use parse::ModuleSource;

pub use evaluated_rules::Dialect;
pub use query::Query;
pub use template::Template;

/// The number of steps that the interpreter takes between two checks of the deadline.
const STEPS_BETWEEN_CHECKS: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A compiled Rego policy with its settings. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Program {
    prepared: Arc<Prepared>,
    host: Arc<dyn Host>,
    /// The memory limit of one evaluation, in bytes.
    memory_limit: usize,
}

struct Prepared {
    /// The engine with the modules. Each evaluation clones it, which takes less than a microsecond.
    engine: Engine,
    evaluated_rules: EvaluatedRules,
    settings: Value,
    /// The cache behind `data.inventory`; `None` if the policy does not read it.
    inventory: Option<Inventory>,
}

impl fmt::Debug for Prepared {
    /// Omits the settings, which may contain secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Prepared").field("evaluated_rules", &self.evaluated_rules).finish_non_exhaustive()
    }
}

/// The time limit for the evaluation of the trial request.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// A request for a nearly empty Pod, which each policy must be able to evaluate.
const TRIAL_REQUEST: &str = r#"{"request": {
    "uid": "trial", "operation": "CREATE", "name": "trial", "namespace": "trial", "dryRun": true,
    "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
    "userInfo": {"username": "trial", "groups": []}, "object": {"metadata": {}}, "oldObject": null, "options": null}}"#;
/// The inputs of a request policy, as the ADR and as the published API have them, for a request with an empty payload.
const TRIAL_INPUT: &str = r#"{"originalPayload": {}, "payload": {}, "constraints": {}, "user": null, "tenant": null,
    "serviceProvider": {"value": null, "constraints": {"patterns": []}}}"#;
const TRIAL_PUBLISHED_INPUT: &str = r#"{"spec": {}, "provider": ""}"#;

impl Program {
    /// Compiles a policy of one module: see [`Program::compile_with`].
    ///
    /// # Errors
    /// The errors of [`Program::compile_with`].
    pub fn compile(
        source: &str,
        dialect: Dialect,
        entrypoint: Option<&str>,
        settings: &serde_json::Value,
    ) -> Result<Self, CompileError> {
        Self::compile_with(source, &[], dialect, entrypoint, settings)
    }

    /// Compiles a policy. `source` is its main module. `libraries` are modules that it may import; their packages are below
    /// `lib`. Each module has at most 256 KiB and is written in Rego v0 or v1.
    ///
    /// `entrypoint` names the rule that decides, as `data.a.b` or `a/b`. Default for the Gatekeeper dialect: `violation`. For the
    /// Request dialect it is `result` or `main`, and the policy has no effect if the package lacks the rule.
    /// Default for admission policies: `main` or `response` if the package defines one of them, otherwise `deny` and `warn`.
    /// Default for request policies: `result` or `main`; `result` if a package below `dcm.policy` defines both, otherwise `main`.
    ///
    /// # Errors
    /// [`CompileError::Invalid`] if a module does not parse, the entrypoint does not exist, no rule can deny, or the evaluation
    /// of a nearly empty request fails or exceeds its limits of time and memory, which are those of an evaluation.
    /// [`CompileError::Unsupported`] if a module uses a missing builtin, data outside of its
    /// modules, recursion, or nesting that is too deep.
    pub fn compile_with(
        source: &str,
        libraries: &[String],
        dialect: Dialect,
        entrypoint: Option<&str>,
        settings: &serde_json::Value,
    ) -> Result<Self, CompileError> {
        memory::compile(DEFAULT_MEMORY_LIMIT, || {
            Self::compile_modules(source, libraries, dialect, entrypoint, settings)
        })
    }

    fn compile_modules(
        source: &str,
        libraries: &[String],
        dialect: Dialect,
        entrypoint: Option<&str>,
        settings: &serde_json::Value,
    ) -> Result<Self, CompileError> {
        let main = ModuleSource { name: syntax::MAIN.to_owned(), text: source };
        let named = |(index, text)| ModuleSource { name: format!("libs[{index}]"), text };
        let libraries = libraries.iter().map(String::as_str).enumerate().map(named);
        let documents = if dialect == Dialect::Gatekeeper { Documents::Inventory } else { Documents::None };
        let mut engine = parse::parse(&std::iter::once(main).chain(libraries).collect::<Vec<_>>(), documents)?;
        let (evaluated_rules, uses_inventory) = {
            let modules = engine.get_modules();
            check_libraries(modules)?;
            let package = inspect::inspect(modules, documents)?;
            (EvaluatedRules::new(dialect, entrypoint, &package)?, package.uses_inventory)
        };
        let settings = value::read(&settings.to_string())
            .map_err(|error| CompileError::Invalid(format!("the settings are not valid: {error}")))?;
        set_up(&mut engine)?;
        if uses_inventory {
            engine.add_data(inventory::empty()).map_err(|error| CompileError::Invalid(error.to_string()))?;
        }
        for entrypoint in evaluated_rules.entrypoints() {
            // The compilation also prepares the engine. Otherwise each evaluation would prepare its own clone.
            engine
                .compile_with_entrypoint(&entrypoint.rule().into())
                .map_err(|error| CompileError::Invalid(error.to_string().trim().to_owned()))?;
        }
        let inventory = uses_inventory.then(Inventory::default);
        let prepared = Prepared { engine, evaluated_rules, settings, inventory };
        prepared.evaluate_trial_request()?;
        Ok(Self { prepared: Arc::new(prepared), host: Arc::new(NoHost), memory_limit: DEFAULT_MEMORY_LIMIT })
    }

    /// Sets the memory limit of one evaluation, in bytes. Default: [`DEFAULT_MEMORY_LIMIT`].
    #[must_use]
    pub fn with_memory_limit(mut self, limit: usize) -> Self {
        self.memory_limit = limit;
        self
    }

    /// Sets the host that provides the objects of `data.inventory`. An evaluation requests them only if the policy reads
    /// `data.inventory`.
    #[must_use]
    pub fn with_host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
        self
    }

    /// Returns true if the policy reads `data.inventory`: objects other than the object under review.
    #[must_use]
    pub fn uses_inventory(&self) -> bool {
        self.prepared.inventory.is_some()
    }

    /// Evaluates the policy for a review.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if the policy raises an error or the host fails, [`EvaluationError::DeadlineExceeded`] or
    /// [`EvaluationError::Overloaded`] if the evaluation does not end in time, [`EvaluationError::InvalidAnswer`] if the
    /// dialect does not define the answer.
    pub async fn evaluate(&self, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let objects = match &self.prepared.inventory {
            Some(_) => Some(self.objects(deadline).await?),
            None => None,
        };
        let prepared = Arc::clone(&self.prepared);
        let review = review.clone();
        let limit = self.memory_limit;
        // All evaluations share the inventory: it does not count to the memory of one of them.
        let evaluate = move || match (&prepared.inventory, objects) {
            (Some(inventory), Some(objects)) => {
                let engine = inventory.engine(&prepared.engine, prepared.evaluated_rules.entrypoints(), objects)?;
                memory::evaluate(limit, || prepared.evaluate(engine, &review, deadline))
            }
            _ => memory::evaluate(limit, || prepared.evaluate(prepared.engine.clone(), &review, deadline)),
        };
        isolation::run(deadline, evaluate).await
    }

    /// Evaluates a policy of the dialect Request for the next policy of a chain. Returns `None` if the result is undefined.
    ///
    /// # Errors
    /// The errors of [`Self::evaluate`], and [`EvaluationError::Failed`] if the policy has another dialect.
    pub async fn evaluate_request(
        &self,
        chain: &Chain,
        deadline: Deadline,
    ) -> Result<Option<serde_json::Value>, EvaluationError> {
        if self.prepared.evaluated_rules.dialect() != Dialect::Request {
            return Err(EvaluationError::Failed("Rego of a request policy needs the dialect Request".into()));
        }
        let input = if self.prepared.evaluated_rules.is_published() {
            request::to_json(&chain.published_input())?
        } else {
            request::to_json(&chain.input())?
        };
        let (prepared, limit) = (Arc::clone(&self.prepared), self.memory_limit);
        let evaluate = move || memory::evaluate(limit, || prepared.evaluate_request(&input, deadline));
        isolation::run(deadline, evaluate).await
    }

    /// Reads the objects from the host. The timeout guards against a host that does not answer by the deadline.
    async fn objects(&self, deadline: Deadline) -> Result<Arc<Objects>, EvaluationError> {
        match timeout_at(deadline.instant().into(), self.host.objects(deadline)).await {
            Ok(objects) => objects.map_err(EvaluationError::Failed),
            Err(_) => Err(EvaluationError::DeadlineExceeded),
        }
    }
}

/// Installs the builtins and the options that policies and queries share.
fn set_up(engine: &mut Engine) -> Result<(), CompileError> {
    builtins::install(engine)?;
    engine.set_strict_builtin_errors(false);
    // regorus would print to standard error. A policy must not write to the server's log.
    engine.set_gather_prints(true);
    Ok(())
}

fn set_deadline(engine: &mut Engine, deadline: Deadline) {
    engine.set_execution_timer_config(ExecutionTimerConfig {
        limit: deadline.instant().saturating_duration_since(Instant::now()),
        check_interval: STEPS_BETWEEN_CHECKS,
    });
}

/// Requires that the packages of libraries are below `lib`, as Gatekeeper does. Another package could contain rules of the
/// policy itself.
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
    /// Evaluates a request for a nearly empty object. The interpreter reports unsafe variables and similar errors only during
    /// an evaluation. Without this check they would deny every request.
    fn evaluate_trial_request(&self) -> Result<(), CompileError> {
        let trial =
            Review::admission(TRIAL_REQUEST.into()).map_err(|error| CompileError::Invalid(error.to_string()))?;
        let deadline = Deadline::after(TRIAL_TIMEOUT);
        let evaluated = memory::evaluate(DEFAULT_MEMORY_LIMIT, || match self.evaluated_rules.dialect() {
            Dialect::Gatekeeper | Dialect::Admission => self.evaluate(self.engine.clone(), &trial, deadline).map(drop),
            Dialect::Request if self.evaluated_rules.is_published() => {
                self.evaluate_request(TRIAL_PUBLISHED_INPUT, deadline).map(drop)
            }
            Dialect::Request => self.evaluate_request(TRIAL_INPUT, deadline).map(drop),
        });
        match evaluated {
            // The answer may be invalid only for such an incomplete object.
            Ok(()) | Err(EvaluationError::InvalidAnswer(_) | EvaluationError::Overloaded(_)) => Ok(()),
            Err(EvaluationError::Failed(why)) => Err(CompileError::Invalid(why)),
            Err(error @ EvaluationError::DeadlineExceeded) => {
                Err(CompileError::Invalid(format!("a nearly empty request: {error}")))
            }
        }
    }

    fn evaluate(&self, engine: Engine, review: &Review, deadline: Deadline) -> Result<Verdict, EvaluationError> {
        let mut verdict = Verdict::allow();
        let input = self.input(review)?;
        self.evaluate_rules(engine, input, deadline, |entrypoint, value| {
            entrypoint.add_to_verdict(&value, review, &mut verdict)
        })?;
        Ok(verdict)
    }

    /// Evaluates the rule of a request policy. `input` is the JSON of an object.
    fn evaluate_request(&self, input: &str, deadline: Deadline) -> Result<Option<serde_json::Value>, EvaluationError> {
        let mut input: Value =
            value::read(input).map_err(|error| EvaluationError::Failed(format!("the input: {error}")))?;
        if let Ok(members) = input.as_object_mut() {
            members.insert("parameters".into(), self.settings.clone());
        }
        let mut result = None;
        self.evaluate_rules(self.engine.clone(), input, deadline, |entrypoint, value| {
            if value != Value::Undefined {
                let invalid =
                    |error| EvaluationError::InvalidAnswer(format!("{} is not valid: {error}", entrypoint.rule()));
                result = Some(serde_json::to_value(&value).map_err(invalid)?);
            }
            Ok(())
        })?;
        Ok(result)
    }

    /// Evaluates each rule for an input, and passes its value to `read`.
    fn evaluate_rules(
        &self,
        mut engine: Engine,
        input: Value,
        deadline: Deadline,
        mut read: impl FnMut(&Entrypoint, Value) -> Result<(), EvaluationError>,
    ) -> Result<(), EvaluationError> {
        engine.set_input(input);
        for entrypoint in self.evaluated_rules.entrypoints() {
            set_deadline(&mut engine, deadline);
            let value = engine
                .eval_rule(entrypoint.rule().to_owned())
                .map_err(|error| evaluation_error(&error.to_string(), error.downcast_ref(), deadline))?;
            read(entrypoint, value)?;
        }
        // The interpreter checks the deadline between steps only. One long builtin call may be the last step.
        if deadline.has_passed() {
            return Err(EvaluationError::DeadlineExceeded);
        }
        Ok(())
    }

    fn input(&self, review: &Review) -> Result<Value, EvaluationError> {
        let unreadable = |error: serde_json::Error| EvaluationError::Failed(format!("the request: {error}"));
        let mut request: Value = value::read(review.request_json()).map_err(unreadable)?;
        let mut members = BTreeMap::from([("parameters".into(), self.settings.clone())]);
        match self.evaluated_rules.dialect() {
            Dialect::Gatekeeper => {
                if review.head().is_some_and(|head| head.operation == Some(Operation::Delete)) {
                    copy_old_object_to_object(&mut request);
                }
                members.insert("review".into(), request);
            }
            Dialect::Admission => {
                members.insert("apiVersion".into(), "admission.k8s.io/v1".into());
                members.insert("kind".into(), "AdmissionReview".into());
                members.insert("request".into(), request);
            }
            Dialect::Request => {
                return Err(EvaluationError::Failed("the dialect Request is for request policies only".into()));
            }
        }
        Ok(members.into())
    }
}

/// Converts an error of the interpreter. `limit` is the limit that the evaluation exceeded, if any.
fn evaluation_error(error: &str, limit: Option<&LimitError>, deadline: Deadline) -> EvaluationError {
    if deadline.has_passed() || matches!(limit, Some(LimitError::TimeLimitExceeded { .. })) {
        EvaluationError::DeadlineExceeded
    } else {
        EvaluationError::Failed(error.trim().to_owned())
    }
}

/// Copies `oldObject` to `object`: Gatekeeper's templates read a deleted object in `review.object`, where the API server
/// sends null.
fn copy_old_object_to_object(request: &mut Value) {
    if let Ok(members) = request.as_object_mut() {
        let old = members.get(&"oldObject".into()).cloned();
        if let Some(old) = old.filter(|old| *old != Value::Null) {
            members.insert("object".into(), old);
        }
    }
}
