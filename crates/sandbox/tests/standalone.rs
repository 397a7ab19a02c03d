//! Attacks of a job on the machine that it runs on. The child process is this test program, which runs one attack and prints its
//! result. Each attack is tried without a defence that depends on the kernel, to see that it works, and with each of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy knows only #[test] functions as tests")]

use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use libtest_mimic::{Arguments, Trial};
use proviso_sandbox::{Defence, Failure, Job, JobError, Limits, run_job};

/// The internal commands of this program, with the defences that depend on the kernel.
const DEFENCES: [(&str, &[Defence]); 4] = [
    ("without", &[]),
    ("with-landlock", &[Defence::Landlock]),
    ("with-seccomp", &[Defence::Seccomp]),
    ("with-all", &Defence::ALL),
];
const LIMITS: Limits = Limits { memory_mib: 256, time: Duration::from_mins(1), output: 1 << 20 };

fn main() -> ExitCode {
    for (command, defences) in DEFENCES {
        if let Some(code) = run_job(env::args_os(), command, defences, attack) {
            return code;
        }
    }
    let mut trials = vec![
        Trial::test("a_job_gets_its_input_and_returns_its_output", || echoes().map_err(Into::into)),
        Trial::test("a_job_computes_with_threads", || computes().map_err(Into::into)),
        Trial::test("a_job_has_no_environment", || has_no_environment().map_err(Into::into)),
        Trial::test("a_job_that_takes_too_much_memory_ends", || memory_is_limited().map_err(Into::into)),
        Trial::test("a_job_that_takes_too_long_ends", || time_is_limited().map_err(Into::into)),
        Trial::test("a_job_with_a_long_output_fails", || output_is_limited().map_err(Into::into)),
        Trial::test("a_job_that_fails_has_a_message", || fails().map_err(Into::into)),
    ];
    trials.extend([
        Trial::test("a_job_cannot_read_a_service_account_token", || token().map_err(Into::into)),
        Trial::test("a_job_cannot_write_a_file", || write().map_err(Into::into)),
        Trial::test("a_job_cannot_connect_to_a_port", || connect().map_err(Into::into)),
        Trial::test("a_job_cannot_listen_on_a_port", || refused("listen", "", &Defence::ALL).map_err(Into::into)),
        Trial::test("a_job_cannot_start_a_program", || refused("spawn", "", &Defence::ALL).map_err(Into::into)),
        Trial::test("a_job_cannot_send_a_signal_to_its_parent", || signal().map_err(Into::into)),
    ]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The job: does what its first argument says with the second argument, and returns what it has achieved.
fn attack(arguments: &[String], input: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let [attack, about] = arguments else { return Err(Failure { code: 10, message: "two arguments".to_owned() }) };
    let refused = |error: std::io::Error| Failure { code: 20, message: error.to_string() };
    match attack.as_str() {
        "echo" => Ok(input),
        "compute" => {
            let threads: Vec<_> = (0..4_u64).map(|from| thread::spawn(move || (from..1000).sum::<u64>())).collect();
            let sums: Vec<u64> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            Ok(format!("{sums:?}").into_bytes())
        }
        "environment" => Ok(env::vars().map(|(name, _)| name).collect::<Vec<_>>().join(" ").into_bytes()),
        "read" => fs::read(about).map_err(refused),
        "write" => fs::write(about, "attacked").map(|()| Vec::new()).map_err(refused),
        "connect" => TcpStream::connect(about).map(|_| Vec::new()).map_err(refused),
        "listen" => TcpListener::bind("127.0.0.1:0").map(|_| Vec::new()).map_err(refused),
        "spawn" => Command::new("/bin/true").status().map(|_| Vec::new()).map_err(refused),
        "signal" => {
            let pid = rustix::process::Pid::from_raw(about.parse().unwrap()).unwrap();
            rustix::process::test_kill_process(pid).map(|()| Vec::new()).map_err(|error| refused(error.into()))
        }
        "memory" => {
            let blocks: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 1 << 20]).collect();
            Ok(blocks.len().to_string().into_bytes())
        }
        "loop" => loop {
            thread::sleep(Duration::from_millis(10));
        },
        "output" => Ok(vec![b'x'; LIMITS.output + 1]),
        other => Err(Failure { code: 10, message: format!("there is no attack {other}\nsecond line") }),
    }
}

