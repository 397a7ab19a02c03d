//! Guests: a template for the text of a waPC module, and functions that load and run modules.

use std::sync::LazyLock;
use std::time::Duration;

use proviso_core::{Review, Verdict};
use proviso_engines::wasm::{Config, Engine, Module, Program, VerifiedCode};
use proviso_engines::{CompileError, Deadline, EvaluationError, SettingsError};

/// A waPC module with all imports of waPC, two pages of memory, and the fields and code of the test.
#[derive(Clone, Default)]
pub(crate) struct Guest {
    imports: String,
    fields: String,
    body: String,
}

impl Guest {
    /// Returns a guest whose `__guest_call` has this code. The code may call `$request`, `$respond`, `$fail`, `$host_call`,
    /// `$host_response`, `$host_response_len`, `$host_error`, `$host_error_len` and `$console_log`. It has the parameters
    /// `$operation_len` and `$message_len` and must leave an `i32` on the stack.
    pub(crate) fn with_body(body: &str) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Returns a guest that answers every call with this text.
    pub(crate) fn answering(json: &str) -> Self {
        let length = json.len();
        Self::with_body(&format!("(call $respond (i32.const 1024) (i32.const {length})) (i32.const 1)"))
            .data(1024, json)
    }

    /// Adds functions, tables, globals or data.
    pub(crate) fn field(mut self, text: &str) -> Self {
        self.fields += text;
        self
    }

    /// Adds an import.
    pub(crate) fn import(mut self, text: &str) -> Self {
        self.imports += text;
        self
    }

    pub(crate) fn data(self, address: u32, text: &str) -> Self {
        self.field(&format!("(data (i32.const {address}) \"{}\")", escaped(text.as_bytes())))
    }

    pub(crate) fn wasm(&self) -> Vec<u8> {
        let Self { imports, fields, body } = self;
        let text = format!(
            r#"(module
                (import "wapc" "__guest_request" (func $request (param i32 i32)))
                (import "wapc" "__guest_response" (func $respond (param i32 i32)))
                (import "wapc" "__guest_error" (func $fail (param i32 i32)))
                (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
                (import "wapc" "__host_response" (func $host_response (param i32)))
                (import "wapc" "__host_response_len" (func $host_response_len (result i32)))
                (import "wapc" "__host_error" (func $host_error (param i32)))
                (import "wapc" "__host_error_len" (func $host_error_len (result i32)))
                (import "wapc" "__console_log" (func $console_log (param i32 i32)))
                {imports}
                (memory (export "memory") 2)
                {fields}
                (func $guest_call (export "__guest_call")
                    (param $operation_len i32) (param $message_len i32) (result i32)
                    {body}))"#
        );
        wat::parse_str(text).unwrap()
    }

    pub(crate) fn load(&self) -> Result<Module, CompileError> {
        load(&ENGINE, &self.wasm())
    }

    pub(crate) fn program(&self) -> Program {
        Program::new(self.load().unwrap(), *b"{}")
    }

    pub(crate) async fn evaluate(&self) -> Result<Verdict, EvaluationError> {
        self.program().evaluate(&create_review(), long_deadline()).await
    }

    /// Evaluates a review and returns the text of the failure. Panics if the evaluation does not fail.
    pub(crate) async fn failure(&self) -> String {
        failure(&self.program()).await
    }

    pub(crate) async fn validate_settings(&self) -> Result<(), SettingsError> {
        self.program().validate_settings(long_deadline()).await
    }
}

/// Evaluates a review and returns the text of the failure. Panics if the evaluation does not fail.
pub(crate) async fn failure(program: &Program) -> String {
    match program.evaluate(&create_review(), long_deadline()).await {
        Err(EvaluationError::Failed(text)) => text,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Escapes bytes for a string in the WebAssembly text format.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:02x}"))
}

/// The engine of most tests. It has more evaluation slots than there are concurrent tests, so that no test waits for another.
pub(crate) static ENGINE: LazyLock<Engine> = LazyLock::new(|| engine(64));

pub(crate) fn engine(concurrency: u32) -> Engine {
    Engine::new(Config { memory_limit: 1 << 20, concurrency }).unwrap()
}

pub(crate) fn load(engine: &Engine, wasm: &[u8]) -> Result<Module, CompileError> {
    engine.load(&VerifiedCode::assume_verified(engine.precompile(wasm)?))
}

/// Returns a deadline that only an endless loop misses, even on a busy machine.
pub(crate) fn long_deadline() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Returns a review of the creation of a small object.
pub(crate) fn create_review() -> Review {
    review(r#"{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"a"},"list":[1,2]}}"#)
}

pub(crate) fn review(request: &str) -> Review {
    let body = format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#);
    Review::admission(body.into()).unwrap()
}
