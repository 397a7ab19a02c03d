//! `proviso experiment` with the REST API of a real policy server over a folder.

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

const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A policy server over a folder with the policies `cluster.live` and `ns.team.live`, which refuse nothing.
struct Server {
    url: String,
    /// Where it serves no API.
    admin: String,
    folder: Folder,
    /// Ends with it.
    process: Child,
    _log: Lines<BufReader<ChildStderr>>,
}

/// What the program said and how it ended.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Server {
    async fn start(name: &str) -> Result<Self> {
        Self::start_in(Folder::new(name)?, &[]).await
    }

    async fn start_in(folder: Folder, arguments: &[&str]) -> Result<Self> {
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
            // With their own priority, previews come to no end on a machine that is busy with other things.
            .env("PROVISO_PREVIEW_PRIORITY", "normal")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut log = BufReader::new(process.stderr.take().context("stderr")?).lines();
        let started = async {
            loop {
                let line: Value = serde_json::from_str(&log.next_line().await?.context("the end")?)?;
                if line["message"] == "policy server started" {
                    return anyhow::Ok(line);
                }
            }
        };
        let started = tokio::time::timeout(PATIENCE, started).await??;
        let address = |name: &str| started[name].as_str().unwrap().to_owned();
        Ok(Self { url: address("listen"), admin: address("admin"), folder, process, _log: log })
    }

    /// Ends it as a crash would; what comes back is at the same address.
    async fn kill(mut self) -> Result<(Folder, String)> {
        self.process.kill().await?;
        let listen = self.url.trim_start_matches("http://").to_owned();
        Ok((self.folder, listen))
    }

    fn file(&self, name: &str, content: &str) -> Result<String> {
        file(&self.folder, name, content)
    }

    /// Runs the program with this server.
    async fn experiment(&self, arguments: &[&str]) -> Result<Said> {
        run(&[&["experiment"], arguments].concat(), &[("PROVISO_SERVER", &self.url)]).await
    }

    /// What the live policy answers.
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

/// A manifest whose program is this expression.
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

