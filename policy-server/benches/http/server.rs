//! Server processes for benchmarks: the policy server over a folder, or another server.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::{Load, Sample};

/// A waPC module that accepts everything without reading it.
pub const NOTHING: &str = r#"(module
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "{\"accepted\":true}{\"valid\":true}")
    (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
        (if (i32.eq (local.get $operation_length) (i32.const 17))
            (then (call $respond (i32.const 17) (i32.const 14)))
            (else (call $respond (i32.const 0) (i32.const 17))))
        (i32.const 1)))"#;

pub fn env_number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path)
}

/// Returns a review of 4 KB as an API server sends it, without the white space of the recorded file.
pub fn review() -> Vec<u8> {
    let readable = std::fs::read(example("reviews/pod-create.json")).expect("a recorded review");
    let review: Value = serde_json::from_slice(&readable).expect("a review");
    review.to_string().into_bytes()
}

/// Returns rules that cover every request.
pub fn rules() -> Value {
    json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}])
}

/// Writes a certificate and its key to the folder, and creates the folder of manifests in it.
pub fn folder(folder: &Path) -> PathBuf {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(folder.join("tls.crt"), certified.cert.pem()).expect("tls.crt");
    std::fs::write(folder.join("tls.key"), certified.signing_key.serialize_pem()).expect("tls.key");
    let manifests = folder.join("manifests");
    std::fs::create_dir(&manifests).expect("the folder of manifests");
    manifests
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A server process. Dropping the value kills the process.
pub struct Server {
    process: Child,
    pub address: String,
}

impl Server {
    /// Starts a build of the policy server over a [`folder`].
    pub fn policy_server(program: &Path, folder: &Path) -> Self {
        Self::policy_server_by(Command::new(program), folder)
    }

    /// Starts a policy server over a [`folder`] by a command that runs the program with the arguments that are added.
    pub fn policy_server_by(mut command: Command, folder: &Path) -> Self {
        Self::start(
            command
                .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"])
                .arg("--manifests")
                .arg(folder.join("manifests"))
                .arg("--tls-cert")
                .arg(folder.join("tls.crt"))
                .arg("--tls-key")
                .arg(folder.join("tls.key")),
        )
    }

    /// Starts a server that writes a JSON line with its address, `https://…`, in the field `listen` to stderr.
    pub fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a server");
        let mut lines = BufReader::new(process.stderr.take().expect("its stderr")).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line).ok()?;
            Some(line["listen"].as_str()?.trim_start_matches("https://").to_owned())
        });
        // Read the rest of stderr, so that the pipe does not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: address.expect("the address of the server") }
    }
}

impl Server {
    pub fn measure(&self, load: &Load, path: &str, duration: Duration) -> Sample {
        let before = self.cpu();
        let mut sample = load.run(&self.address, path, duration);
        sample.cpu = self.cpu().saturating_sub(before);
        sample
    }

    /// Waits until the server has no work left. The evaluation of a request outlives a client that disconnects.
    pub fn until_idle(&self) {
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut before = Duration::MAX;
        loop {
            let cpu = self.cpu();
            if cpu == before {
                return;
            }
            assert!(Instant::now() < deadline, "the server is never idle");
            before = cpu;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the CPU time of the process.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("Linux");
        // Fields 14 and 15 of proc_pid_stat(5), in hundredths of a second. The name in field 2 may contain spaces, so start after
        // it.
        let fields = stat.rsplit(')').next().expect("fields").split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
