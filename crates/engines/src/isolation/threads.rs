//! The threads of interpreters. A thread can demote itself to the lowest CPU priority, or be demoted while it runs. Linux does not permit
//! to raise the priority again, so a demoted thread ends after its job, and is not reused. (The blocking threads of tokio are always
//! reused.)

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

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
    /// True if the thread has demoted itself.
    static IS_DEMOTED: Cell<bool> = const { Cell::new(false) };
}

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
    Running {
        thread: platform::Thread,
        /// The CPU time of the thread when the job began.
        cpu_time: Duration,
        is_demoted: bool,
    },
    Ended,
}

/// A job that waits for its thread, runs, or has ended.
pub(super) struct Running(Arc<Mutex<State>>);

impl Running {
    /// Gives the thread of the job the lowest CPU priority, if the job has taken this CPU time. Returns true if that is done, or if the job
    /// has ended.
    pub(super) fn demote_after(&self, cpu_time: Duration) -> bool {
        // The lock keeps the thread from another job meanwhile.
        match &mut *lock(&self.0) {
            State::Waiting => false,
            State::Running { thread, cpu_time: before, is_demoted } => {
                let used = platform::cpu_time_of(thread).map(|now| now.saturating_sub(*before));
                *is_demoted |= used.is_none_or(|used| used >= cpu_time) && platform::demote(thread);
                *is_demoted
            }
            State::Ended => true,
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
#[expect(clippy::must_use_candidate, reason = "a thread that keeps its priority works too")]
pub fn demote_this_thread() -> bool {
    let is_demoted = platform::demote(&platform::current());
    IS_DEMOTED.set(is_demoted);
    is_demoted
}

/// Returns true if this thread has the lowest CPU priority: by itself, or from the thread that started it.
pub(crate) fn has_lowest_priority() -> bool {
    IS_DEMOTED.get() || platform::is_idle_class()
}

/// Lets other threads run. A thread that becomes ready does not always interrupt one of the lowest priority, but then waits for the end of
/// its slice.
pub(crate) fn yield_cpu() {
    thread::yield_now();
}

/// Returns the CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Runs jobs until one demotes the thread, or the thread has been idle for long.
fn work(class: usize, mut task: Task) {
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel();
    while !run(task) {
        let idle = IdleThread { number, sender: sender.clone() };
        let Some(next) = wait(&IDLE[class], idle, &receiver) else { return };
        task = next;
    }
}

/// Runs a job. Returns true if its thread was demoted.
fn run(Task { job, state }: Task) -> bool {
    *lock(&state) = State::Running { thread: platform::current(), cpu_time: cpu_time(), is_demoted: false };
    job();
    let ended = std::mem::replace(&mut *lock(&state), State::Ended);
    IS_DEMOTED.get() || matches!(ended, State::Running { is_demoted: true, .. })
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
mod platform {
    use std::time::Duration;

    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadId, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id, thread_schedule_policy, thread_schedule_policy_param,
    };

    const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

    pub(super) struct Thread {
        thread: ThreadId,
        id: i32,
    }

    pub(super) fn current() -> Thread {
        Thread { thread: thread_native_id(), id: rustix::thread::gettid().as_raw_nonzero().get() }
    }

    /// Sets the scheduling policy `SCHED_IDLE`. Returns false if that fails.
    pub(super) fn demote(thread: &Thread) -> bool {
        let result = set_thread_priority_and_policy(thread.thread, ThreadPriority::Min, IDLE);
        // The library also sets the nice value, which may fail, and has no effect with this policy.
        if result.is_ok() || thread_schedule_policy_param(thread.thread).is_ok_and(|(policy, _)| policy == IDLE) {
            return true;
        }
        tracing::debug!(error = ?result.err(), "cannot lower the CPU priority of a thread");
        false
    }

    /// Returns the CPU time of a thread, which runs or has just run; `None` if it cannot be read.
    pub(super) fn cpu_time_of(thread: &Thread) -> Option<Duration> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", thread.id)).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    /// Returns true if this thread has had the lowest CPU priority from its beginning.
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
    use std::time::Duration;

    pub(super) struct Thread;

    pub(super) fn current() -> Thread {
        Thread
    }

    pub(super) fn demote(_: &Thread) -> bool {
        false
    }

    pub(super) fn cpu_time_of(_: &Thread) -> Option<Duration> {
        None
    }

    pub(super) fn is_idle_class() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Duration = Duration::from_mins(1);

    /// Runs a job. Returns its thread and its result.
    fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> (thread::ThreadId, T) {
        let (sender, receiver) = mpsc::channel();
        let job = move || sender.send((thread::current().id(), job())).unwrap();
        spawn(Box::new(job)).unwrap();
        receiver.recv().unwrap()
    }

    /// Asserts that the threads of later jobs have the normal priority, and that this one is not among them.
    fn assert_ended(demoted: thread::ThreadId) {
        for _ in 0..10 {
            let (next, is_idle_class) = run(platform::is_idle_class);
            assert_ne!(next, demoted);
            assert!(!is_idle_class, "the thread of the next job has the normal priority");
        }
    }

    #[test]
    fn a_thread_that_demotes_itself_ends_after_its_job() {
        let (demoted, is_demoted) = run(demote_this_thread);
        assert!(is_demoted);
        assert_ended(demoted);
    }

    #[test]
    fn a_job_is_demoted_when_it_has_taken_the_cpu_time_and_its_thread_ends_after_it() {
        let (release, released) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let job = move || {
            sender.send(thread::current().id()).unwrap();
            let until = cpu_time() + Duration::from_millis(50);
            while cpu_time() < until {}
            let _ = released.recv();
            sender.send(thread::current().id()).unwrap();
        };
        let running = spawn(Box::new(job)).unwrap();
        receiver.recv().unwrap();
        assert!(!running.demote_after(AMPLE));
        while !running.demote_after(Duration::from_millis(20)) {
            thread::yield_now();
        }
        drop(release);
        assert_ended(receiver.recv().unwrap());
        assert!(running.demote_after(AMPLE), "it has ended");
    }
}
