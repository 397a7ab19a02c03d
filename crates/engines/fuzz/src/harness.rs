//! The test harness: an engine with one hostile guest, which runs one script after the other.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_core::Review;
use proviso_engines::wasm::{Config, Engine, ExecutionMode, Module, Program, VerifiedCode};
use proviso_engines::{Deadline, EvaluationError, SettingsError};
use tokio::runtime::{Builder, Runtime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::hostile::Abi;
use super::hostile::guest::Guest;
use super::hostile::script;
use super::test_host::TestHost;

/// The time until the deadline of an evaluation.
const BUDGET: Duration = Duration::from_millis(50);
/// The maximum time by which an evaluation may miss its deadline, long enough for a fuzzer on a busy machine.
const GRACE: Duration = Duration::from_secs(2);
const LIMITS: Config = Config { memory_limit: 1 << 20, concurrency: 4 };
const REVIEW: &[u8] = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
    "request":{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"a"},"list":[1,2]}}}"#;

/// The operation that a guest executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Validates the settings. Compiled Rego has no such operation, so it evaluates a review in Gatekeeper's mode.
    ValidateSettings,
    /// Evaluates a review.
    Evaluate,
}

/// An engine with a guest.
#[derive(Debug)]
pub struct Harness {
    abi: Abi,
    guest: Guest,
    module: Module,
    runtime: Runtime,
    log: Dispatch,
}

impl Harness {
    #[allow(clippy::expect_used, reason = "the harness cannot work without an engine")]
    pub fn new(abi: Abi) -> Self {
        let (engine, guest) = (Engine::new(LIMITS).expect("an engine"), abi.guest());
        let wasm = wat::parse_str(guest.wat()).expect("a module");
        let code = VerifiedCode::assume_verified(engine.precompile(&wasm).expect("the module compiles"));
        let module = engine.load(&code).expect("the module loads");
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { abi, guest, module, runtime, log: Dispatch::new(Log) }
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Has the guest run the script that `input` encodes.
    ///
    /// # Panics
    /// Panics if the evaluation does not end in time, or if an earlier evaluation kept its slot.
    pub fn run(&self, input: &[u8]) {
        let Some((first, input)) = input.split_first() else { return };
        let operation = if first.is_multiple_of(2) { Operation::ValidateSettings } else { Operation::Evaluate };
        let script = script::from_bytes(input, &self.guest);
        let start = Instant::now();
        let result = self.run_script(operation, &script, Deadline::after(BUDGET));
        let elapsed = start.elapsed();
        assert!(elapsed < BUDGET + GRACE, "the evaluation took {elapsed:?}");
        // The harness runs one evaluation at a time, so every slot must be free.
        assert!(!matches!(result, Err(EvaluationError::Overloaded(_))), "an evaluation slot was not released");
    }

    /// Has the guest run a script. A rejection of the settings counts as success.
    ///
    /// # Errors
    /// Returns the error of the evaluation.
    pub fn run_script(&self, operation: Operation, script: &[u8], deadline: Deadline) -> Result<(), EvaluationError> {
        let mode = match (self.abi, operation) {
            (Abi::Wapc, _) => ExecutionMode::KubewardenWapc,
            (Abi::Opa, Operation::ValidateSettings) => ExecutionMode::Gatekeeper,
            (Abi::Opa, Operation::Evaluate) => ExecutionMode::Opa,
            (Abi::Wasi, _) => ExecutionMode::Wasi,
        };
        let program = Program::new(self.module.clone(), script).in_mode(mode).with_host(Arc::new(TestHost::default()));
        let validates_settings = operation == Operation::ValidateSettings && self.abi != Abi::Opa;
        tracing::dispatcher::with_default(&self.log, || {
            self.runtime.block_on(async {
                if !validates_settings {
                    let review = Review::admission(REVIEW.into())
                        .map_err(|error| EvaluationError::InvalidAnswer(error.to_string()))?;
                    return program.evaluate(&review, deadline).await.map(drop);
                }
                match program.validate_settings(deadline).await {
                    Ok(()) | Err(SettingsError::Refused(_)) => Ok(()),
                    Err(SettingsError::EvaluationFailed(error)) => Err(error),
                }
            })
        })
    }
}

/// A subscriber that enables every log line of a guest, because the host does not read lines that are disabled.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("proviso")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut LengthCheck);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Checks that log lines have a bounded length.
struct LengthCheck;

impl Visit for LengthCheck {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        assert!(format!("{value:?}").len() < 64 << 10, "a log line is too long");
    }
}
