//! A real `policy-server` process over a temporary folder, and the requests of tests to it. The process ends with the test.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

pub mod cluster;
pub mod modules;
pub mod recording;
pub mod recording_proxy;
pub mod tls;
pub mod wapc;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// The time limit of waiting for a condition.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The variable of the CPU priority of previews. Servers of tests use the normal priority unless their command sets the variable:
/// at the idle priority, previews would not run on a busy machine.
pub const PREVIEW_PRIORITY: &str = "PROVISO_PREVIEW_PRIORITY";
/// A time limit of evaluations for a busy machine: an evaluation that takes more than some milliseconds gets the CPU time that others leave.
pub const PATIENT: [&str; 2] = ["--evaluation-timeout", "20s"];

pub struct Server {
    child: Child,
    pub folder: Folder,
    /// `127.0.0.1:port`
    pub listen: String,
    pub admin: String,
    pub stdout: Lines,
    pub stderr: Lines,
}

/// The lines that a process has written so far.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn follow(&self, stream: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<()> {
        let lines = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        })
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A temporary folder that contains the folders `manifests` and `state`.
pub struct Folder(Arc<TempDir>);

impl Folder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("manifests")).unwrap();
        Self(Arc::new(folder))
    }

    /// Returns the folder that contains `manifests` and `state`.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn manifests(&self) -> PathBuf {
        self.0.path().join("manifests")
    }

    pub fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Writes a file of the folder atomically, as an editor does.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.manifests().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, content).unwrap();
        std::fs::rename(temporary, path).unwrap();
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.manifests().join(name)).unwrap();
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// Returns the `response` of the review.
    pub fn response(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        serde_json::from_str::<Value>(&self.text).unwrap()["response"].clone()
    }

    pub fn is_allowed(&self) -> bool {
        self.response()["allowed"].as_bool().unwrap()
    }

    pub fn message(&self) -> String {
        self.response()["status"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Server {
    /// Starts a server over this folder and waits until it is ready.
    pub async fn start(folder: Folder, arguments: &[&str]) -> Self {
        let server = Self::spawn(folder, arguments).await;
        server.until("ready", async || server.get("/readyz").await.status == StatusCode::OK).await;
        server
    }

    /// Starts a server over this folder and waits until it listens.
    pub async fn spawn(folder: Folder, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_policy-server"));
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !arguments.contains(&PATIENT[0]) {
            command.args(PATIENT);
        }
        command
            .args(["--admin-listen", "127.0.0.1:0", "--log-format", "json", "--log", "debug"])
            .arg("--manifests")
            .arg(folder.manifests())
            .args(arguments);
        Self::run(command, folder).await
    }

    /// Runs the command of a server, which must log in JSON, and waits until the server listens.
    pub async fn run(mut command: Command, folder: Folder) -> Self {
        if !command.get_envs().any(|(name, _)| name == PREVIEW_PRIORITY) {
            command.env(PREVIEW_PRIORITY, "normal");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (Lines::default(), Lines::default());
        stdout.follow(child.stdout.take().unwrap());
        stderr.follow(child.stderr.take().unwrap());
        let mut server = Self { child, folder, listen: String::new(), admin: String::new(), stdout, stderr };
        let mut started = None;
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while started.is_none() {
            let ended = server.child.try_wait().unwrap();
            let may_start = ended.is_none() && Instant::now() < deadline;
            assert!(may_start, "the server does not start ({ended:?}): {:#?}", server.stderr.all());
            started = server.event("policy server started");
            pause().await;
        }
        let address =
            |name: &str| started.as_ref().unwrap()[name].as_str().unwrap().split_once("://").unwrap().1.to_owned();
        (server.listen, server.admin) = (address("listen"), address("admin"));
        server
    }

    /// Returns the first log line with this message.
    pub fn event(&self, message: &str) -> Option<Value> {
        self.events(message).into_iter().next()
    }

    /// Returns all log lines with this message.
    pub fn events(&self, message: &str) -> Vec<Value> {
        let lines = self.stderr.all().into_iter().filter_map(|line| serde_json::from_str(&line).ok());
        lines.filter(|line: &Value| line["message"] == message).collect()
    }

    /// Sends a review to a policy, for example to the path `/validate/cluster.a`.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.try_post(path, body).await.unwrap()
    }

    pub async fn try_post(&self, path: &str, body: impl Into<Bytes>) -> anyhow::Result<Answer> {
        ask(&self.listen, Method::POST, path, body.into()).await
    }

    /// Sends a complete request and returns without waiting for the answer.
    pub async fn begin(&self, path: &str, body: impl Into<Bytes>) -> JoinHandle<Answer> {
        let body = body.into();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            self.listen,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.listen).await.unwrap();
        stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        tokio::spawn(async move {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            parse_answer(&String::from_utf8(answer).unwrap())
        })
    }

    /// Returns the resident memory of the server, in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the resident memory of the server, in bytes.
    pub fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Sends a GET request to the admin port.
    pub async fn get(&self, path: &str) -> Answer {
        ask(&self.admin, Method::GET, path, Bytes::new()).await.unwrap()
    }

    /// Returns the text of `/readyz?verbose`.
    pub async fn details(&self) -> String {
        self.get("/readyz?verbose").await.text
    }

    /// Waits until `/readyz?verbose` contains this text.
    pub async fn until_details(&self, wanted: &str) {
        self.until(wanted, async || self.details().await.contains(wanted)).await;
    }

    /// Returns the sum of the series of a metric whose labels contain all of `labels`; 0 if there is no such series.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.get("/metrics").await.text;
        let sum: f64 = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        // The sum of an empty iterator is -0.
        sum + 0.0
    }

    /// Returns the same as [`Self::metric`], as an integer.
    pub async fn count(&self, name: &str, labels: &[&str]) -> u64 {
        let sum = self.metric(name, labels).await;
        sum.to_string().parse().unwrap_or_else(|_| panic!("{name} is {sum}, which is no count"))
    }

    /// Returns the preview lines of requests so far, without their prefix.
    pub fn previews(&self) -> Vec<Value> {
        self.preview_lines(false)
    }

    /// Returns the preview lines about dropped requests so far, without their prefix.
    pub fn drops(&self) -> Vec<Value> {
        self.preview_lines(true)
    }

    fn preview_lines(&self, are_drops: bool) -> Vec<Value> {
        let lines = self.stdout.all();
        let lines = lines.iter().map(|line| line.strip_prefix("PolicyPreviewLog ").unwrap());
        let lines = lines.map(|json| serde_json::from_str::<Value>(json).unwrap());
        lines.filter(|line| line["dropped"].is_u64() == are_drops).collect()
    }

    /// Waits for this number of preview lines, and returns all preview lines.
    pub async fn until_previews(&self, count: usize) -> Vec<Value> {
        self.until("preview lines", async || self.previews().len() >= count).await;
        self.previews()
    }

    /// Waits for a condition, and panics after [`WAIT_TIMEOUT`].
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !condition().await {
            assert!(
                Instant::now() < deadline,
                "timed out waiting for {what}:\n{}\n{:#?}",
                self.details().await,
                self.stderr.all()
            );
            pause().await;
        }
    }

    /// Waits until the server is ready.
    pub async fn until_ready(&self) -> anyhow::Result<()> {
        proviso_e2e::until("a ready replica", WAIT_TIMEOUT, async || {
            let ready = self.get("/readyz?verbose").await;
            anyhow::ensure!(ready.status == StatusCode::OK, "{}{:#?}", ready.text, self.stderr.all());
            Ok(())
        })
        .await
    }

    /// Kills the server (SIGKILL).
    pub async fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        assert_eq!(self.exit_code().await, None, "{:#?}", self.stderr.all());
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the process to end, and returns its exit code; `None` if a signal ended it.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end: {:#?}", self.stderr.all());
            pause().await;
        }
    }

    /// Stops the server by SIGINT, and returns its folder.
    pub async fn stop(mut self) -> Folder {
        self.signal(rustix::process::Signal::INT);
        assert_eq!(self.exit_code().await, Some(0), "{:#?}", self.stderr.all());
        Folder(Arc::clone(&self.folder.0))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sleeps between two checks of a condition.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Sends one request on a new connection.
pub async fn ask(address: &str, method: Method, path: &str, body: Bytes) -> anyhow::Result<Answer> {
    ask_as(address, method, path, None, body).await
}

/// Sends one request with this bearer token on a new connection.
pub async fn ask_as(
    address: &str,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Bytes,
) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", address);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = read_answer(sender.send_request(request.body(Full::new(body))?).await?).await;
    driver.abort();
    answer
}

