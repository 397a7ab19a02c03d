//! A process of a run. A test can freeze, kill and restart it. Its output is in a log file, and it never outlives the run.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A program with its arguments and environment variables.
#[derive(Debug, Clone)]
#[must_use = "an invocation starts no process: see `Process::start`"]
pub struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    /// True if the program runs another program in a child process, and waits for it.
    forks: bool,
}

impl Invocation {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), variables: Vec::new(), forks: false }
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds the argument `--name=value`.
    pub fn flag(self, name: &str, value: impl Into<OsString>) -> Self {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value.into());
        self.argument(argument)
    }

    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Marks a program that runs another program in a child process and waits for it, as `nsenter` does to enter a PID namespace.
    pub(crate) fn forking(mut self) -> Self {
        self.forks = true;
        self
    }

    /// Returns an invocation of `wrapper`, which then runs this program, such as `nsenter`.
    pub(crate) fn through(self, wrapper: Self) -> Self {
        let mut invocation = wrapper.argument(self.program).arguments(self.arguments);
        invocation.variables.extend(self.variables);
        invocation.forks |= self.forks;
        invocation
    }
}

/// A running, frozen or ended process. It ends when this value is dropped, and when this program ends or is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    invocation: Invocation,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts a process whose output is appended to a log file.
    ///
    /// # Errors
    /// If the program cannot be started, or the log cannot be written.
    pub fn start(name: &str, invocation: Invocation, log: PathBuf) -> Result<Self> {
        let child = spawn(&invocation, &log).with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), invocation, log, child })
    }

    /// Returns the number of the process that was started: the program, or a wrapper that waits for it (see [`Self::program`]).
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of the program's process. It is the child of the process that was started, if that is a wrapper that
    /// forks.
    ///
    /// # Errors
    /// If the wrapper has not started the program yet, or the program has ended.
    pub fn program(&self) -> Result<u32> {
        if !self.invocation.forks {
            return Ok(self.pid());
        }
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid()))?;
        let child = children.split_whitespace().next().with_context(|| format!("{} has not started", self.name))?;
        Ok(child.parse()?)
    }

    /// Returns the path of the log, which has stdout and stderr of the process, also from before restarts.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Freezes the process (SIGSTOP): it keeps its connections, and does not answer.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues a frozen process (SIGCONT).
    ///
    /// # Errors
    /// If the process has ended.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.thaw_wrapper()
    }

    /// Kills the process (SIGKILL), and waits until it has ended.
    pub fn kill(&mut self) {
        // A wrapper ends with its program, unless the wrapper is stopped too.
        let killed = self.invocation.forks && self.signal(Signal::KILL).is_ok() && self.thaw_wrapper().is_ok();
        if !killed {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// Continues a wrapper such as nsenter, which stops itself when its child is stopped.
    fn thaw_wrapper(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT).with_context(|| format!("SIGCONT to {}", self.name))
    }

    /// Sends SIGTERM, and does not wait: see [`Self::ended`].
    ///
    /// # Errors
    /// If the process has ended.
    pub fn request_end(&mut self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Returns the status of the process if it has ended; `None` while it runs or is frozen.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends SIGTERM, and waits until the process has ended.
    ///
    /// # Errors
    /// If the process had ended before, or still runs after `bound`.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + bound;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs {bound:?} after SIGTERM; its log: {}", self.name, self.log.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the process if it runs, and starts it again with the same arguments.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.child = spawn(&self.invocation, &self.log).with_context(|| format!("restarting {}", self.name))?;
        Ok(())
    }

    /// Checks that the process runs.
    ///
    /// # Errors
    /// If the process has ended, with the end of its log.
    pub fn ensure_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(&self.log).unwrap_or_else(|error| format!("(not readable: {error})"));
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        bail!("{} ended ({status}); the end of {}:\n{end}", self.name, self.log.display())
    }

    /// Waits until the process has ended with success.
    ///
    /// # Errors
    /// If the process fails, or still runs after `bound`.
    pub(crate) async fn until_done(&mut self, bound: Duration) -> Result<()> {
        let status =
            crate::until(&self.name.clone(), bound, async || self.child.try_wait()?.context("it still runs")).await?;
        if status.success() { Ok(()) } else { self.ensure_running() }
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        self.ensure_running()?;
        let program = Pid::from_raw(self.program()?.try_into()?).context("a process has a number")?;
        kill_process(program, signal).with_context(|| format!("{signal:?} to {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

type Spawned = io::Result<Child>;

/// Starts a process that the kernel kills when this program ends.
///
/// For the kernel, the parent of a process is the *thread* that started it. So one thread that lives as long as this program
/// starts all processes, and not the thread of a test.
fn spawn(invocation: &Invocation, log: &Path) -> Spawned {
    static PARENT: LazyLock<mpsc::Sender<(Command, mpsc::Sender<Spawned>)>> = LazyLock::new(|| {
        let (sender, receiver) = mpsc::channel::<(Command, mpsc::Sender<Spawned>)>();
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&invocation.program)
        .args(&invocation.arguments)
        .envs(invocation.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let (answer, spawned) = mpsc::channel();
    PARENT.send((command, answer)).map_err(io::Error::other)?;
    spawned.recv().map_err(io::Error::other)?
}
