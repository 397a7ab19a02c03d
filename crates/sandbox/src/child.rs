//! The child process: confines itself, and then runs the job.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use crate::confine::{self, Defence};

/// The exit code of a process that could not confine itself or read its input.
pub(crate) const BROKEN: u8 = 1;

/// The error of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process: 10 to 99.
    pub code: u8,
    pub message: String,
}

/// Runs a job if the arguments of this program name its command. Returns the exit code of this process; `None` if the arguments
/// are others. Call this function first in `main`, before the program has threads, open files or a configuration.
///
/// `work` receives the arguments of the job and its input, and returns its output. `defences` are usually [`Defence::ALL`].
pub fn run_job(
    arguments: impl IntoIterator<Item = OsString>,
    command: &str,
    defences: &[Defence],
    work: impl FnOnce(&[String], Vec<u8>) -> Result<Vec<u8>, Failure>,
) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    arguments.next().filter(|name| name == command)?;
    let arguments: Option<Vec<String>> = arguments.map(|argument| argument.into_string().ok()).collect();
    let arguments = arguments?;
    let [memory_mib, milliseconds, arguments @ ..] = arguments.as_slice() else { return None };
    let (memory_mib, time) = (memory_mib.parse().ok()?, Duration::from_millis(milliseconds.parse().ok()?));
    Some(match run(memory_mib, time, defences, |input| work(arguments, input)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            // If stderr is closed, the parent still sees the exit code.
            let _ = io::stderr().write_all(message.as_bytes());
            ExitCode::from(code)
        }
    })
}

fn run(
    memory_mib: u32,
    time: Duration,
    defences: &[Defence],
    work: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, Failure>,
) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure { code: BROKEN, message: error.to_string() };
    let missing = confine::confine(memory_mib, time, defences).map_err(broken)?;
    // The first line of stderr: the parent logs the missing defences.
    let names: Vec<&str> = missing.iter().map(Defence::name).collect();
    io::stderr().write_all(format!("{}\n", names.join(" ")).as_bytes()).map_err(broken)?;
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input).map_err(broken)?;
    let output = work(input)?;
    io::stdout().lock().write_all(&output).map_err(broken)
}