async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Said> {
    let output = command(arguments, variables).output().await?;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ok(Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}

/// A watch, and its lines.
fn watch(server: &Server, arguments: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let arguments = [&["experiment", "status"], arguments, &["--watch"]].concat();
    let mut watch = command(&arguments, &[("PROVISO_SERVER", &server.url)]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    Ok((watch, lines))
}

async fn next<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> Result<String> {
    tokio::time::timeout(PATIENCE, lines.next_line()).await??.context("the end")
}

#[tokio::test]
async fn an_experiment_goes_from_a_file_to_the_live_policy() -> Result<()> {
    let server = Server::start("cli-server").await?;
    let changed = server.file("changed.json", &policy("ClusterPolicy", &json!({"name": "live"}), "false"))?;
    let create = ["create", "stricter", "--from", "clusterpolicy/live", "-f", &changed];

    // What is only printed is not created.
    let said = server.experiment(&[create.as_slice(), &["-o", "json"]].concat()).await?;
    ensure!(said.code == Some(0) && said.out.contains("\"ClusterPolicyExperiment\""), "{said:?}");
    let said = server.experiment(&["status", "clusterpolicy/live"]).await?;
    ensure!(said.code == Some(0) && said.out == "There is no experiment of cluster.live.\n", "{said:?}");

    let said = server.experiment(&create).await?;
    ensure!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    ensure!(said.out.contains("proviso experiment start cluster.stricter --wait"), "{said:?}");
    let said = server.experiment(&create).await?;
    ensure!(said.code == Some(1) && said.err.contains("is there already"), "{said:?}");

    let (mut watching, mut lines) = watch(&server, &["cluster.stricter"])?;
    ensure!(next(&mut lines).await?.ends_with(" cluster.stricter NOT_STARTED"));
    let said = server.experiment(&["start", "pvcx/stricter", "--wait"]).await?;
    ensure!(said.code == Some(0) && said.out.ends_with("cluster.stricter: it is previewed\n"), "{said:?}");
    ensure!(said.out.contains("started: ACTIVE; no request was evaluated yet"), "{said:?}");
    ensure!(next(&mut lines).await?.contains(" cluster.stricter ACTIVE"));

    // Where it stands, and nothing that is not known.
    let said = server.experiment(&["status", "stricter"]).await?;
    ensure!(said.code == Some(0) && said.out.starts_with("cluster.stricter  ACTIVE\n"), "{said:?}");
    for absent in ["operator", "Conditions", "Replicas", "generation"] {
        ensure!(!said.out.contains(absent), "{absent}: {said:?}");
    }
    let said = server.experiment(&["status", "-A", "-o", "json"]).await?;
    let all: Value = serde_json::from_str(&said.out)?;
    ensure!(all["experiments"][0]["state"] == "ACTIVE" && all["experiments"][0].get("generation").is_none(), "{all:#}");
    let said = server.experiment(&["diff", "stricter"]).await?;
    ensure!(said.out.starts_with("--- cluster.live\n+++ cluster.stricter (experiment)\n"), "{said:?}");
    ensure!(said.out.contains("-    - expression: 'true'\n+    - expression: 'false'\n"), "{said:?}");

    // Another version than was seen, and nobody to ask.
    let said = server.experiment(&["commit", "stricter", "--etag", "\"0\"", "--yes"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("its etag is"), "{said:?}");
    let said = server.experiment(&["commit", "stricter"]).await?;
    ensure!(said.code == Some(2) && said.err.contains("say --yes"), "{said:?}");
    ensure!(server.is_allowed().await?, "nobody is denied by an experiment");

    let said = server.experiment(&["commit", "stricter", "--yes"]).await?;
    ensure!(said.code == Some(0) && said.out.contains("Verdicts beside those of cluster.live"), "{said:?}");
    ensure!(said.out.ends_with("cluster.live: it is live\n") && !said.out.contains("rollback"), "{said:?}");
    ensure!(!server.is_allowed().await?, "the policy is what the experiment was");
    // What was counted meanwhile has lines of its own.
    loop {
        let line = next(&mut lines).await?;
        if line.ends_with(" cluster.stricter GONE") {
            break;
        }
        ensure!(line.contains(" cluster.stricter ACTIVE"), "{line}");
    }
    ensure!(tokio::time::timeout(PATIENCE, watching.wait()).await??.success());
    let said = server.experiment(&["commit", "stricter", "--yes"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("there is no PolicyExperiment stricter in the"), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn a_policy_of_a_namespace_has_experiments_too() -> Result<()> {
    let server = Server::start("cli-server-namespaced").await?;
    let team = ["-n", "team"];
    let create = ["create", "gone", "--from", "policy/live", "--no-op", "--start"];
    let said = server.experiment(&[create.as_slice(), &team].concat()).await?;
    ensure!(said.code == Some(0) && said.out.contains("ns.team.gone: started: ACTIVE"), "{said:?}");
    // Of either kind.
    let said = server.experiment(&["create", "copy", "--from", "live", "-n", "team"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("Say which: ns.team.live, cluster.live."), "{said:?}");
    let said = server.experiment(&["create", "copy", "--from", "cluster.live"]).await?;
    ensure!(said.code == Some(0) && said.err.contains("create it from a changed file"), "{said:?}");
    let said = server.experiment(&["status"]).await?;
    ensure!(said.out.contains("cluster.copy") && !said.out.contains("ns.team.gone"), "{said:?}");
    let said = server.experiment(&["status", "policy/live", "-n", "team"]).await?;
    ensure!(said.out.contains("ns.team.gone") && !said.out.contains("cluster.copy"), "{said:?}");

    let said = server.experiment(&["stop", "ns.team.gone"]).await?;
    ensure!(said.out == "ns.team.gone: stopped: SUSPENDED; nothing is previewed\n", "{said:?}");
    let said = server.experiment(&["delete", "ns.team.gone", "--yes"]).await?;
    ensure!(said.code == Some(0) && said.out == "ns.team.gone: deleted; ns.team.live stays as it is\n", "{said:?}");
    let said = server.experiment(&["status", "ns.team.gone"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("there is no PolicyExperiment gone"), "{said:?}");

    // What does not work is there, says why, and is not committed.
    let broken = server.file("broken.json", &policy("ClusterPolicy", &json!({"name": "live"}), "nothing.at.all"))?;
    let said = server.experiment(&["create", "broken", "--from", "cluster.live", "-f", &broken]).await?;
    ensure!(said.code == Some(1) && said.out.contains("created, and it does not work: "), "{said:?}");
    let said = server.experiment(&["commit", "broken", "--yes"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("cluster.broken was not committed: "), "{said:?}");
    ensure!(server.is_allowed().await?);
    Ok(())
}

#[tokio::test]
async fn a_watch_goes_on_when_the_server_is_back() -> Result<()> {
    let server = Server::start("cli-server-watch").await?;
    let said = server.experiment(&["create", "e", "--from", "cluster.live", "--no-op"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let (mut watching, mut lines) = watch(&server, &["clusterpolicy/live", "-o", "json"])?;
    let mut complaints = BufReader::new(watching.stderr.take().context("stderr")?).lines();
    let named = async |lines: &mut Lines<BufReader<ChildStdout>>| -> Result<Value> {
        let report: Value = serde_json::from_str(&next(lines).await?)?;
        Ok(report["experiments"][0]["name"].clone())
    };
    ensure!(named(&mut lines).await? == "e");
    let (folder, listen) = server.kill().await?;
    ensure!(next(&mut complaints).await?.contains(&format!("http://{listen} does not answer: ")));
    let _server = Server::run(folder, &listen, &[]).await?;
    ensure!(named(&mut lines).await? == "e");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_is_said_with_what_to_do() -> Result<()> {
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
        let said = run(&[&["experiment"], arguments.as_slice(), &options].concat(), &[]).await?;
        ensure!(said.code == Some(code) && said.err.contains(wanted), "{arguments:?}: {said:?}");
    }
    // Before the command, too; and what is to be done is done at the same server.
    let said = run(&["experiment", "--server", &server.url, "create", "a", "--from", "cluster.live"], &[]).await?;
    let next = format!("PROVISO_SERVER={} proviso experiment start cluster.a --wait", server.url);
    ensure!(said.code == Some(0) && said.out.contains(&next), "{said:?}");
    // Other commands are about clusters.
    let said = run(&["status", "--server", &server.url], &[]).await?;
    ensure!(said.code == Some(2) && said.err.contains("unexpected argument"), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_wants_a_token_gets_it_encrypted() -> Result<()> {
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
    let said = run(&status, &variables).await?;
    ensure!(said.code == Some(0) && said.out.contains("There is no ClusterPolicyExperiment"), "{said:?}");
    // None, and another.
    let said = run(&status, &variables[..2]).await?;
    ensure!(said.code == Some(1) && said.err.contains("does not know you: give the token"), "{said:?}");
    let said = run(&[status.as_slice(), &["--token-file", &wrong]].concat(), &variables).await?;
    ensure!(said.code == Some(1) && said.err.contains("does not know you"), "{said:?}");
    ensure!(said.err.contains("--token-file or PROVISO_TOKEN_FILE"), "{said:?}");
    // The system trusts no authority of ours.
    let said = run(&status, &[variables[0], variables[2]]).await?;
    ensure!(said.code == Some(1) && said.err.contains("does not answer: "), "{said:?}");
    Ok(())
}
