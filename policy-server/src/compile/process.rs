//! The child process that compiles one module: this program, with an internal command as its arguments. The process has no access
//! to files, networks and secrets: see [`proviso_sandbox`].

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use proviso_engines::CompileError;
use proviso_engines::wasm::{self, SnapshotMode};
use proviso_sandbox::{Defence, Failure, Job, JobError, Limits, run_job};

use super::error::CompileFailure;

/// The name of the internal command, which is the first argument of the child process.
const COMMAND: &str = "compile-module";
/// The exit code for [`CompileError::Invalid`].
const INVALID: u8 = 10;
/// The exit code for [`CompileError::Unsupported`].
const UNSUPPORTED: u8 = 11;
/// The exit code if the compiler does not work.
const BROKEN: u8 = 12;
/// The maximum number of concurrent instances. The compiler runs a module to record its snapshot, and then to compare answers.
const CONCURRENCY: u32 = 4;

/// The limits and the options of one compilation.
#[derive(Clone, Copy, Debug)]
pub struct CompileJob {
    /// The memory limit of one wasm instance, in bytes. The compiled code depends on it.
    pub memory_limit: usize,
    /// The memory limit of the compiler, in MiB.
    pub compile_memory: u32,
    /// The time limit of the compiler.
    pub timeout: Duration,
    /// The use of a snapshot of the initialised module.
    pub snapshot: SnapshotMode,
}

impl CompileJob {
    /// Compiles a module in a child process.
    pub(super) async fn start(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileFailure> {
        // The compiled code was in the memory of the compiler.
        let output = usize::try_from(self.compile_memory).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        let limits = Limits { memory_mib: self.compile_memory, time: self.timeout, output };
        let arguments = vec![self.snapshot.as_str().to_owned(), self.memory_limit.to_string()];
        let result = Job { command: COMMAND, arguments, limits }.run(wasm).await;
        result.map_err(|error| match error {
            JobError::Failed(Failure { code: INVALID, message }) => CompileError::Invalid(message).into(),
            JobError::Failed(Failure { code: UNSUPPORTED, message }) => CompileError::Unsupported(message).into(),
            JobError::Timeout(limit) => CompileFailure::Timeout(limit),
            JobError::Memory(mib) => CompileFailure::Memory(mib),
            other => CompileFailure::Stopped(other.to_string()),
        })
    }
}

/// Compiles the module from stdin, if the arguments of the program say so, and returns the exit code of this process: see
/// [`run_job`].
#[must_use]
pub fn run_compile_job(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    run_job(arguments, COMMAND, &Defence::ALL, |arguments, module| {
        compile(arguments, &module).map_err(|error| {
            let code = match &error {
                CompileFailure::Compile(CompileError::Invalid(_)) => INVALID,
                CompileFailure::Compile(CompileError::Unsupported(_)) => UNSUPPORTED,
                _ => BROKEN,
            };
            Failure { code, message: error.to_string() }
        })
    })
}

fn compile(arguments: &[String], module: &[u8]) -> Result<Vec<u8>, CompileFailure> {
    let stopped = |why: &str| CompileFailure::Stopped(why.to_owned());
    let [snapshot, memory_limit] = arguments else { return Err(stopped("wrong arguments")) };
    let snapshot = SnapshotMode::from_name(snapshot).ok_or_else(|| stopped("unknown use of a snapshot"))?;
    let memory_limit = memory_limit.parse().map_err(|_| stopped("the memory limit is not a number"))?;
    let config = wasm::Config { memory_limit, concurrency: CONCURRENCY };
    let engine = wasm::Engine::new(config).map_err(|error| stopped(&error.to_string()))?;
    Ok(engine.precompile_with(module, snapshot)?)
}
