//! The defences with which a child process confines itself before it reads its input.

use std::fs;
use std::io;
use std::time::Duration;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetStatus,
    Scope,
};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::syscalls;

/// The newest version of Landlock whose restrictions are known here. Older kernels have some of them.
const LANDLOCK: ABI = ABI::V7;
/// The maximum number of open files. A compiler opens a few memory files.
const MAX_OPEN_FILES: u64 = 64;

/// A defence that depends on the kernel. All kernels have the limits of memory and time, and the empty environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defence {
    /// Landlock: the process has no access to files, TCP ports, and sockets and processes outside of its sandbox.
    Landlock,
    /// Seccomp: the process has only the system calls of a computation. It cannot open files or sockets, use files that its parent has
    /// left open, or start programs.
    Seccomp,
}

impl Defence {
    /// All defences.
    pub const ALL: [Self; 2] = [Self::Landlock, Self::Seccomp];

    /// Returns the name of the defence in logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp",
        }
    }
}

/// Confines this process, which has one thread. Returns the defences that the kernel does not have.
pub(crate) fn confine(memory_mib: u32, time: Duration, defences: &[Defence]) -> io::Result<Vec<Defence>> {
    limit(memory_mib, time)?;
    let inherited = inherited_files()?;
    // A program that this process starts would not get more permissions, such as those of a setuid program.
    rustix::thread::set_no_new_privs(true)?;
    let mut missing = Vec::new();
    for defence in defences {
        let is_there = match defence {
            Defence::Landlock => restrict_files_and_networks()?,
            Defence::Seccomp => syscalls::restrict(&inherited)?,
        };
        if !is_there {
            missing.push(*defence);
        }
    }
    Ok(missing)
}

fn limit(memory_mib: u32, time: Duration) -> io::Result<()> {
    let set = |resource, limit| {
        let limit = Some(limit);
        setrlimit(resource, Rlimit { current: limit, maximum: limit })
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    set(Resource::Data, u64::from(memory_mib) << 20)?;
    // The parent kills this process earlier. This limit is for a process whose parent has died.
    set(Resource::Cpu, (time.as_secs() + 1) * cpus)?;
    set(Resource::Core, 0)?;
    set(Resource::Nofile, MAX_OPEN_FILES)?;
    Ok(())
}

/// Returns the numbers of the open files except stdin, stdout and stderr. The parent opens its files with `O_CLOEXEC`, but it may
/// have inherited others.
fn inherited_files() -> io::Result<Vec<u32>> {
    let listed: Vec<u32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    // The folder was in its own list, and is closed now.
    Ok(listed.into_iter().filter(|number| fs::read_link(format!("/proc/self/fd/{number}")).is_ok()).collect())
}

/// Gives up all access to files, networks and other processes. Returns false if the kernel has no Landlock.
fn restrict_files_and_networks() -> io::Result<bool> {
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK)))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(io::Error::other)?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}
