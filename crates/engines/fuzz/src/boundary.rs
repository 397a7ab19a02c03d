//! The boundary between a guest and its host: an engine with one hostile guest, which is asked over and over.

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
use super::world::World;

const BUDGET: Duration = Duration::from_millis(50);
/// What ending late may cost under a fuzzer, on a busy machine.
const GRACE: Duration = Duration::from_secs(2);
const LIMITS: Config = Config { memory_limit: 1 << 20, concurrency: 4 };
const REVIEW: &[u8] = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
    "request":{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"a"},"list":[1,2]}}}"#;

/// What a guest is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether its settings are right: compiled Rego knows no such question, and is asked as Gatekeeper asks.
    Settings,
    /// Its decision.
    Verdict,
}

/// An engine with a guest.
#[derive(Debug)]
pub struct Boundary {
    abi: Abi,
    guest: Guest,
    module: Module,
    runtime: Runtime,
    log: Dispatch,
}

impl Boundary {
    #[allow(clippy::expect_used, reason = "without an engine there is nothing to try")]
    pub fn new(abi: Abi) -> Self {
        let (engine, guest) = (Engine::new(LIMITS).expect("an engine"), abi.guest());
        let wasm = wat::parse_str(guest.text()).expect("a module");
        let code = VerifiedCode::assume_verified(engine.precompile(&wasm).expect("it compiles"));
        let module = engine.load(&code).expect("it loads");
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { abi, guest, module, runtime, log: Dispatch::new(Log) }
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Has the guest do what these bytes come to. Panics where it does not end in time, or keeps a place.
    pub fn cross(&self, input: &[u8]) {
        let Some((first, input)) = input.split_first() else { return };
        let question = if first.is_multiple_of(2) { Question::Settings } else { Question::Verdict };
        let script = script::of_bytes(input, &self.guest);
        let start = Instant::now();
        let result = self.ask(question, &script, Deadline::after(BUDGET));
        let elapsed = start.elapsed();
        assert!(elapsed < BUDGET + GRACE, "it took {elapsed:?}");
        // Nobody else is here.
        assert_ne!(result, Err(EvaluationError::Overloaded), "a place was not given back");
    }

    /// Has the guest obey a script. A refusal of its settings is an answer.
    pub fn ask(&self, question: Question, script: &[u8], deadline: Deadline) -> Result<(), EvaluationError> {
        let mode = match (self.abi, question) {
            (Abi::Wapc, _) => ExecutionMode::KubewardenWapc,
            (Abi::Opa, Question::Settings) => ExecutionMode::Gatekeeper,
            (Abi::Opa, Question::Verdict) => ExecutionMode::Opa,
            (Abi::Wasi, _) => ExecutionMode::Wasi,
        };
        let program = Program::new(self.module.clone(), script).in_mode(mode).with_host(Arc::new(World::default()));
        let asks_settings = question == Question::Settings && self.abi != Abi::Opa;
        tracing::dispatcher::with_default(&self.log, || {
            self.runtime.block_on(async {
                if !asks_settings {
                    let review = Review::admission(REVIEW.into())
                        .map_err(|error| EvaluationError::InvalidAnswer(error.to_string()))?;
                    return program.evaluate(&review, deadline).await.map(drop);
                }
                match program.validate_settings(deadline).await {
                    Ok(()) | Err(SettingsError::Refused(_)) => Ok(()),
                    Err(SettingsError::Unanswered(error)) => Err(error),
                }
            })
        })
    }
}

/// Wants every line that a guest logs: what nobody wants is never read.
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
        event.record(&mut Reader);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Reader;

impl Visit for Reader {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        assert!(format!("{value:?}").len() < 64 << 10, "a line of the log is long");
    }
}
