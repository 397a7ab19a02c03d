//! Runs one job of a program in a child process: the same program, with an internal command as its first argument. The child has
//! limits of memory and time, an empty environment, and no access to files, networks and other processes. It reads the input of
//! the job from stdin, and writes the output to stdout or the error to stderr.
//!
//! A job handles what somebody else wrote, such as a module or a policy. An error in a compiler then does not give its author
//! the permissions of the program.

mod child;
mod confine;
mod parent;
mod syscalls;

use std::time::Duration;

pub use child::{Failure, run_job};
pub use confine::Defence;
pub use parent::{Job, JobError};

/// The limits of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The memory for data, in MiB. The address space is not limited, because wasmtime reserves a lot of it and uses little.
    pub memory_mib: u32,
    /// The time from the start of the child process until its end. The CPU time of the process is limited too.
    pub time: Duration,
    /// The length of the output, in bytes.
    pub output: usize,
}
