//! What one instance carries: its payload, what it answered, its limits.

use std::sync::Arc;

use wasmtime::{ModuleExport, ResourceLimiter};

use super::config::TABLE_ELEMENTS;
use super::opa::Evaluation;
use super::payload::Payload;
use super::wasi::Process;
use crate::{Deadline, Host};

/// The number of lines that an evaluation may log. Further lines are dropped.
const LOG_LINES: u32 = 64;

pub(super) struct State {
    /// The export of the guest's memory.
    pub(super) memory: ModuleExport,
    pub(super) payload: Payload,
    pub(super) host: Arc<dyn Host>,
    pub(super) deadline: Deadline,
    /// What the guest gave to `__guest_response`.
    pub(super) response: Option<Vec<u8>>,
    /// What the guest gave to `__guest_error`.
    pub(super) error: Option<String>,
    /// What came of the last `__host_call`.
    pub(super) host_response: Vec<u8>,
    /// Why the last `__host_call` failed.
    pub(super) host_error: String,
    /// Whether the guest called the host at all.
    pub(super) called_host: bool,
    /// What WASI shows to the guest and gets from it.
    pub(super) process: Process,
    /// What builtins of compiled Rego remember for the length of one evaluation.
    pub(super) evaluation: Evaluation,
    /// Lines that the guest may still log.
    pub(super) lines_left: u32,
    pub(super) limits: Limits,
}

impl State {
    /// Creates the state of an instance whose memory has at most `memory_limit` bytes.
    pub(super) fn new(
        memory: ModuleExport,
        memory_limit: usize,
        payload: Payload,
        host: Arc<dyn Host>,
        deadline: Deadline,
    ) -> Self {
        let limits = Limits { memory: memory_limit, memory_refused: false };
        Self {
            memory,
            payload,
            host,
            deadline,
            response: None,
            error: None,
            host_response: Vec::new(),
            host_error: String::new(),
            called_host: false,
            process: Process::default(),
            evaluation: Evaluation::default(),
            lines_left: LOG_LINES,
            limits,
        }
    }
}

/// Refuses growth beyond the limits. The pool would refuse it too; this also remembers that it happened.
pub(super) struct Limits {
    /// In bytes.
    pub(super) memory: usize,
    pub(super) memory_refused: bool,
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        self.memory_refused |= desired > self.memory;
        Ok(desired <= self.memory)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }
}
