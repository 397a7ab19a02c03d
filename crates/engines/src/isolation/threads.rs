//! The threads of interpreters. A thread can demote itself to the lowest CPU priority. Linux does not permit to raise the priority again,
//! so a demoted thread ends after its job, and is not reused. (The blocking threads of tokio are always reused.)

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The time for which an idle thread waits for the next job.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The maximum number of idle threads of a class.
const MAX_IDLE: usize = 64;

/// The work of a thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The idle threads: those of the normal CPU priority, and those that a thread of the lowest priority has started, which inherit it.
static IDLE: [Mutex<Vec<IdleThread>>; 2] = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
/// The number of threads so far.
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_DEMOTED: Cell<bool> = const { Cell::new(false) };
}

struct IdleThread {
    number: u64,
    sender: Sender<Job>,
}

/// Runs a job on an idle thread or a new one.
///
/// # Errors
/// Returns an error if no thread can be started.
pub(super) fn spawn(mut job: Job) -> io::Result<()> {
    let class = usize::from(platform::is_idle_class());
    let idle = lock(&IDLE[class]).pop();
    if let Some(thread) = idle {
        match thread.sender.send(job) {
            Ok(()) => return Ok(()),
            Err(unsent) => job = unsent.0,
        }
    }
    thread::Builder::new().name("interpreter".into()).spawn(move || work(class, job))?;
    Ok(())
}

/// Gives this thread, and the threads that it starts later, the lowest CPU priority: on Linux the scheduling policy `SCHED_IDLE`. The
/// scheduler treats a CPU that only runs such threads as idle, so another thread gets it at once. With nice 19 instead, the other
/// thread would wait for the end of the time slice. Returns false if that fails, or if the platform has no such priority.
#[expect(clippy::must_use_candidate, reason = "a thread that keeps its priority works too")]
pub fn demote_this_thread() -> bool {
    let is_demoted = platform::demote();
    IS_DEMOTED.set(is_demoted);
    is_demoted
}

/// Returns true if this thread has demoted itself.
pub(super) fn is_demoted() -> bool {
    IS_DEMOTED.get()
}

/// Runs jobs until one demotes the thread, or the thread has been idle for long.
fn work(class: usize, mut job: Job) {
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel();
    loop {
        job();
        if is_demoted() {
            return;
        }
        let idle = IdleThread { number, sender: sender.clone() };
        let Some(next) = wait(&IDLE[class], idle, &receiver) else { return };
        job = next;
    }
}

/// Waits for the next job of an idle thread. Returns `None` if none comes, or if there are many idle threads.
fn wait(idle: &Mutex<Vec<IdleThread>>, thread: IdleThread, jobs: &Receiver<Job>) -> Option<Job> {
    let number = thread.number;
    {
        let mut idle = lock(idle);
        if idle.len() >= MAX_IDLE {
            return None;
        }
        idle.push(thread);
    }
    if let Ok(job) = jobs.recv_timeout(KEEP_ALIVE) {
        return Some(job);
    }
    {
        let mut idle = lock(idle);
        let before = idle.len();
        idle.retain(|thread| thread.number != number);
        if idle.len() < before {
            return None;
        }
    }
    // Another thread has just taken the sender.
    jobs.recv().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
mod platform {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id, thread_schedule_policy,
    };

    const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

    /// Sets the scheduling policy `SCHED_IDLE` for this thread. Returns false if that fails.
    pub(super) fn demote() -> bool {
        set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, IDLE)
            .inspect_err(|error| tracing::debug!(%error, "cannot lower the CPU priority of a thread"))
            .is_ok()
    }

    /// Returns true if this thread has the lowest CPU priority.
    pub(super) fn is_idle_class() -> bool {
        thread_local! {
            // A thread gets its priority before it runs tasks.
            static IS_IDLE: bool = thread_schedule_policy().is_ok_and(|policy| policy == IDLE);
        }
        IS_IDLE.with(|is_idle| *is_idle)
    }
}

/// Only Linux has such a priority.
#[cfg(not(target_os = "linux"))]
mod platform {
    pub(super) fn demote() -> bool {
        false
    }

    pub(super) fn is_idle_class() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a job. Returns its thread and its result.
    fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> (thread::ThreadId, T) {
        let (sender, receiver) = mpsc::channel();
        let job = move || sender.send((thread::current().id(), job())).unwrap();
        spawn(Box::new(job)).unwrap();
        receiver.recv().unwrap()
    }

    #[test]
    fn a_demoted_thread_ends_after_its_job() {
        let (demoted, is_demoted) = run(demote_this_thread);
        assert!(is_demoted);
        for _ in 0..10 {
            let (next, is_idle_class) = run(platform::is_idle_class);
            assert_ne!(next, demoted);
            assert!(!is_idle_class, "the thread of the next job has the normal priority");
        }
    }
}