async fn read_answer(response: hyper::Response<hyper::body::Incoming>) -> anyhow::Result<Answer> {
    let (status, headers) = (response.status(), response.headers().clone());
    let text = String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?;
    Ok(Answer { status, headers, text })
}

/// Parses the bytes of an HTTP/1.1 response. The body must not be chunked.
pub fn parse_answer(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.append(hyper::header::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    Answer { status, headers, text: body.to_owned() }
}

/// Parses the bytes of several consecutive HTTP/1.1 responses with a `content-length`.
pub fn parse_answers(mut text: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !text.is_empty() {
        let mut answer = parse_answer(text);
        let length: usize = answer.headers["content-length"].to_str().unwrap().parse().unwrap();
        text = &text[text.len() - answer.text.len() + length..];
        answer.text.truncate(length);
        answers.push(answer);
    }
    answers
}

/// Runs the server with these arguments and environment variables until it ends by itself.
pub async fn run_to_end(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_policy-server"))
        .args(arguments)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdout, stderr) = (Lines::default(), Lines::default());
    let readers = [stdout.follow(child.stdout.take().unwrap()), stderr.follow(child.stderr.take().unwrap())];
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the server with {arguments:?} does not end: {:#?}", stderr.all());
        }
        pause().await;
    };
    for reader in readers {
        reader.join().unwrap();
    }
    Ended { code: status.code(), stdout: stdout.all().join("\n"), stderr: stderr.all().join("\n") }
}

