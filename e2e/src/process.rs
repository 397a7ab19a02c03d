//! One process of a run: started, stopped and frozen at will, its output in a log file, never outliving the run.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
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

    /// `--name=value`
    pub fn flag(self, name: &str, value: impl Into<OsString>) -> Self {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value.into());
        self.argument(argument)
    }

    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// It runs what it is about in a child and waits for that, as `nsenter` does to enter a PID namespace.
    pub fn forking(mut self) -> Self {
        self.forks = true;
        self
    }

    /// The same through another program that ends in running it, such as `nsenter`.
    pub fn through(self, wrapper: Self) -> Self {
        let mut invocation = wrapper.argument(self.program).arguments(self.arguments);
        invocation.variables.extend(self.variables);
        invocation.forks |= self.forks;
        invocation
    }
}

/// A running, frozen or ended process. Ends with this value, and with this program even if that is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    invocation: Invocation,
    log: PathBuf,
    child: Child,
}

impl Process {
    pub(crate) fn start(name: &str, invocation: Invocation, log: PathBuf) -> Result<Self> {
        let child = spawn(&invocation, &log).with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), invocation, log, child })
    }

    /// Of what was started: the program, or the one that waits for it (see [`Self::program`]).
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that is meant: the child of what was started, if that forks.
    ///
    /// # Errors
    /// If it is not there: not yet, or not any more.
    pub fn program(&self) -> Result<u32> {
        if !self.invocation.forks {
            return Ok(self.pid());
        }
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid()))?;
        let child = children.split_whitespace().next().with_context(|| format!("{} has not begun", self.name))?;
        Ok(child.parse()?)
    }

    /// What it wrote to stdout and stderr, of all its lives.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Freezes it (SIGSTOP): it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// If it has ended.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a frozen process go on (SIGCONT).
    ///
    /// # Errors
    /// If it has ended.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.thaw_waiting()
    }

    /// Ends it at once (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        // Who waits for the program ends with it, unless it is stopped too.
        let killed = self.invocation.forks && self.signal(Signal::KILL).is_ok() && self.thaw_waiting().is_ok();
        if !killed {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// nsenter stops itself with its child.
    fn thaw_waiting(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT).with_context(|| format!("waking {}", self.name))
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// If it has ended before, or goes on for longer than `bound`.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + bound;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} goes on {bound:?} after SIGTERM; its log: {}", self.name, self.log.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it again with the same arguments; ends it first if it runs.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.child = spawn(&self.invocation, &self.log).with_context(|| format!("restarting {}", self.name))?;
        Ok(())
    }

    /// # Errors
    /// If the process has ended, with the end of its log.
    pub fn ensure_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(&self.log).unwrap_or_else(|error| format!("(not readable: {error})"));
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        bail!("{} ended ({status}); the end of {}:\n{end}", self.name, self.log.display())
    }

    /// Waits until it has ended well.
    ///
    /// # Errors
    /// If it ends otherwise, or goes on for longer than `bound`.
    pub(crate) async fn until_done(&mut self, bound: Duration) -> Result<()> {
        let status =
            crate::until(&self.name.clone(), bound, async || self.child.try_wait()?.context("it runs")).await?;
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

/// Starts a process that the kernel kills when this program is gone.
///
/// The kernel takes the *thread* that started a process for its parent: that is one thread which lives as long as this
/// program, not the thread of some test.
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
