//! The parent process: starts the child, gives it the input, and reads the output within the limits of the job.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Once;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::Limits;
use crate::child::Failure;

/// The longest message of an error, in bytes. The rest is not kept.
const MAX_MESSAGE: usize = 16 * 1024;

/// One job of this program.
#[derive(Clone, Debug)]
pub struct Job {
    /// The internal command: see [`crate::run_job`].
    pub command: &'static str,
    pub arguments: Vec<String>,
    pub limits: Limits,
}

/// The error of a job that has no output.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The job ended with an error of its own.
    #[error("{}", .0.message)]
    Failed(Failure),
    #[error("it took longer than {0:?}")]
    Timeout(Duration),
    /// The limit in MiB.
    #[error("it takes more than {0} MiB of memory")]
    Memory(u32),
    /// The limit in bytes.
    #[error("its result has more than {0} bytes")]
    Output(usize),
    #[error("it was killed (SIGKILL): is the machine or the container out of memory?")]
    Killed,
    #[error("the process stopped: {0}")]
    Stopped(String),
}

impl Job {
    /// Runs the job in a child process. Dropping the future kills the process.
    ///
    /// # Errors
    /// The error of the job, or the limit that it exceeded.
    pub async fn run(&self, input: &[u8]) -> Result<Vec<u8>, JobError> {
        let ended = tokio::time::timeout(self.limits.time, self.start(input)).await;
        ended.unwrap_or(Err(JobError::Timeout(self.limits.time)))
    }

    async fn start(&self, input: &[u8]) -> Result<Vec<u8>, JobError> {
        let stopped = |error: io::Error| JobError::Stopped(error.to_string());
        // `/proc/self/exe` is this program even if its file was replaced by another version.
        let mut child = Command::new("/proc/self/exe")
            .arg(self.command)
            .args([self.limits.memory_mib.to_string(), self.limits.time.as_millis().to_string()])
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(stopped)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // If the job does not read everything, its exit status and stderr have the cause, and this error does not.
                let _ = stdin.write_all(input).await;
            }
        };
        let read = async { tokio::try_join!(read(stdout, self.limits.output), read(stderr, MAX_MESSAGE)) };
        let ((), output) = tokio::join!(write, read);
        let (output, message) = output.map_err(stopped)?;
        let status = child.wait().await.map_err(stopped)?;
        let message = String::from_utf8_lossy(&message.0);
        let (missing, message) = message.split_once('\n').unwrap_or(("", &message));
        log_missing(missing);
        self.result(status, output, message.trim())
    }

    fn result(&self, status: ExitStatus, (output, is_whole): Read, message: &str) -> Result<Vec<u8>, JobError> {
        if status.success() {
            return if is_whole { Ok(output) } else { Err(JobError::Output(self.limits.output)) };
        }
        let is_killed_by = |signal: Signal| status.signal() == Some(signal.as_raw());
        if let Some(code) =
            status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| (10..100).contains(code))
        {
            return Err(JobError::Failed(Failure { code, message: message.to_owned() }));
        }
        if is_killed_by(Signal::XCPU) {
            return Err(JobError::Timeout(self.limits.time));
        }
        // Rust's allocator aborts the process when it gets no more memory.
        if is_killed_by(Signal::ABORT) {
            return Err(JobError::Memory(self.limits.memory_mib));
        }
        if is_killed_by(Signal::KILL) {
            return Err(JobError::Killed);
        }
        Err(JobError::Stopped(format!("{status}: {message}")))
    }
}

/// Bytes, and whether they are all bytes.
type Read = (Vec<u8>, bool);

/// Reads a pipe until its end, and keeps the first `limit` bytes.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: usize) -> io::Result<Read> {
    let Some(mut pipe) = pipe else { return Ok((Vec::new(), true)) };
    let mut bytes = Vec::new();
    (&mut pipe).take(limit as u64).read_to_end(&mut bytes).await?;
    let rest = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok((bytes, rest == 0))
}

/// Logs once which defences the kernel does not have.
fn log_missing(missing: &str) {
    static LOGGED: Once = Once::new();
    if !missing.is_empty() {
        LOGGED.call_once(|| {
            tracing::warn!(
                missing,
                "the kernel lacks defences of the processes that compile policies; the other defences are in place"
            );
        });
    }
}