/// The exit code and the output of a server that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Returns the manifest of a `ClusterPolicy` that covers all requests.
pub fn policy(name: &str, spec: &Value) -> String {
    let mut full = json!({
        "program": {"cel": {"validations": []}},
        "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]},
    });
    merge(&mut full, spec);
    manifest("ClusterPolicy", name, &full)
}

/// Returns the manifest of a `ClusterPolicyExperiment` with `autoStart`.
pub fn experiment(name: &str, policy_name: &str, spec: &Value) -> String {
    let full: Value = serde_json::from_str(&policy(policy_name, spec)).unwrap();
    let spec = json!({"policyRef": {"name": policy_name}, "policy": full["spec"], "autoStart": true});
    manifest("ClusterPolicyExperiment", name, &spec)
}

pub fn manifest(kind: &str, name: &str, spec: &Value) -> String {
    json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Merges `change` into `base` like a JSON merge patch, but replaces the member `program` as a whole.
fn merge(base: &mut Value, change: &Value) {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => {
            for (key, value) in change {
                if key == "program" {
                    base.insert(key.clone(), value.clone());
                } else {
                    merge(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (base, change) => *base = change.clone(),
    }
}

/// Returns a spec with a CEL program that denies with this message if the expression is false.
pub fn cel(expression: &str, message: &str) -> Value {
    json!({"program": {"cel": {"validations": [{"expression": expression, "message": message}]}}})
}

/// Returns a spec with a Rego program of the dialect `Admission`.
pub fn rego(source: &str) -> Value {
    json!({"program": {"rego": {"dialect": "Admission", "source": source}}})
}

/// Returns a spec with a Rego program that denies with this message if the condition is true.
pub fn forbid(condition: &str, message: &str) -> Value {
    rego(&format!("package test\ndeny contains {message:?} if {{ {condition} }}"))
}

/// Returns the spec with these members merged into it.
pub fn with(mut spec: Value, members: &Value) -> Value {
    merge(&mut spec, members);
    spec
}

/// Returns a spec with a wasm program whose module is a file beside the manifest.
pub fn wasm(file: &str) -> Value {
    json!({"program": {"wasm": {"module": format!("file://./{file}")}}})
}

/// Returns the review of the creation of a Pod with this name.
pub fn pod(uid: &str, name: &str) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": uid, "operation": "CREATE", "name": name, "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "registry.example.com/web:1"}]}},
        "oldObject": null, "dryRun": false, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }})
}

/// Returns the path of an example of this repository.
pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path)
}
