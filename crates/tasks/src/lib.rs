//! Long-lived tasks whose panic ends the process. Tokio catches the panic of a task: without this crate, the process would
//! continue without the task, and its probes would still succeed. Kubernetes starts the container again, and the other
//! replicas answer in the meantime.
//!
//! Work that may fail alone, such as one request or one evaluation, does not use this crate.

use tokio::task::JoinHandle;

/// The exit code of a process that a panic ended. Rust programs whose main thread panics have the same code.
const EXIT_CODE: i32 = 101;

/// Spawns a task whose panic ends the process with code 101. `name` names the task in the log.
pub fn spawn<T: Send + 'static>(name: &'static str, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(exit_on_panic(name, task))
}

/// Runs a future whose panic ends the process with code 101. `name` names the future in the log.
pub async fn exit_on_panic<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    let _guard = ExitOnPanic(name);
    task.await
}

/// Ends the process if a panic drops this value. The panic hook has printed the message of the panic before.
struct ExitOnPanic(&'static str);

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.0, "a task panicked: the process exits");
            std::process::exit(EXIT_CODE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// The variable that makes a test program run a case, instead of the test that starts it.
    const CASE: &str = "PROVISO_TASKS_CASE";
    /// The exit code of a case whose process survived.
    const SURVIVED: i32 = 0;
    const TEST: &str = "tests::a_panic_of_a_long_lived_task_ends_the_process";

    async fn panicking() {
        tokio::task::yield_now().await;
        panic!("the case panics");
    }

    /// Runs a case in this process, which the test has started for it.
    fn run(case: &str) -> ! {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let handle = match case {
            "supervised" => spawn("panicking", panicking()),
            "aborted" => {
                let handle = spawn("pending", pending::<()>());
                handle.abort();
                handle
            }
            _ => tokio::spawn(panicking()),
        };
        let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), handle).await });
        assert!(ended.is_ok(), "the task still runs");
        std::process::exit(SURVIVED)
    }

    #[test]
    fn a_panic_of_a_long_lived_task_ends_the_process() {
        if let Ok(case) = std::env::var(CASE) {
            run(&case);
        }
        for (case, wanted) in [("supervised", EXIT_CODE), ("aborted", SURVIVED), ("unsupervised", SURVIVED)] {
            let program = std::env::current_exe().unwrap();
            let output = Command::new(program).args(["--exact", TEST, "--nocapture"]).env(CASE, case).output().unwrap();
            assert_eq!(output.status.code(), Some(wanted), "{case}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
