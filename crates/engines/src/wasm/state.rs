//! The state of an instance: its payload, its answer and its limits.

use std::sync::Arc;

use wasmtime::ModuleExport;

use super::limits::Limits;
use super::opa::Evaluation;
use super::payload::Payload;
use super::wasi::{Clocks, Process, Random};
use crate::{Deadline, Host};

/// The maximum number of lines that an evaluation may log. Further lines are dropped.
const LOG_LINES: u32 = 64;

pub(super) struct State {
    /// The exported memory of the guest.
    pub(super) memory: ModuleExport,
    pub(super) payload: Payload,
    pub(super) host: Arc<dyn Host>,
    pub(super) deadline: Deadline,
    /// The answer that the guest passed to `__guest_response`.
    pub(super) response: Option<Vec<u8>>,
    /// The error message that the guest passed to `__guest_error`.
    pub(super) error: Option<String>,
    /// The answer to the last `__host_call`; empty after an error.
    pub(super) host_response: Vec<u8>,
    /// The error message of the last `__host_call`; empty after an answer.
    pub(super) host_error: String,
    /// True if the guest has called the host, or has exchanged data with it by the functions of waPC.
    pub(super) has_called_host: bool,
    /// The arguments, input and output of the guest in WASI.
    pub(super) process: Process,
    pub(super) clocks: Clocks,
    pub(super) random: Random,
    /// The state of the builtins of compiled Rego.
    pub(super) evaluation: Evaluation,
    /// The number of lines that the guest may still log.
    pub(super) log_lines_left: u32,
    pub(super) limits: Limits,
}

impl State {
    pub(super) fn new(
        memory: ModuleExport,
        limits: Limits,
        payload: Payload,
        host: Arc<dyn Host>,
        deadline: Deadline,
    ) -> Self {
        Self {
            memory,
            payload,
            host,
            deadline,
            response: None,
            error: None,
            host_response: Vec::new(),
            host_error: String::new(),
            has_called_host: false,
            process: Process::default(),
            clocks: Clocks::running(),
            random: Random::system(),
            evaluation: Evaluation::default(),
            log_lines_left: LOG_LINES,
            limits,
        }
    }
}
