//! WASI commands for tests.

use proviso_core::Verdict;
use proviso_engines::wasm::{Module, Program};
use proviso_engines::{CompileError, EvaluationError};

use super::guest::{ENGINE, create, escaped, failure, load, soon};

#[derive(Clone, Debug)]
pub(crate) struct Command {
    body: String,
    fields: String,
}

impl Command {
    /// Its `_start` is this code. It may call `$read`, `$write`, `$exit`, `$arguments`, `$call` and `$javy`, and has two pages
    /// of memory.
    pub(crate) fn doing(body: &str) -> Self {
        Self { body: body.into(), fields: String::new() }
    }

    /// Writes this text to a file descriptor, and does what the code says.
    pub(crate) fn writing(fd: u32, text: &str, body: &str) -> Self {
        let length = text.len();
        let write = format!(
            "(i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const {length}))
             (if (call $write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))"
        );
        Self::doing(&format!("{write} {body}")).data(1024, text)
    }

    /// Does what the code says, and then writes everything that it can read to a file descriptor.
    pub(crate) fn echoing(fd: u32, body: &str) -> Self {
        Self::doing(&format!(
            "{body}
             (loop $more
                (i32.store (i32.const 0) (i32.const 2048)) (i32.store (i32.const 4) (i32.const 7))
                (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
                (i32.store (i32.const 4) (i32.load (i32.const 8)))
                (if (call $write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 12)) (then unreachable))
                (br_if $more (i32.load (i32.const 8))))"
        ))
    }

    /// Does this last.
    pub(crate) fn ending(mut self, body: &str) -> Self {
        self.body += body;
        self
    }

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
        self.program().evaluate(&create(), soon()).await
    }

    /// The text of the failure that it must run into.
    pub(crate) async fn failure(&self) -> String {
        failure(&self.program()).await
    }
}
