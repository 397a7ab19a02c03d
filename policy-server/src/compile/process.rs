//! The process that compiles one module: this program, started with an order instead of arguments. The module comes on
//! stdin, what was made of it leaves on stdout, and what is wrong with it on stderr.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, Output, Stdio};
use std::time::Duration;

use proviso_engines::{CompileError, wasm};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::error::Uncompiled;

/// What the first argument of this program is then.
const NAME: &str = "compile-module";
/// The exit codes of modules that do not compile. Others are those of a compiler that does not work.
const INVALID: u8 = 10;
const UNSUPPORTED: u8 = 11;
/// Places for instances: a module is run to take its snapshot, and once more to compare.
const CONCURRENCY: u32 = 4;

/// How modules are compiled.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The memory of one instance, in bytes: what is compiled depends on it.
    pub memory_limit: usize,
    /// The memory of the compiler, in MiB.
    pub compile_memory: u32,
    /// The time of the compiler.
    pub timeout: Duration,
}

impl Order {
    /// The order in these arguments of the program, if they are one.
    #[must_use]
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut arguments = arguments.into_iter().skip(1);
        arguments.next().filter(|name| name == NAME)?;
        let mut number = || arguments.next()?.to_str()?.parse().ok();
        Some(Self {
            memory_limit: usize::try_from(number()?).ok()?,
            compile_memory: u32::try_from(number()?).ok()?,
            timeout: Duration::from_millis(number()?),
        })
    }

    /// Has a module compiled.
    pub(super) async fn give(&self, wasm: &[u8]) -> Result<Vec<u8>, Uncompiled> {
        let stopped = |error: io::Error| Uncompiled::Stopped(error.to_string());
        // This very program, even if another one lies in its place by now.
        let mut compiler = Command::new("/proc/self/exe")
            .arg(NAME)
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
                // How the compiler ended says more than that it did not read to the end.
                let _ = stdin.write_all(wasm).await;
            }
        };
        let ((), output) = tokio::join!(write, compiler.wait_with_output());
        self.read_output(output.map_err(stopped)?)
    }

    fn read_output(&self, output: Output) -> Result<Vec<u8>, Uncompiled> {
        let said = || String::from_utf8_lossy(&output.stderr).chars().take(2000).collect::<String>().trim().to_owned();
        let code = output.status.code().and_then(|code| u8::try_from(code).ok());
        if output.status.success() {
            return Ok(output.stdout);
        }
        if code == Some(INVALID) {
            return Err(CompileError::Invalid(said()).into());
        }
        if code == Some(UNSUPPORTED) {
            return Err(CompileError::Unsupported(said()).into());
        }
        let is_by = |signal: Signal| output.status.signal() == Some(signal.as_raw());
        if is_by(Signal::XCPU) {
            return Err(Uncompiled::Timeout(self.timeout));
        }
        // So Rust's allocator ends a process that gets nothing more.
        if is_by(Signal::ABORT) {
            return Err(Uncompiled::Memory(self.compile_memory));
        }
        if is_by(Signal::KILL) {
            return Err(Uncompiled::Stopped(
                "it was killed: is the machine or the container short of memory?".to_owned(),
            ));
        }
        Err(Uncompiled::Stopped(format!("{}: {}", output.status, said())))
    }

    /// Bounds this process: what it allocates, the time of all its CPUs, and that it leaves nothing behind. The
    /// address space as such is not bounded: the engine reserves a lot, and uses little of it.
    fn bound(self) -> io::Result<()> {
        let set = |resource, limit| {
            let limit = Some(limit);
            setrlimit(resource, Rlimit { current: limit, maximum: limit })
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        set(Resource::Data, u64::from(self.compile_memory) << 20)?;
        // Whoever gave the order waits for less; this is for when nobody does any more.
        set(Resource::Cpu, (self.timeout.as_secs() + 1) * cpus)?;
        set(Resource::Core, 0)?;
        Ok(())
    }
}

/// Compiles what comes on stdin, in a process that does nothing else.
#[must_use]
pub fn carry_out(order: Order) -> ExitCode {
    match compile(order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = match &error {
                Uncompiled::Compile(CompileError::Invalid(_)) => ExitCode::from(INVALID),
                Uncompiled::Compile(CompileError::Unsupported(_)) => ExitCode::from(UNSUPPORTED),
                _ => ExitCode::FAILURE,
            };
            // If nobody listens, the exit code has to do.
            let _ = write!(io::stderr(), "{error}");
            code
        }
    }
}

fn compile(order: Order) -> Result<(), Uncompiled> {
    let stopped = |error: io::Error| Uncompiled::Stopped(error.to_string());
    order.bound().map_err(stopped)?;
    let mut module = Vec::new();
    io::stdin().lock().read_to_end(&mut module).map_err(stopped)?;
    let config = wasm::Config { memory_limit: order.memory_limit, concurrency: CONCURRENCY };
    let engine = wasm::Engine::new(config).map_err(|error| Uncompiled::Stopped(error.to_string()))?;
    let code = engine.precompile(&module)?;
    io::stdout().lock().write_all(&code).map_err(stopped)
}
