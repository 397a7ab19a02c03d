//! The child process that compiles one module: this program, with an internal command as its arguments. The process reads the
//! module from stdin, and writes the compiled code to stdout or the error to stderr.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, Output, Stdio};
use std::time::Duration;

use proviso_engines::CompileError;
use proviso_engines::wasm::{self, SnapshotMode};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::error::CompileFailure;

/// The name of the internal command, which is the first argument of the child process.
const COMMAND: &str = "compile-module";
/// The exit code for [`CompileError::Invalid`]. Exit codes other than this and [`UNSUPPORTED`] mean that the compiler does not
/// work.
const INVALID: u8 = 10;
/// The exit code for [`CompileError::Unsupported`].
const UNSUPPORTED: u8 = 11;
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
    /// Parses the arguments of the program; `None` if they are not the internal command.
    #[must_use]
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut arguments = arguments.into_iter().skip(1);
        arguments.next().filter(|name| name == COMMAND)?;
        let snapshot = SnapshotMode::from_name(arguments.next()?.to_str()?)?;
        let mut number = || arguments.next()?.to_str()?.parse().ok();
        Some(Self {
            memory_limit: usize::try_from(number()?).ok()?,
            compile_memory: u32::try_from(number()?).ok()?,
            timeout: Duration::from_millis(number()?),
            snapshot,
        })
    }

    /// Compiles a module in a child process.
    pub(super) async fn start(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileFailure> {
        let stopped = |error: io::Error| CompileFailure::Stopped(error.to_string());
        // `/proc/self/exe` is this program even if its file was replaced by another version.
        let mut compiler = Command::new("/proc/self/exe")
            .args([COMMAND, self.snapshot.as_str()])
            .args([
                self.memory_limit.to_string(),
                self.compile_memory.to_string(),
                self.timeout.as_millis().to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(stopped)?;
        let stdin = compiler.stdin.take();
        let write = async {
            if let Some(mut stdin) = stdin {
                // If the compiler does not read everything, its exit status and stderr have the cause, and this error does not.
                let _ = stdin.write_all(wasm).await;
            }
        };
        let ((), output) = tokio::join!(write, compiler.wait_with_output());
        self.read_output(output.map_err(stopped)?)
    }

    fn read_output(&self, output: Output) -> Result<Vec<u8>, CompileFailure> {
        let stderr =
            || String::from_utf8_lossy(&output.stderr).chars().take(2000).collect::<String>().trim().to_owned();
        let code = output.status.code().and_then(|code| u8::try_from(code).ok());
        if output.status.success() {
            return Ok(output.stdout);
        }
        if code == Some(INVALID) {
            return Err(CompileError::Invalid(stderr()).into());
        }
        if code == Some(UNSUPPORTED) {
            return Err(CompileError::Unsupported(stderr()).into());
        }
        let is_killed_by = |signal: Signal| output.status.signal() == Some(signal.as_raw());
        if is_killed_by(Signal::XCPU) {
            return Err(CompileFailure::Timeout(self.timeout));
        }
        // Rust's allocator aborts the process when it gets no more memory.
        if is_killed_by(Signal::ABORT) {
            return Err(CompileFailure::Memory(self.compile_memory));
        }
        if is_killed_by(Signal::KILL) {
            return Err(CompileFailure::Stopped(
                "it was killed (SIGKILL): is the machine or the container out of memory?".to_owned(),
            ));
        }
        Err(CompileFailure::Stopped(format!("{}: {}", output.status, stderr())))
    }

    /// Limits the memory and the CPU time of this process, and disables core dumps. The address space is not limited, because the
    /// engine reserves a lot of it and uses little.
    fn apply_limits(self) -> io::Result<()> {
        let set = |resource, limit| {
            let limit = Some(limit);
            setrlimit(resource, Rlimit { current: limit, maximum: limit })
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        set(Resource::Data, u64::from(self.compile_memory) << 20)?;
        // The server kills this process earlier. This limit is for a process whose server has died.
        set(Resource::Cpu, (self.timeout.as_secs() + 1) * cpus)?;
        set(Resource::Core, 0)?;
        Ok(())
    }
}

/// Compiles the module from stdin and returns the exit code of this process, which is the child process.
#[must_use]
pub fn run_compile_job(job: CompileJob) -> ExitCode {
    match compile(job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = match &error {
                CompileFailure::Compile(CompileError::Invalid(_)) => ExitCode::from(INVALID),
                CompileFailure::Compile(CompileError::Unsupported(_)) => ExitCode::from(UNSUPPORTED),
                _ => ExitCode::FAILURE,
            };
            // If stderr is closed, the server still sees the exit code.
            let _ = write!(io::stderr(), "{error}");
            code
        }
    }
}

fn compile(job: CompileJob) -> Result<(), CompileFailure> {
    let stopped = |error: io::Error| CompileFailure::Stopped(error.to_string());
    job.apply_limits().map_err(stopped)?;
    let mut module = Vec::new();
    io::stdin().lock().read_to_end(&mut module).map_err(stopped)?;
    let config = wasm::Config { memory_limit: job.memory_limit, concurrency: CONCURRENCY };
    let engine = wasm::Engine::new(config).map_err(|error| CompileFailure::Stopped(error.to_string()))?;
    let code = engine.precompile_with(&module, job.snapshot)?;
    io::stdout().lock().write_all(&code).map_err(stopped)
}
