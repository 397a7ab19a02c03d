//! The threads of interpreters. A thread can be demoted to the lowest CPU priority while it runs. Linux does not permit to raise the
//! priority again, so a demoted thread ends after its job, and is not reused. (The blocking threads of tokio are always reused.)

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

struct IdleThread {
    number: u64,
    sender: Sender<Task>,
}

struct Task {
    job: Job,
    state: Arc<Mutex<State>>,
}

/// The state of a job.
enum State {
    Waiting,
    Running { thread: platform::Thread, is_demoted: bool },
    Ended,
}

/// A job that waits for its thread, runs, or has ended.
pub(super) struct Running(Arc<Mutex<State>>);

impl Running {
    /// Gives the thread of the job the lowest CPU priority: it runs when a CPU has nothing else to do. Has no effect after the job.
    pub(super) fn demote(&self) {
        // The lock keeps the thread from ending meanwhile.
        if let State::Running { thread, is_demoted } = &mut *lock(&self.0) {
            *is_demoted = platform::demote(*thread);
        }
    }
}

/// Runs a job on an idle thread or a new one.
///
/// # Errors
/// Returns an error if no thread can be started.
pub(super) fn spawn(job: Job) -> io::Result<Running> {
    let state = Arc::new(Mutex::new(State::Waiting));
    let mut task = Task { job, state: Arc::clone(&state) };
    let class = usize::from(platform::is_idle_class());
    let idle = lock(&IDLE[class]).pop();
    if let Some(thread) = idle {
        match thread.sender.send(task) {
            Ok(()) => return Ok(Running(state)),
            Err(unsent) => task = unsent.0,
        }
    }
    thread::Builder::new().name("interpreter".into()).spawn(move || work(class, task))?;
    Ok(Running(state))
}

/// Gives this thread, and the threads that it starts later, the lowest CPU priority: on Linux the scheduling policy `SCHED_IDLE`. The
/// scheduler treats a CPU that only runs such threads as idle, so another thread gets it at once. With nice 19 instead, the other
/// thread would wait for the end of the time slice. Returns false if that fails, or if the platform has no such priority.
pub fn demote_this_thread() -> bool {
    platform::demote(platform::current())
}

/// Runs jobs until the thread is demoted, or has been idle for long.
fn work(class: usize, mut task: Task) {
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel();
    while !run(task) {
        let idle = IdleThread { number, sender: sender.clone() };
        let Some(next) = wait(&IDLE[class], idle, &receiver) else { return };
        task = next;
    }
}

/// Waits for the next task of an idle thread. Returns `None` if none comes, or if there are many idle threads.
fn wait(idle: &Mutex<Vec<IdleThread>>, thread: IdleThread, tasks: &Receiver<Task>) -> Option<Task> {
    let number = thread.number;
    {
        let mut idle = lock(idle);
        if idle.len() >= MAX_IDLE {
            return None;
        }
        idle.push(thread);
    }
    if let Ok(task) = tasks.recv_timeout(KEEP_ALIVE) {
        return Some(task);
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
    tasks.recv().ok()
}

/// Runs a job. Returns true if its thread was demoted.
fn run(Task { job, state }: Task) -> bool {
    *lock(&state) = State::Running { thread: platform::current(), is_demoted: false };
    job();
    matches!(std::mem::replace(&mut *lock(&state), State::Ended), State::Running { is_demoted: true, .. })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
mod platform {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadId, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id, thread_schedule_policy,
    };

    const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

    pub(super) type Thread = ThreadId;

    pub(super) fn current() -> Thread {
        thread_native_id()
    }

    /// Sets the scheduling policy `SCHED_IDLE`. Returns false if that fails.
    pub(super) fn demote(thread: Thread) -> bool {
        set_thread_priority_and_policy(thread, ThreadPriority::Min, IDLE)
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
    pub(super) type Thread = ();

    pub(super) fn current() -> Thread {}

    pub(super) fn demote((): Thread) -> bool {
        false
    }

    pub(super) fn is_idle_class() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread_of(
        job: impl FnOnce(Sender<thread::ThreadId>) + Send + 'static,
    ) -> (Running, mpsc::Receiver<thread::ThreadId>) {
        let (sender, receiver) = mpsc::channel();
        (spawn(Box::new(move || job(sender))).unwrap(), receiver)
    }

    #[test]
    fn a_demoted_thread_ends_after_its_job() {
        let (ready, started) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (running, receiver) = thread_of(move |sender| {
            ready.send(()).unwrap();
            let _ = released.recv();
            sender.send(thread::current().id()).unwrap();
        });
        started.recv().unwrap();
        running.demote();
        drop(release);
        let demoted = receiver.recv().unwrap();
        for _ in 0..10 {
            let (_running, receiver) = thread_of(|sender| {
                assert!(!platform::is_idle_class(), "the thread of the next job has the normal priority");
                sender.send(thread::current().id()).unwrap();
            });
            assert_ne!(receiver.recv().unwrap(), demoted);
        }
        running.demote();
    }
}