fn run(command: &'static str, attack: &str, about: &str, limits: Limits, input: &[u8]) -> Result<Vec<u8>, JobError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let job = Job { command, arguments: vec![attack.to_owned(), about.to_owned()], limits };
    runtime.block_on(job.run(input))
}

fn text(command: &'static str, attack: &str, about: &str) -> Result<String, String> {
    let output = run(command, attack, about, LIMITS, &[]).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(output).unwrap())
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Requires that an attack works without defences, fails with each of `defences` that this kernel has, and fails with all.
fn refused(attack: &str, about: &str, defences: &[Defence]) -> Result<(), String> {
    text("without", attack, about)
        .map_err(|error| format!("the attack does not even work without defences: {error}"))?;
    for (command, in_force) in DEFENCES.iter().filter(|(_, in_force)| !in_force.is_empty()) {
        let has_landlock = landlock_is_there();
        let expected = in_force
            .iter()
            .any(|defence| defences.contains(defence) && (*defence != Defence::Landlock || has_landlock));
        if !expected {
            #[allow(clippy::print_stderr, reason = "the log of the test says which defence it proves")]
            {
                eprintln!("{attack}: this kernel does not prove {in_force:?}");
            }
            continue;
        }
        match run(command, attack, about, LIMITS, &[]) {
            Err(JobError::Failed(Failure { code: 20, .. })) => {}
            other => return Err(format!("{attack} {command}: {other:?}")),
        }
    }
    Ok(())
}

fn landlock_is_there() -> bool {
    use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

fn echoes() -> Result<(), String> {
    let input = vec![b'a'; 512 * 1024];
    let output = run("with-all", "echo", "", LIMITS, &input).map_err(|error| error.to_string())?;
    check(output == input, || format!("{} bytes", output.len()))
}

fn computes() -> Result<(), String> {
    let sums = text("with-all", "compute", "")?;
    check(sums == "[499500, 499500, 499499, 499497]", || sums)
}

fn has_no_environment() -> Result<(), String> {
    check(env::vars().next().is_some(), || "the parent has none either".to_owned())?;
    let names = text("with-all", "environment", "")?;
    check(names.is_empty(), || names)
}

fn memory_is_limited() -> Result<(), String> {
    let result = run("with-all", "memory", "", LIMITS, &[]);
    check(matches!(result, Err(JobError::Memory(256))), || format!("{result:?}"))
}

fn time_is_limited() -> Result<(), String> {
    let started = Instant::now();
    let time = Duration::from_millis(300);
    let result = run("with-all", "loop", "", Limits { time, ..LIMITS }, &[]);
    check(matches!(result, Err(JobError::Timeout(limit)) if limit == time), || format!("{result:?}"))?;
    check(started.elapsed() < Duration::from_secs(30), || format!("it took {:?}", started.elapsed()))
}

fn output_is_limited() -> Result<(), String> {
    let result = run("with-all", "output", "", LIMITS, &[]);
    check(matches!(result, Err(JobError::Output(limit)) if limit == LIMITS.output), || format!("{result:?}"))
}

fn fails() -> Result<(), String> {
    let result = run("with-all", "nothing", "", LIMITS, &[]);
    let Err(JobError::Failed(failure)) = result else { return Err(format!("{result:?}")) };
    let expected = Failure { code: 10, message: "there is no attack nothing\nsecond line".to_owned() };
    check(failure == expected, || format!("{failure:?}"))
}

fn token() -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    // As in a container: /var/run/secrets/kubernetes.io/serviceaccount/token.
    let token = folder.path().join("serviceaccount/token");
    fs::create_dir(token.parent().unwrap()).unwrap();
    fs::write(&token, "secret").unwrap();
    let token = token.to_str().unwrap();
    check(text("without", "read", token)? == "secret", || "another content".to_owned())?;
    refused("read", token, &Defence::ALL)?;
    refused("read", "/proc/self/environ", &Defence::ALL)
}

fn write() -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    refused("write", folder.path().join("file").to_str().unwrap(), &Defence::ALL)
}

fn connect() -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Landlock knows TCP since Linux 6.7.
    refused("connect", &listener.local_addr().unwrap().to_string(), &[Defence::Seccomp])
}

fn signal() -> Result<(), String> {
    refused("signal", &std::process::id().to_string(), &[Defence::Seccomp])
}
