//! One process that the kubelet of the run keeps running: a replica of the policy server, or an operator.

use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;
use kube::{Client, Config};
use proviso_e2e::torture::history::OutageKind;
use proviso_e2e::torture::plan::Version;
use proviso_e2e::{Fault, Invocation, Link, Port, Process, clock};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::pods::Mount;
use crate::recorder::Recorder;

/// The shortest time between two starts of a process.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// The number of failed probes in a row after which a process is not Ready.
const FAILURE_THRESHOLD: u32 = 2;
/// The exit code of a program of Rust that panics.
const PANIC: i32 = 101;

/// The role of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    Operator,
    /// A replica of the policy server, in the pod with this uid.
    Replica {
        uid: String,
    },
}

/// The invocations of a process in both versions.
pub struct Invocations {
    pub this: Invocation,
    pub other: Invocation,
}

impl Invocations {
    /// Applies the same change to both invocations.
    pub fn map(self, change: impl Fn(Invocation) -> Invocation) -> Self {
        Self { this: change(self.this), other: change(self.other) }
    }

    fn of(&self, version: Version) -> &Invocation {
        match version {
            Version::This => &self.this,
            Version::Other => &self.other,
        }
    }
}

/// The files, the network and the ports of a process.
pub struct Setup {
    pub name: String,
    pub role: Role,
    pub invocations: Invocations,
    pub log: PathBuf,
    pub link: Link,
    /// The ports for reviews and for probes.
    pub ports: [Port; 2],
    /// The client of the probes.
    pub probe: Client,
    pub mounts: Vec<Mount>,
}

/// A process that is started again when it ends.
pub struct Instance {
    setup: Setup,
    process: Process,
    start: Start,
    health: Health,
    is_frozen: bool,
    /// True if the pod is being deleted: the process is not started again.
    is_ending: bool,
    /// True if API servers find the process by its Service.
    is_published: bool,
    /// The readiness that the status of the pod reports.
    reported: Option<bool>,
    /// The number of the outage while API servers may call a process that does not answer.
    outage: Option<usize>,
}

/// The last start of a process, and the next one.
struct Start {
    at: Instant,
    /// The version of the next start.
    version: Version,
    /// The shift of the clock of the next start, in seconds.
    clock: i32,
    /// True if the run has ended the process, or its end is noted already.
    is_end_expected: bool,
}

/// The results of the probes of a process.
#[derive(Default)]
struct Health {
    /// The number of failed probes since the last success.
    failures: u32,
    is_ready: bool,
}

