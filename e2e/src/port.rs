//! Reserves free ports for programs that cannot report a port that they choose themselves.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A port of loopback. No other run of this harness uses it until this value is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A locked file: the lock is the reservation, and ends with the process at the latest.
    _reservation: File,
}

impl Port {
    /// Reserves a port. The range is below the ephemeral ports of the kernel and the node ports of Services, and above the
    /// fixed ports of kubelet, kube-proxy and kube-scheduler.
    ///
    /// # Errors
    /// If no port is free, or the file of a reservation cannot be created.
    pub fn reserve() -> Result<Self> {
        // Each user has a folder, because a user may not lock the files of another.
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

    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}
