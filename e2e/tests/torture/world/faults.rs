//! The steps that inject faults, and the ends of these faults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::{DeleteParams, ListParams};
use proviso_e2e::torture::history::{OutageKind, Time};
use proviso_e2e::torture::plan::{Step, Target};
use proviso_e2e::{Fault, clock, until};

use super::World;

/// The time limit of the start of the control plane after a fault.
const RECOVERY_TIMEOUT: Duration = Duration::from_mins(2);

/// A fault that lasts.
pub struct ActiveFault {
    /// The time at which the fault ends.
    pub until: Time,
    kind: FaultKind,
}

/// The kind of a lasting fault, with the data that its end needs.
enum FaultKind {
    Frozen(String),
    Partitioned(String),
    RegistryCut,
    /// etcd is frozen, since the outage with this number.
    EtcdFrozen(usize),
}

impl World {
    /// Injects a fault, or changes the version of an operator.
    pub(super) async fn inject(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Kill { target } => self.kubelet.kill(&self.name_of(target)?),
            Step::End { target } => self.end(target).await?,
            Step::ChangeOperatorVersion { operator } => {
                self.kubelet.change_version(&self.name_of(Target::Operator(operator))?);
            }
            Step::Freeze { target, time } => {
                let name = self.name_of(target)?;
                self.kubelet.freeze(&name);
                self.add_fault(time, FaultKind::Frozen(name));
            }
            Step::Partition { target, fault, time } => {
                let name = self.name_of(target)?;
                self.kubelet.set_fault(&name, fault);
                self.add_fault(time, FaultKind::Partitioned(name));
            }
            Step::ShiftClock { target, seconds } => self.shift_clock(target, seconds)?,
            Step::RestartApiServer => self.restart("the API server is restarted", false).await?,
            Step::RestartEtcd => self.restart("etcd is restarted", true).await?,
            Step::FreezeEtcd { time } => {
                let number = self.recorder.begin_outage(OutageKind::ControlPlane, "etcd is frozen");
                self.add_fault(time, FaultKind::EtcdFrozen(number));
                self.plane.etcd().freeze()?;
            }
            Step::CorruptCache { number } => self.corrupt_cache(number)?,
            Step::CutRegistry { fault, time } => {
                self.set_registry_fault(fault);
                self.add_fault(time, FaultKind::RegistryCut);
            }
            _ => {}
        }
        Ok(())
    }

    fn add_fault(&mut self, time: Duration, kind: FaultKind) {
        self.faults.push(ActiveFault { until: self.recorder.now() + time, kind });
    }

    /// Ends the faults that end until this time.
    pub(super) async fn end_faults(&mut self, now: Time) -> Result<()> {
        while let Some(index) = self.faults.iter().position(|fault| fault.until <= now) {
            match self.faults.swap_remove(index).kind {
                FaultKind::Frozen(name) => self.kubelet.thaw(&name),
                FaultKind::Partitioned(name) => self.kubelet.set_fault(&name, Fault::None),
                FaultKind::RegistryCut => self.set_registry_fault(Fault::None),
                FaultKind::EtcdFrozen(number) => {
                    self.plane.etcd().thaw()?;
                    self.until_control_plane_works().await?;
                    self.recorder.end_outage(number);
                }
            }
            self.recorder.note("a fault has ended");
        }
        Ok(())
    }

    /// Returns the name of a process that exists.
    fn name_of(&self, target: Target) -> Result<String> {
        let (is_replica, number) = match target {
            Target::Operator(number) => (false, number),
            Target::Replica(number) => (true, number),
        };
        let names = self.kubelet.names(is_replica);
        let index = usize::try_from(number)?.checked_rem(names.len()).context("no such process")?;
        let name = names.into_iter().nth(index).context("no such process")?;
        self.recorder.note(format!("{target} is {name}"));
        Ok(name)
    }

    async fn end(&self, target: Target) -> Result<()> {
        let name = self.name_of(target)?;
        match target {
            Target::Operator(_) => self.kubelet.terminate(&name),
            Target::Replica(_) => {
                self.objects.pods.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    fn shift_clock(&self, target: Target, seconds: i32) -> Result<()> {
        clock::shifted("+0s").context("faketime is not installed: make tools")?;
        self.kubelet.shift_clock(&self.name_of(target)?, seconds);
        Ok(())
    }

    /// Kills the API server or etcd, and starts it again.
    async fn restart(&mut self, cause: &str, is_etcd: bool) -> Result<()> {
        // A frozen etcd would keep the API server from its start.
        for fault in &mut self.faults {
            if let FaultKind::EtcdFrozen(_) = fault.kind {
                fault.until = Time::ZERO;
            }
        }
        self.end_faults(Time::ZERO).await?;
        let outage = self.recorder.begin_outage(OutageKind::ControlPlane, cause);
        if is_etcd {
            self.plane.etcd().restart()?;
        } else {
            self.plane.api_server(0).process().restart()?;
        }
        self.until_control_plane_works().await?;
        self.recorder.end_outage(outage);
        Ok(())
    }

    /// Waits until the API server is ready, and reads from etcd.
    pub(super) async fn until_control_plane_works(&mut self) -> Result<()> {
        self.plane.api_server(0).until_ready().await?;
        until("an answer from etcd", RECOVERY_TIMEOUT, async || {
            // Without a resource version, the API server asks etcd for the newest one.
            self.objects.policies.list(&ListParams::default()).await?;
            Ok(())
        })
        .await
    }

    /// Changes a byte of a file of the cache, or truncates the file.
    fn corrupt_cache(&self, number: u64) -> Result<()> {
        let mut files = files(&self.cache);
        files.sort();
        let number = usize::try_from(number)?;
        let index = number.checked_rem(files.len()).context("the cache is empty")?;
        let path = &files[index];
        // A replica may delete or replace the file at this moment, so an error is possible.
        let mut content = std::fs::read(path)?;
        let position = number.checked_rem(content.len()).context("the file is empty")?;
        if number.is_multiple_of(2) {
            content[position] ^= 0xff;
        } else {
            content.truncate(position);
        }
        std::fs::write(path, content)?;
        self.recorder.note(format!("damaged: {}", path.display()));
        Ok(())
    }
}

/// Returns the files below a folder, which may be missing.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}
