//! A notification by a command: one process for each message, in their order, each in a process group of its own.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use proviso_core::configuration::{Answer, Reply};
use proviso_delivery::{MAX_OUTPUT, with_output};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::{Instant, timeout, timeout_at};

/// The argument before the message, by which a script distinguishes notifications (ONAP DCAE).
const ARGUMENT: &str = "policies";
/// The time for which the output of a command is read after its end: a process in the background may keep the output open.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(250);

/// Runs the command with each message, until an answer does not accept its message. `limit` is the time limit of all commands together. A command that is not done in time is killed with its
/// process group, and so is a command whose future is dropped.
pub async fn run(command: &[String], messages: &[String], limit: Duration) -> Reply {
    let end = Instant::now() + limit;
    for (accepted, message) in messages.iter().enumerate() {
        let answer = match timeout_at(end, run_one(command, message)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let program = command.first().map(String::as_str).unwrap_or_default();
                Answer::Unknown(format!("cannot run {program}: {error}"))
            }
            Err(_) => Answer::Unknown(format!("the command was not done within {} s, and was killed", limit.as_secs())),
        };
        if answer != Answer::Accepted {
            return Reply { accepted, answer };
        }
    }
    Reply { accepted: messages.len(), answer: Answer::Accepted }
}

async fn run_one(command: &[String], message: &str) -> io::Result<Answer> {
    let [program, arguments @ ..] = command else {
        return Err(io::Error::other("the command is empty"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .args([ARGUMENT, message])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let status = {
        let mut reading = pin!(async { tokio::join!(read(stdout, &mut output), read(stderr, &mut errors)) });
        let (status, is_read) = tokio::select! {
            status = child.wait() => (status?, false),
            // The outputs of a process that goes on may end before the process.
            _ = &mut reading => (child.wait().await?, true),
        };
        // The group may go on without the command: a script may start its component in the background.
        group.0 = None;
        if !is_read {
            let _ = timeout(OUTPUT_TIMEOUT, reading).await;
        }
        status
    };
    // The errors explain a refusal.
    let text = if errors.iter().all(u8::is_ascii_whitespace) { output } else { errors };
    Ok(with_output(answer(status), &text))
}

fn answer(status: ExitStatus) -> Answer {
    match (status.code(), status.signal()) {
        (Some(code), _) => Answer::of_exit_code(code),
        (None, signal) => Answer::Unknown(format!("the signal {} ended the command", signal.unwrap_or_default())),
    }
}

/// Reads an output until its end, so that the command never waits for its reader. Keeps the beginning.
async fn read(stream: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut stream) = stream else { return };
    let mut buffer = [0; 4096];
    // An output that cannot be read any more has ended.
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = MAX_OUTPUT.saturating_sub(kept.len());
        kept.extend(buffer.iter().take(count.min(room)));
    }
}

/// The process group of a command that has not ended. Kills the group when it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group has no process any more if the command has just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    async fn shell(script: &str, messages: &[&str], limit: Duration) -> Reply {
        let command = ["sh", "-c", script, "sh"].map(ToOwned::to_owned);
        let messages: Vec<_> = messages.iter().map(|message| (*message).to_owned()).collect();
        run(&command, &messages, limit).await
    }

    #[tokio::test]
    async fn each_message_runs_the_command_until_one_is_not_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let script = format!("echo \"$1 $2\" >> {}; test \"$2\" != stop", log.display());
        assert_eq!(shell(&script, &["a", "b"], LIMIT).await, Reply { accepted: 2, answer: Answer::Accepted });
        let stopped = Reply { accepted: 1, answer: Answer::of_exit_code(1) };
        assert_eq!(shell(&script, &["c", "stop", "d"], LIMIT).await, stopped);
        assert_eq!(std::fs::read_to_string(log).unwrap(), "policies a\npolicies b\npolicies c\npolicies stop\n");
    }

    #[tokio::test]
    async fn the_exit_code_and_the_output_are_the_answer() {
        let rejected = |text: &str| Reply::from(Answer::Rejected(text.to_owned()));
        let unknown = |text: &str| Reply::from(Answer::Unknown(text.to_owned()));
        for (script, wanted) in [
            ("echo out; echo 'too large' >&2; exit 3", rejected("exit code 3: too large")),
            ("echo out; exit 125", rejected("exit code 125: out")),
            ("exit 127", unknown("exit code 127")),
            ("kill -9 $$", unknown("the signal 9 ended the command")),
            ("cat; exit 1", rejected("exit code 1")),
            // More output than a pipe has room for.
            ("head -c 1000000 /dev/zero; exit 0", Reply { accepted: 1, answer: Answer::Accepted }),
        ] {
            assert_eq!(shell(script, &["{}"], LIMIT).await, wanted, "{script}");
        }
        let answer = run(&["/nowhere/reconfigure".to_owned()], &["{}".to_owned()], LIMIT).await.answer;
        assert!(matches!(&answer, Answer::Unknown(text) if text.starts_with("cannot run /nowhere/reconfigure: ")));
    }

    #[tokio::test]
    async fn a_hanging_command_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", child.display());
        let answer = shell(&script, &["{}"], Duration::from_secs(2)).await.answer;
        assert_eq!(answer, Answer::Unknown("the command was not done within 2 s, and was killed".to_owned()));
        let pid = std::fs::read_to_string(child).unwrap().trim().to_owned();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let deadline = Instant::now() + LIMIT;
        // A process that nobody waits for stays as a zombie.
        while !state().is_empty() && !state().contains(") Z") {
            assert!(Instant::now() < deadline, "the child of the command goes on: {}", state());
            tokio::task::yield_now().await;
        }
    }
}
