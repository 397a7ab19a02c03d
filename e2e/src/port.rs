//! Free ports for programs that do not say which port they took.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A port of loopback that no other run of this harness takes for as long as this lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// The lock of it is the reservation; it ends with the process at the latest.
    _reservation: File,
}

impl Port {
    /// Finds a port below those that the kernel hands out to outgoing connections and Kubernetes to Services, and above
    /// the fixed ones of kubelet, kube-proxy and kube-scheduler.
    pub fn reserve() -> Result<Self> {
        // Each user has one: nobody may lock the files of others.
        let user = rustix::process::geteuid().as_raw();
        let folder = std::env::temp_dir().join(format!("proviso-e2e-ports-{user}"));
        std::fs::create_dir_all(&folder)?;
        for _ in 0..1000 {
            let number = 11_000 + u16::try_from(getrandom::u32()? % 19_000)?;
            let reservation = File::create(folder.join(number.to_string()))?;
            let is_free = reservation.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
            if is_free {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        None.context("no port of loopback is free")
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}
