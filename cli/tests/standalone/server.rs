//! Tests of `proviso experiment` with the REST API of a real policy server over a folder.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::{Client, Config};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Folder, program};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A policy server over a folder with the policies `cluster.live` and `ns.team.live`, which allow every request.
pub struct Server {
    pub url: String,
    /// The URL of the admin port, which does not serve the REST API.
    admin: String,
    pub folder: Folder,
    /// The process, which ends when this value is dropped.
    process: Child,
    _log: Lines<BufReader<ChildStderr>>,
}

/// The exit code and the output of the program.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Server {
    async fn start(name: &str) -> Result<Self> {
        Self::start_in(Folder::new(name)?, &[]).await
    }

    pub async fn start_in(folder: Folder, arguments: &[&str]) -> Result<Self> {
        let manifests = folder.path().join("manifests");
        std::fs::create_dir_all(&manifests)?;
        std::fs::write(manifests.join("live.json"), policy("ClusterPolicy", &json!({"name": "live"}), "true"))?;
        let metadata = json!({"name": "live", "namespace": "team"});
        std::fs::write(manifests.join("team.json"), policy("Policy", &metadata, "true"))?;
        Self::run(folder, "127.0.0.1:0", arguments).await
    }

    async fn run(folder: Folder, listen: &str, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(program::program("policy-server")?)
            .args(["--listen", listen, "--admin-listen", "127.0.0.1:0", "--log-format", "json", "--manifests"])
            .arg(folder.path().join("manifests"))
            .args(arguments)
            // With the default low priority, previews may never end on a busy machine.
            .env("PROVISO_PREVIEW_PRIORITY", "normal")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut log = BufReader::new(process.stderr.take().context("stderr")?).lines();
        let started = async {
            loop {
                let line: Value = serde_json::from_str(&log.next_line().await?.context("the log has ended")?)?;
                if line["message"] == "policy server started" {
                    return anyhow::Ok(line);
                }
            }
        };
        let started = tokio::time::timeout(WAIT_TIMEOUT, started).await??;
        let address = |name: &str| started[name].as_str().unwrap().to_owned();
        Ok(Self { url: address("listen"), admin: address("admin"), folder, process, _log: log })
    }

    /// Kills the server. Returns its folder and its address, to start it again.
    async fn kill(mut self) -> Result<(Folder, String)> {
        self.process.kill().await?;
        let listen = self.url.trim_start_matches("http://").to_owned();
        Ok((self.folder, listen))
    }

    fn file(&self, name: &str, content: &str) -> Result<String> {
        file(&self.folder, name, content)
    }

    /// Runs the program with this server.
    async fn experiment(&self, arguments: &[&str]) -> Result<Output> {
        run(&[&["experiment"], arguments].concat(), &[("PROVISO_SERVER", &self.url)]).await
    }

    /// Returns true if the policy `cluster.live` allows a request.
    async fn is_allowed(&self) -> Result<bool> {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "name": "a", "namespace": "default",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "ann"}, "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
        }});
        let client = Client::try_from(Config::new(self.url.parse()?))?;
        let request = http::Request::post("/validate/cluster.live").header("content-type", "application/json");
        let answer: Value = client.request(request.body(review.to_string().into_bytes())?).await?;
        answer["response"]["allowed"].as_bool().with_context(|| answer.to_string())
    }
}

fn file(folder: &Folder, name: &str, content: &str) -> Result<String> {
    let file = folder.path().join(name);
    std::fs::write(&file, content)?;
    Ok(file.to_str().context("UTF-8")?.to_owned())
}