/// Returns a client for the probes of a process.
pub fn probe_client(port: &Port) -> Result<Client> {
    let mut config = Config::new(format!("http://127.0.0.1:{}/", port.number()).parse()?);
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

impl Instance {
    pub fn start(setup: Setup, version: Version) -> Result<Self> {
        let process = Process::start(&setup.name, setup.invocations.of(version).clone(), setup.log.clone())?;
        Ok(Self {
            setup,
            process,
            start: Start { at: Instant::now(), version, clock: 0, is_end_expected: false },
            health: Health::default(),
            is_frozen: false,
            is_ending: false,
            is_published: false,
            reported: None,
            outage: None,
        })
    }

    pub fn role(&self) -> &Role {
        &self.setup.role
    }

    pub fn is_replica(&self) -> bool {
        self.setup.role != Role::Operator
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    pub fn probe(&self) -> Client {
        self.setup.probe.clone()
    }

    pub fn mounts(&self) -> &[Mount] {
        &self.setup.mounts
    }

    /// Returns true if API servers are to call the process.
    pub fn is_serving(&self) -> bool {
        self.health.is_ready && !self.is_ending
    }

    pub fn is_published(&self) -> bool {
        self.is_published
    }

    /// Returns true if API servers are to find the process by its Service. As in a cluster, the status of the pod comes first.
    pub fn should_be_published(&self) -> bool {
        self.is_serving() && (!self.is_replica() || self.reported == Some(true))
    }

    /// Begins an outage if API servers may call this process, and it is a replica.
    fn begin_outage(&mut self, cause: &str, recorder: &Recorder) {
        if self.is_published && self.is_replica() && self.outage.is_none() {
            let cause = format!("{} {cause}", self.setup.name);
            self.outage = Some(recorder.begin_outage(OutageKind::Replica, cause));
        }
    }

    fn end_outage(&mut self, recorder: &Recorder) {
        if let Some(number) = self.outage.take() {
            recorder.end_outage(number);
        }
    }

    pub fn kill(&mut self, recorder: &Recorder) {
        self.begin_outage("is killed", recorder);
        self.start.is_end_expected = true;
        self.process.kill();
    }

    /// Sends SIGTERM. The process is started again.
    pub fn terminate(&mut self) -> Result<()> {
        self.start.is_end_expected = true;
        self.process.request_end()
    }

    /// Sends SIGTERM. The next start has the next version.
    pub fn change_version(&mut self, recorder: &Recorder) {
        self.start.version = self.start.version.next();
        recorder.note(format!("{} changes to {}", self.setup.name, self.start.version));
        // If the process has just ended, its next start has the version too.
        let _ = self.terminate();
    }

    /// Ends the process, because its pod is deleted.
    pub fn end(&mut self) {
        if !self.is_ending {
            self.is_ending = true;
            self.start.is_end_expected = true;
            // If the process has ended already, there is nothing to do.
            let _ = self.process.request_end();
        }
    }

    pub fn freeze(&mut self, recorder: &Recorder) -> Result<()> {
        // The outage begins first, so that no request falls in between.
        self.begin_outage("is frozen", recorder);
        self.is_frozen = true;
        self.process.freeze()
    }

    /// Continues the process, if the run has frozen it.
    pub fn thaw(&mut self, recorder: &Recorder) {
        if self.is_frozen && self.process.thaw().is_ok() {
            self.is_frozen = false;
            self.end_outage(recorder);
        }
    }

    pub fn set_fault(&self, fault: Fault) {
        self.setup.link.proxy.set(fault);
    }

    /// Kills the process. The next start has a clock that is shifted by this number of seconds.
    pub fn shift_clock(&mut self, seconds: i32, recorder: &Recorder) {
        self.start.clock = seconds;
        self.kill(recorder);
    }

    /// Counts the result of a probe.
    pub fn count_probe(&mut self, is_ok: bool) {
        let failures = if is_ok { 0 } else { self.health.failures + 1 };
        let is_ready = is_ok || (self.health.is_ready && failures < FAILURE_THRESHOLD);
        self.health = Health { failures, is_ready };
    }

    /// Starts the process again if it has ended. Returns true if the process has ended for good, and no API server calls it.
    pub fn restart_if_ended(&mut self, recorder: &Recorder) -> Result<bool> {
        let Some(status) = self.process.ended()? else { return Ok(false) };
        self.begin_outage("has ended", recorder);
        self.health = Health::default();
        self.is_frozen = false;
        if !std::mem::replace(&mut self.start.is_end_expected, true) {
            let text = format!("{} ended by itself ({status}): {}", self.setup.name, self.setup.log.display());
            if is_crash(status) { recorder.crash(text) } else { recorder.note(text) }
        }
        if self.is_ending {
            return Ok(!self.is_published);
        }
        if self.start.at.elapsed() >= RESTART_INTERVAL {
            let Start { version, clock, .. } = self.start;
            let shifted = if clock == 0 { None } else { clock::shifted(&format!("{clock:+}s")) };
            let variables = shifted.into_iter().flatten();
            let invocation = self.setup.invocations.of(version).clone();
            let invocation = variables.fold(invocation, |all, (name, value)| all.variable(name, value));
            self.process = Process::start(&self.setup.name, invocation, self.setup.log.clone())?;
            self.start = Start { at: Instant::now(), version, clock, is_end_expected: false };
        }
        Ok(false)
    }

    /// Returns the slice with the address of the process, if it has to be written: the name and the content.
    pub fn slice_to_write(&self, host: IpAddr, service: &str) -> Option<(String, Value)> {
        if self.is_published == self.should_be_published() {
            return None;
        }
        let endpoint = json!({"addresses": [host], "conditions": {"ready": true}});
        let endpoints = if self.should_be_published() { vec![endpoint] } else { Vec::new() };
        let name = format!("torture-{}", self.setup.name);
        let labels = json!({
            "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "torture.proviso.dev",
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": self.setup.ports[0].number(), "protocol": "TCP"}],
        });
        Some((name, slice))
    }

    /// Records that API servers now find the process, or do not find it any more.
    pub fn set_published(&mut self, is_published: bool, recorder: &Recorder) {
        self.is_published = is_published;
        let has_ended = matches!(self.process.ended(), Ok(Some(_)));
        if is_published && (self.is_frozen || has_ended) {
            // The run has stopped the process while its address was written.
            self.begin_outage("does not answer", recorder);
        } else if !is_published && !self.is_frozen {
            // API servers keep their connections to a frozen process, also after its address is removed.
            self.end_outage(recorder);
        }
    }

    /// Returns the uid and the readiness of the pod, if its status has to be written.
    pub fn readiness_to_report(&self) -> Option<(String, bool)> {
        let Role::Replica { uid } = &self.setup.role else { return None };
        (self.reported != Some(self.is_serving())).then(|| (uid.clone(), self.is_serving()))
    }

    pub fn set_reported(&mut self, is_ready: bool) {
        self.reported = Some(is_ready);
    }
}

/// Returns true if the process has panicked, or a signal has ended it that the run has not sent.
fn is_crash(status: ExitStatus) -> bool {
    status.code() == Some(PANIC) || status.signal().is_some_and(|signal| signal != Signal::TERM.as_raw())
}
