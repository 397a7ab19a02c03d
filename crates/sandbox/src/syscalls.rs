//! The system calls of a job: those of a computation with threads. All others fail with "not permitted". `clone3` fails with "not
//! implemented", as on an older kernel, so that the C library starts threads by `clone`, whose arguments a filter can check.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// The calls that are allowed with all arguments. None of them opens a file, a socket or a process.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, and waiting for them.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_nanosleep,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Signals to itself, and their handlers.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Facts about the process and the machine.
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettimeofday,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// The calls that use an open file, with the index of the argument that is its number: stdin, stdout, stderr, and files in memory.
const ON_FILES: &[(libc::c_long, u8)] = &[
    (libc::SYS_close, 0),
    (libc::SYS_dup, 0),
    (libc::SYS_dup3, 0),
    (libc::SYS_fcntl, 0),
    (libc::SYS_fstat, 0),
    (libc::SYS_ftruncate, 0),
    (libc::SYS_lseek, 0),
    (libc::SYS_mmap, 4),
    (libc::SYS_pread64, 0),
    (libc::SYS_pwrite64, 0),
    (libc::SYS_read, 0),
    (libc::SYS_readv, 0),
    (libc::SYS_write, 0),
    (libc::SYS_writev, 0),
];

/// The older forms of calls, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_BY_ARCHITECTURE: &[libc::c_long] =
    &[libc::SYS_arch_prctl, libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BY_ARCHITECTURE: &[libc::c_long] = &[];

/// Restricts this thread, and the threads that it starts. The files with the numbers `inherited` cannot be used. Returns false if
/// the kernel has no seccomp.
pub(crate) fn restrict(inherited: &[u32]) -> io::Result<bool> {
    // The second filter would not allow to apply another one.
    for filter in [without_clone3(), filter(inherited)] {
        match seccompiler::apply_filter(&filter.map_err(io::Error::other)?) {
            Ok(()) => {}
            Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error)) if is_unsupported(&error) => {
                return Ok(false);
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(true)
}

/// Returns a filter that lets `clone3` fail, and allows all other calls.
fn without_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, missing, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Returns true if the kernel was built without seccomp, or the container's own filter refuses the call.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM | libc::EACCES))
}

/// Returns the filter that allows the calls of a job. The filter [`without_clone3`] refuses `clone3` before.
fn filter(inherited: &[u32]) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_BY_ARCHITECTURE).map(|call| (*call, Vec::new())).collect();
    let argument = |index, operator, value| SeccompCondition::new(index, SeccompCmpArgLen::Qword, operator, value);
    for (call, index) in ON_FILES {
        let is_other =
            |number: &u32| SeccompCondition::new(*index, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(*number));
        let others = inherited.iter().map(is_other).collect::<Result<Vec<_>, _>>()?;
        let rules_of_call = if others.is_empty() { Vec::new() } else { vec![SeccompRule::new(others)?] };
        rules.insert(*call, rules_of_call);
    }
    // Threads, and no processes.
    let thread = u64::try_from(libc::CLONE_THREAD).unwrap_or_default();
    let is_thread = argument(0, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    // Signals to this process only, such as the one of `abort`.
    let own = argument(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    // The limits of this process, which cannot be raised.
    let own = argument(0, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![own])?]);
    // The names of threads and of their memory.
    let options = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| u64::try_from(option).unwrap_or_default());
    let options = options.map(|option| SeccompRule::new(vec![argument(0, SeccompCmpOp::Eq, option)?]));
    rules.insert(libc::SYS_prctl, options.into_iter().collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_clone3, Vec::new());
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// Reads one byte of each file in a thread that cannot use the inherited file.
    #[test]
    fn an_inherited_file_cannot_be_used_and_others_can() {
        let open = || File::open("/proc/self/exe").unwrap();
        let (mut inherited, mut own) = (open(), open());
        let number = u32::try_from(inherited.as_raw_fd()).unwrap();
        let read = std::thread::spawn(move || {
            assert!(restrict(&[number]).unwrap(), "this kernel has no seccomp");
            [&mut inherited, &mut own].map(|file| file.read(&mut [0]).map_err(|error| error.raw_os_error()))
        });
        assert_eq!(read.join().unwrap(), [Err(Some(libc::EPERM)), Ok(1)]);
    }
}