/// Returns the manifest of a policy with this CEL expression.
fn policy(kind: &str, metadata: &Value, expression: &str) -> String {
    json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {
        "program": {"cel": {"validations": [{"expression": expression, "message": "no"}]}},
        "admission": {"rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    }})
    .to_string()
}

fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proviso"));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    for variable in ["PROVISO_SERVER", "PROVISO_TOKEN_FILE", "PROVISO_SERVER_CA"] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().copied()).env("KUBECONFIG", "/nowhere");
    command
}

pub async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Output> {
    let result = command(arguments, variables).output().await?;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ok(Output { code: result.status.code(), out: text(result.stdout), err: text(result.stderr) })
}

/// Starts a watch, and returns its process and the lines of its output.
fn watch(server: &Server, arguments: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let arguments = [&["experiment", "status"], arguments, &["--watch"]].concat();
    let mut watch = command(&arguments, &[("PROVISO_SERVER", &server.url)]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    Ok((watch, lines))
}

async fn next<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> Result<String> {
    tokio::time::timeout(WAIT_TIMEOUT, lines.next_line()).await??.context("the output has ended")
}

#[tokio::test]
async fn an_experiment_is_created_previewed_and_committed() -> Result<()> {
    let server = Server::start("cli-server").await?;
    let changed = server.file("changed.json", &policy("ClusterPolicy", &json!({"name": "live"}), "false"))?;
    let create = ["create", "stricter", "--from", "clusterpolicy/live", "-f", &changed];

    // `-o json` prints the manifest, and creates nothing.
    let output = server.experiment(&[create.as_slice(), &["-o", "json"]].concat()).await?;
    ensure!(output.code == Some(0) && output.out.contains("\"ClusterPolicyExperiment\""), "{output:?}");
    let output = server.experiment(&["status", "clusterpolicy/live"]).await?;
    ensure!(output.code == Some(0) && output.out == "There is no experiment of cluster.live.\n", "{output:?}");

    let output = server.experiment(&create).await?;
    ensure!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    ensure!(output.out.contains("proviso experiment start cluster.stricter --wait"), "{output:?}");
    let output = server.experiment(&create).await?;
    ensure!(output.code == Some(1) && output.err.contains("already exists"), "{output:?}");

    let (mut watching, mut lines) = watch(&server, &["cluster.stricter"])?;
    ensure!(next(&mut lines).await?.ends_with(" cluster.stricter NOT_STARTED"));
    let output = server.experiment(&["start", "pvcx/stricter", "--wait"]).await?;
    ensure!(output.code == Some(0) && output.out.ends_with("cluster.stricter: it is previewed\n"), "{output:?}");
    ensure!(output.out.contains("started: ACTIVE; no request was evaluated yet"), "{output:?}");
    ensure!(next(&mut lines).await?.contains(" cluster.stricter ACTIVE"));

    // The status has no fields that the REST API does not have.
    let output = server.experiment(&["status", "stricter"]).await?;
    ensure!(output.code == Some(0) && output.out.starts_with("cluster.stricter  ACTIVE\n"), "{output:?}");
    for absent in ["operator", "Conditions", "Replicas", "generation"] {
        ensure!(!output.out.contains(absent), "{absent}: {output:?}");
    }
    let output = server.experiment(&["status", "-A", "-o", "json"]).await?;
    let all: Value = serde_json::from_str(&output.out)?;
    ensure!(all["experiments"][0]["state"] == "ACTIVE" && all["experiments"][0].get("generation").is_none(), "{all:#}");
    let output = server.experiment(&["diff", "stricter"]).await?;
    ensure!(output.out.starts_with("--- cluster.live\n+++ cluster.stricter (experiment)\n"), "{output:?}");
    ensure!(output.out.contains("-    - expression: 'true'\n+    - expression: 'false'\n"), "{output:?}");

    // A commit fails with another etag, and without a confirmation.
    let output = server.experiment(&["commit", "stricter", "--etag", "\"0\"", "--yes"]).await?;
    ensure!(output.code == Some(1) && output.err.contains("its etag is"), "{output:?}");
    let output = server.experiment(&["commit", "stricter"]).await?;
    ensure!(output.code == Some(2) && output.err.contains("use --yes"), "{output:?}");
    ensure!(server.is_allowed().await?, "an experiment denies no request");

    let output = server.experiment(&["commit", "stricter", "--yes"]).await?;
    ensure!(output.code == Some(0) && output.out.contains("Verdicts compared with cluster.live"), "{output:?}");
    ensure!(output.out.ends_with("cluster.live: it is live\n") && !output.out.contains("rollback"), "{output:?}");
    ensure!(!server.is_allowed().await?, "the policy has the spec of the experiment");
    // The watch may write lines with new counts before the last line.
    loop {
        let line = next(&mut lines).await?;
        if line.ends_with(" cluster.stricter GONE") {
            break;
        }
        ensure!(line.contains(" cluster.stricter ACTIVE"), "{line}");
    }
    ensure!(tokio::time::timeout(WAIT_TIMEOUT, watching.wait()).await??.success());
    let output = server.experiment(&["commit", "stricter", "--yes"]).await?;
    ensure!(
        output.code == Some(1) && output.err.contains("there is no PolicyExperiment stricter in the"),
        "{output:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_namespaced_policy_has_experiments() -> Result<()> {
    let server = Server::start("cli-server-namespaced").await?;
    let team = ["-n", "team"];
    let create = ["create", "gone", "--from", "policy/live", "--no-op", "--start"];
    let output = server.experiment(&[create.as_slice(), &team].concat()).await?;
    ensure!(output.code == Some(0) && output.out.contains("ns.team.gone: started: ACTIVE"), "{output:?}");
    // A name without a kind matches both kinds.
    let output = server.experiment(&["create", "copy", "--from", "live", "-n", "team"]).await?;
    ensure!(
        output.code == Some(1) && output.err.contains("Use one of these names: ns.team.live, cluster.live."),
        "{output:?}"
    );
    let output = server.experiment(&["create", "copy", "--from", "cluster.live"]).await?;
    ensure!(output.code == Some(0) && output.err.contains("create it from a changed file"), "{output:?}");
    let output = server.experiment(&["status"]).await?;
    ensure!(output.out.contains("cluster.copy") && !output.out.contains("ns.team.gone"), "{output:?}");
    let output = server.experiment(&["status", "policy/live", "-n", "team"]).await?;
    ensure!(output.out.contains("ns.team.gone") && !output.out.contains("cluster.copy"), "{output:?}");

    let output = server.experiment(&["stop", "ns.team.gone"]).await?;
    ensure!(output.out.starts_with("ns.team.gone: stopped: SUSPENDED; it is not previewed\n"), "{output:?}");
    let wanted = "ns.team.gone: no replica evaluates it any more; no request was evaluated yet\n";
    ensure!(output.code == Some(0) && output.out.ends_with(wanted), "{output:?}");
    let output = server.experiment(&["delete", "ns.team.gone", "--yes"]).await?;
    ensure!(output.code == Some(0) && output.out == "ns.team.gone: deleted; ns.team.live is unchanged\n", "{output:?}");
    let output = server.experiment(&["status", "ns.team.gone"]).await?;
    ensure!(output.code == Some(1) && output.err.contains("there is no PolicyExperiment gone"), "{output:?}");

    // An experiment that does not work is created with a message, and is not committed.
    let broken = server.file("broken.json", &policy("ClusterPolicy", &json!({"name": "live"}), "nothing.at.all"))?;
    let output = server.experiment(&["create", "broken", "--from", "cluster.live", "-f", &broken]).await?;
    ensure!(output.code == Some(1) && output.out.contains("created, but it does not work: "), "{output:?}");
    let output = server.experiment(&["commit", "broken", "--yes"]).await?;
    let refusal = "cluster.broken was not committed, and nothing was changed: ";
    ensure!(output.code == Some(1) && output.err.contains(refusal), "{output:?}");
    ensure!(output.err.contains("Correct the experiment's spec.policy"), "{output:?}");
    ensure!(server.is_allowed().await?);
    let output = server.experiment(&["commit", "broken", "--to-file", "-"]).await?;
    ensure!(output.code == Some(1) && output.out.is_empty() && output.err.contains(refusal), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_preview_has_settings_and_evidence_that_can_be_exported() -> Result<()> {
    let server = Server::start("cli-server-evidence").await?;
    let create = ["create", "gone", "--from", "cluster.live", "--no-op"];
    let settings = ["--sample-rate", "0.5", "--logging", "divergences", "--ttl", "1h"];
    let output = server.experiment(&[create.as_slice(), &settings].concat()).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = server.experiment(&["start", "cluster.gone", "--wait"]).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = server.experiment(&["status", "cluster.gone"]).await?;
    for wanted in ["Expires     ", "Sampling    50% of the requests\n", "Logging     only requests on which"] {
        ensure!(output.out.contains(wanted), "{wanted}: {output:?}");
    }
    let output = server.experiment(&["status", "cluster.gone", "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(report["sampleRate"] == 0.5 && report["logging"] == "Divergences", "{report:#}");
    ensure!(report["ttl"] == "3600s", "{report:#}");
    ensure!(report["warnings"][0]["reason"] == "Sampled", "{report:#}");
    ensure!(report["divergence"]["etag"] == report["etag"], "{report:#}");
    let output = server.experiment(&["status", "-o", "csv"]).await?;
    let row = output.out.lines().nth(1).context("a row")?;
    ensure!(row.contains(",cluster.gone,cluster.live,") && row.contains(",0.5,"), "{output:?}");

    // The policy for a repository.
    let output = server.experiment(&["commit", "cluster.gone", "--to-file", "-"]).await?;
    let manifest: Value = serde_yaml::from_str(&output.out)?;
    ensure!(output.code == Some(0) && manifest["kind"] == "ClusterPolicy", "{output:?}");
    ensure!(manifest["metadata"] == json!({"name": "live"}), "{manifest:#}");
    ensure!(manifest["spec"]["program"] == json!({"cel": {"validations": []}}), "{manifest:#}");
    ensure!(output.err.contains("The REST API shows no labels"), "{output:?}");
    let output = server.experiment(&["status", "cluster.gone"]).await?;
    ensure!(output.code == Some(0), "the experiment was not committed: {output:?}");
    Ok(())
}

#[tokio::test]
async fn a_watch_continues_when_the_server_is_back() -> Result<()> {
    let server = Server::start("cli-server-watch").await?;
    let output = server.experiment(&["create", "e", "--from", "cluster.live", "--no-op"]).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let (mut watching, mut lines) = watch(&server, &["clusterpolicy/live", "-o", "json"])?;
    let mut errors = BufReader::new(watching.stderr.take().context("stderr")?).lines();
    let experiment_name = async |lines: &mut Lines<BufReader<ChildStdout>>| -> Result<Value> {
        let report: Value = serde_json::from_str(&next(lines).await?)?;
        Ok(report["experiments"][0]["name"].clone())
    };
    ensure!(experiment_name(&mut lines).await? == "e");
    let (folder, listen) = server.kill().await?;
    ensure!(next(&mut errors).await?.contains(&format!("http://{listen} does not answer: ")));
    let _server = Server::run(folder, &listen, &[]).await?;
    ensure!(experiment_name(&mut lines).await? == "e");
    Ok(())
}

#[tokio::test]
async fn errors_of_a_server_have_a_remedy() -> Result<()> {
    let server = Server::start("cli-server-errors").await?;
    let at = |url: &str| vec!["--server".to_owned(), url.to_owned()];
    let none = Vec::new;
    for (arguments, options, code, wanted) in [
        (vec!["status", "other"], at(&server.url), 1, "there is no PolicyExperiment other in the namespace default"),
        (vec!["create", "a", "--from", "cluster.liv"], at(&server.url), 1, "Did you mean cluster.live"),
        (vec!["start", "ns.team.a", "-n", "b"], at(&server.url), 2, "--namespace says b"),
        (vec!["create", "a", "--from", "cluster.live", "--no-op", "--dry-run"], at(&server.url), 2, "needs a cluster"),
        (vec!["status"], at("http://127.0.0.1:1"), 1, "http://127.0.0.1:1 does not answer: "),
        (vec!["status"], at(&server.admin), 1, "does not serve the REST API: it answers 404"),
        (vec!["status"], at("http://10.0.0.1"), 2, "only for loopback"),
        (vec!["status", "--kubeconfig", "a"], at(&server.url), 2, "--kubeconfig names a cluster"),
        (vec!["status", "--context", "a"], at(&server.url), 2, "--context names a cluster"),
        (vec!["status", "--token-file", "a"], none(), 2, "--token-file is for a server"),
        (vec!["status", "--server-ca", "a"], none(), 2, "--server-ca is for a server"),
        (vec!["status", "--token-file", "/nowhere"], at(&server.url), 1, "--token-file /nowhere: No such file"),
        (vec!["status", "--server-ca", "/nowhere"], at("https://127.0.0.1:1"), 1, "--server-ca /nowhere: "),
    ] {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let output = run(&[&["experiment"], arguments.as_slice(), &options].concat(), &[]).await?;
        ensure!(output.code == Some(code) && output.err.contains(wanted), "{arguments:?}: {output:?}");
    }
    // `--server` may come before the subcommand, and the next step names the same server.
    let output = run(&["experiment", "--server", &server.url, "create", "a", "--from", "cluster.live"], &[]).await?;
    let next = format!("PROVISO_SERVER={} proviso experiment start cluster.a --wait", server.url);
    ensure!(output.code == Some(0) && output.out.contains(&next), "{output:?}");
    // The other commands work only with a cluster.
    let output = run(&["status", "--server", &server.url], &[]).await?;
    ensure!(output.code == Some(2) && output.err.contains("unexpected argument"), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_with_tls_gets_the_token() -> Result<()> {
    let folder = Folder::new("cli-server-token")?;
    let authority = Authority::new("server", &folder.path().join("pki"))?;
    let identity = authority.server("policies", &["127.0.0.1"])?;
    let (token, wrong) = (file(&folder, "token", TOKEN)?, file(&folder, "wrong", "another\n")?);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key, ca): (String, String, PathBuf) =
        (path(&identity.certificate), path(&identity.key), authority.certificate());
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--api-token-file", &token];
    let server = Server::start_in(folder, &tls).await?;
    let ca = path(&ca);
    let status = ["experiment", "status"];

    let variables =
        [("PROVISO_SERVER", server.url.as_str()), ("PROVISO_SERVER_CA", &ca), ("PROVISO_TOKEN_FILE", &token)];
    let output = run(&status, &variables).await?;
    ensure!(output.code == Some(0) && output.out.contains("There is no ClusterPolicyExperiment"), "{output:?}");
    // Without a token, and with a wrong token.
    let output = run(&status, &variables[..2]).await?;
    ensure!(
        output.code == Some(1) && output.err.contains("refused the credentials: missing or unknown token"),
        "{output:?}"
    );
    let output = run(&[status.as_slice(), &["--token-file", &wrong]].concat(), &variables).await?;
    ensure!(output.code == Some(1) && output.err.contains("refused the credentials"), "{output:?}");
    ensure!(output.err.contains("--token-file or PROVISO_TOKEN_FILE"), "{output:?}");
    // Without `PROVISO_SERVER_CA`, the CA of the test is not trusted.
    let output = run(&status, &[variables[0], variables[2]]).await?;
    ensure!(output.code == Some(1) && output.err.contains("does not answer: "), "{output:?}");
    Ok(())
}
