//! Guests: a template for the text of a module, and what it takes to run one.

use std::sync::LazyLock;
use std::time::Duration;

use proviso_core::{Review, Verdict};
use proviso_engines::wasm::{Config, Engine, Module, Program, VerifiedCode};
use proviso_engines::{CompileError, Deadline, EvaluationError, SettingsError};

/// A waPC module: its imports, two pages of memory, and what the test adds.
#[derive(Clone, Default)]
pub(crate) struct Guest {
    imports: String,
    fields: String,
    body: String,
}

impl Guest {
    /// A guest whose `__guest_call` is this code. It may call `$request`, `$respond`, `$fail`, `$host_call`, `$host_error`
    /// and `$host_error_len`, has `$operation_len` and `$message_len`, and leaves an i32.
    pub(crate) fn calling(body: &str) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// A guest that answers everything with this text.
    pub(crate) fn answering(json: &str) -> Self {
        let length = json.len();
        Self::calling(&format!("(call $respond (i32.const 1024) (i32.const {length})) (i32.const 1)")).data(1024, json)
    }

    /// Adds functions, tables, globals.
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
        self.program().evaluate(&create(), soon()).await
    }

    /// The text of the failure that the guest must run into.
    pub(crate) async fn failure(&self) -> String {
        failure(&self.program()).await
    }

    pub(crate) async fn validate_settings(&self) -> Result<(), SettingsError> {
        self.program().validate_settings(soon()).await
    }
}

/// The text of the failure that a program must run into.
pub(crate) async fn failure(program: &Program) -> String {
    match program.evaluate(&create(), soon()).await {
        Err(EvaluationError::Failed(text)) => text,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Bytes as the text of a module has them.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:02x}"))
}

/// With more places than the tests that run at the same time take: none of them waits for another.
pub(crate) static ENGINE: LazyLock<Engine> = LazyLock::new(|| engine(64));

pub(crate) fn engine(concurrency: u32) -> Engine {
    Engine::new(Config { memory_limit: 1 << 20, concurrency }).unwrap()
}

pub(crate) fn load(engine: &Engine, wasm: &[u8]) -> Result<Module, CompileError> {
    engine.load(&VerifiedCode::assume_verified(engine.precompile(wasm)?))
}

/// Long enough for everything but an endless loop, on a busy machine too.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// The creation of a small object.
pub(crate) fn create() -> Review {
    review(r#"{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"a"},"list":[1,2]}}"#)
}

pub(crate) fn review(request: &str) -> Review {
    let body = format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#);
    Review::admission(body.into()).unwrap()
}
