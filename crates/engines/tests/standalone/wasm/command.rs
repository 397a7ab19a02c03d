//! WASI commands for tests.

use proviso_core::Verdict;
use proviso_engines::wasm::{Module, Program};
use proviso_engines::{CompileError, EvaluationError};

use super::guest::{ENGINE, create_review, escaped, failure, load, long_deadline};

#[derive(Clone, Debug)]
pub(crate) struct Command {
    body: String,
    fields: String,
}

impl Command {
    /// Returns a command whose `_start` has this code. The code may call `$read`, `$write`, `$exit`, `$arguments`, `$sizes`,
    /// `$call` and `$javy`. The command has two pages of memory.
    pub(crate) fn with_body(body: &str) -> Self {
        Self { body: body.into(), fields: String::new() }
    }

    /// Returns a command that writes this text to a file descriptor and then runs the code.
    pub(crate) fn writing(fd: u32, text: &str, body: &str) -> Self {
        let length = text.len();
        let write = format!(
            "(i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const {length}))
             (if (call $write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))"
        );
        Self::with_body(&format!("{write} {body}")).data(1024, text)
    }

    /// Returns a command that runs the code and then copies its standard input to a file descriptor.
    pub(crate) fn echoing(fd: u32, body: &str) -> Self {
        Self::with_body(&format!(
            "{body}
             (loop $more
                (i32.store (i32.const 0) (i32.const 2048)) (i32.store (i32.const 4) (i32.const 7))
                (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
                (i32.store (i32.const 4) (i32.load (i32.const 8)))
                (if (call $write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 12)) (then unreachable))
                (br_if $more (i32.load (i32.const 8))))"
        ))
    }

    /// Appends code to `_start`.
    pub(crate) fn then(mut self, body: &str) -> Self {
        self.body += body;
        self
    }

    /// Adds functions, tables, globals or data.
    pub(crate) fn field(mut self, text: &str) -> Self {
        self.fields += text;
        self
    }

    pub(crate) fn data(self, address: u32, text: &str) -> Self {
        self.field(&format!("(data (i32.const {address}) \"{}\")", escaped(text.as_bytes())))
    }

    pub(crate) fn wasm(&self) -> Vec<u8> {
        let Self { body, fields } = self;
        let text = format!(
            r#"(module
                (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "args_get" (func $arguments (param i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
                (import "host" "call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
                (import "kubewarden:javy/host" "call"
                    (func $javy (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
                (memory (export "memory") 2)
                {fields}
                (func $start (export "_start") {body}))"#
        );
        wat::parse_str(text).unwrap()
    }

    pub(crate) fn load(&self) -> Result<Module, CompileError> {
        load(&ENGINE, &self.wasm())
    }

    pub(crate) fn program(&self) -> Program {
        self.with_settings("{}")
    }

    pub(crate) fn with_settings(&self, settings: &str) -> Program {
        Program::new(self.load().unwrap(), settings.as_bytes())
    }

    pub(crate) async fn evaluate(&self) -> Result<Verdict, EvaluationError> {
        self.program().evaluate(&create_review(), long_deadline()).await
    }

    /// Evaluates a review and returns the text of the failure. Panics if the evaluation does not fail.
    pub(crate) async fn failure(&self) -> String {
        failure(&self.program()).await
    }
}
