//! The program with a real API server. The operator and the policy server are played by the test: it writes what they
//! would write.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod actions;
mod experiments;
mod modules;
mod signatures;
#[path = "../../../crates/artifacts/tests/sigstore/mod.rs"]
mod sigstore;
mod stage;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use stage::{MESSAGE, ROLLBACK_TO, Stage, TEAM, active, failed, run};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn status_and_revisions_tell_what_there_is() -> Result<()> {
    let stage = Stage::with_kinds("cli-status").await?;
    let said = stage.proviso(&["status"]).await?;
    ensure!(said.code == Some(0) && said.out.contains("no Policy in the namespace default"), "{said:?}");
    stage.failed_update().await?;
    stage.cluster_policy("trusted").await?;

    // Nothing failed that was asked about, and the operator has not looked at one.
    let said = stage.proviso(&["status"]).await?;
    ensure!(said.code == Some(3) && said.out.contains("cluster.trusted  Pending"), "{said:?}");
    let said = stage.proviso(&["status", "-A"]).await?;
    ensure!(said.code == Some(1) && !said.out.contains('\u{1b}'), "{said:?}");
    let row = said.out.lines().find(|line| line.contains("ns.team.labels")).context("its row")?;
    let cells: Vec<_> = row.split_whitespace().take(6).collect();
    ensure!(cells == ["ns.team.labels", "Failed", "1", "2", "Protect", "0/1"], "{row}");
    ensure!(said.out.contains(&format!("CompileError: {MESSAGE}")), "{said:?}");

    // One policy, by each of its names; as kubectl's plugin it says so.
    for name in ["policy/labels", "pvp/labels", "labels"] {
        let said = stage.proviso(&["status", name, "-n", TEAM]).await?;
        ensure!(said.code == Some(1) && said.out.starts_with("ns.team.labels  Failed\n"), "{name}: {said:?}");
    }
    let said = run("kubectl-proviso", stage.plane.kubeconfig(), &["status", "ns.team.labels"]).await?;
    for wanted in [
        "generation 2 does not work; generation 1 goes on answering\n",
        "Replicas of generation 1 (live)\n",
        "policy-server-default-0  True",
        "generation 2: spec.program",
        "Undo the change: kubectl proviso rollback ns.team.labels --to 1\n",
    ] {
        ensure!(said.out.contains(wanted), "{wanted}: {said:?}");
    }

    // For programs.
    let report = stage.proviso(&["status", "ns.team.labels", "-o", "json"]).await?.json()?;
    ensure!(report["policy"] == "ns.team.labels" && report["phase"] == "Failed" && report["liveGeneration"] == 1);
    ensure!(report["problem"] == json!({"reason": "CompileError", "message": MESSAGE}), "{report:#}");
    ensure!(report["revisions"][1]["replicas"][0]["name"] == "policy-server-default-0", "{report:#}");
    ensure!(report["events"][0]["reason"] == "CompileError" && report["unseen"] == json!([]), "{report:#}");
    let overview = stage.proviso(&["status", "-A", "-o", "yaml"]).await?;
    let overview: Value = serde_yaml::from_str(&overview.out)?;
    ensure!(overview["policies"][0]["policy"] == "cluster.trusted", "{overview:#}");

    // Revisions.
    let said = stage.proviso(&["revisions", "list", "ns.team.labels"]).await?;
    let rows: Vec<_> = said.out.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>()).collect();
    ensure!(rows[1] == ["2", "Failed", "(CompileError)"] && rows[2][..2] == ["1", "Live"], "{said:?}");
    ensure!(said.out.lines().nth(1).is_some_and(|row| row.ends_with("settings.label")), "{said:?}");
    let shown = stage.proviso(&["revisions", "show", "ns.team.labels", "1", "-o", "json"]).await?.json()?;
    ensure!(shown["state"] == "Live" && shown["spec"]["settings"]["label"] == "owner", "{shown:#}");
    let said = stage.proviso(&["revisions", "show", "ns.team.labels", "2"]).await?;
    ensure!(said.out.contains(MESSAGE) && said.out.contains("\nsettings:\n  label: team\n"), "{said:?}");
    let said = stage.proviso(&["revisions", "diff", "ns.team.labels"]).await?;
    ensure!(said.out.starts_with("--- ns.team.labels generation 1 (live)\n+++ ns.team.labels generation 2 (newest)\n"));
    ensure!(said.out.ends_with("-  label: owner\n+  label: team\n"), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn who_watches_sees_what_changes() -> Result<()> {
    let mut stage = Stage::with_kinds("cli-watch").await?;
    stage.policy("labels", "owner").await?;
    let mut watch = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(["status", "ns.team.labels", "--watch", "-o", "json", "--kubeconfig"])
        .arg(stage.plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut reports = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    let mut complaints = BufReader::new(watch.stderr.take().context("stderr")?).lines();
    let mut next = async || -> Result<Value> {
        let line = tokio::time::timeout(PATIENCE, reports.next_line()).await??.context("the end")?;
        Ok(serde_json::from_str(&line)?)
    };
    ensure!(next().await?["phase"] == "Pending");
    stage.status("labels", active(1)).await?;
    let report = next().await?;
    ensure!(report["phase"] == "Active" && report["liveGeneration"] == 1, "{report:#}");
    // It does not give up while the API server is away.
    stage.plane.api_server(0).process().kill();
    let complaint = tokio::time::timeout(PATIENCE, complaints.next_line()).await??.context("the end")?;
    ensure!(complaint.contains("does not answer"), "{complaint}");
    stage.plane.api_server(0).process().restart()?;
    ensure!(next().await?["phase"] == "Active");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_is_said_with_what_to_do() -> Result<()> {
    let stage = Stage::with_kinds("cli-errors").await?;
    stage.failed_update().await?;
    stage.cluster_policy("labels").await?;
    let team = ["-n", TEAM];
    for (arguments, code, wanted) in [
        (vec!["status", "labels"], 1, "Say which: ns.team.labels, cluster.labels."),
        (vec!["status", "policy/lables"], 1, "Did you mean cluster.labels or ns.team.labels?"),
        (vec!["revisions", "show", "policy/labels", "7"], 1, "Kept: 1, 2."),
        (vec!["revisions", "diff", "policy/labels", "7"], 1, "no revision of generation 7"),
        (vec!["rollback", "policy/labels", "--to", "7"], 1, "Kept: 1, 2."),
        (vec!["rollback", "clusterpolicy/labels"], 1, "has nothing to go back to"),
        (vec!["revisions", "diff", "clusterpolicy/labels"], 2, "has no live generation"),
        (vec!["status", "ns.other.labels"], 2, "--namespace says team"),
        (vec!["status", "pod/labels"], 2, "policy/NAME"),
    ] {
        let said = stage.proviso(&[arguments.as_slice(), &team].concat()).await?;
        ensure!(said.code == Some(code) && said.err.contains(wanted), "{arguments:?}: {said:?}");
    }
    // The namespace was forgotten.
    let said = stage.proviso(&["status", "policy/labels"]).await?;
    ensure!(said.err.contains("there is no Policy labels in the namespace default"), "{said:?}");
    ensure!(said.err.contains("ns.team.labels"), "{said:?}");

    let nowhere = stage.kubeconfig("nowhere", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    })?;
    let said = run("proviso", &nowhere, &["status"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("https://127.0.0.1:1 does not answer: "), "{said:?}");
    ensure!(said.err.contains("refused") && said.err.contains("kubectl config current-context"), "{said:?}");
    let stranger = stage.kubeconfig("stranger", |config| config["users"][0]["user"] = json!({"token": "expired"}))?;
    let said = run("proviso", &stranger, &["status"]).await?;
    ensure!(said.err.contains("does not know you") && said.err.contains("Log in again"), "{said:?}");
    let said = stage.proviso(&["status", "--context", "other"]).await?;
    ensure!(said.err.contains("Choose a context with --context: e2e."), "{said:?}");
    let said = run("proviso", Path::new("/nowhere"), &["status"]).await?;
    ensure!(said.code == Some(1) && said.err.contains("/nowhere"), "{said:?}");
    let nothing = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .arg("status")
        .env("HOME", "/nowhere")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output();
    let said = String::from_utf8(nothing.await?.stderr)?;
    ensure!(said.contains("there is no kubeconfig") && said.contains("--kubeconfig or KUBECONFIG"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_without_proviso_is_told_from_one_without_policies() -> Result<()> {
    let stage = Stage::start("cli-not-installed").await?;
    for arguments in [vec!["status"], vec!["status", "labels"], vec!["rollback", "cluster.labels"]] {
        let said = stage.proviso(&arguments).await?;
        ensure!(said.code == Some(1), "{said:?}");
        ensure!(said.err.contains("CustomResourceDefinitions are not installed"), "{arguments:?}: {said:?}");
    }
    Ok(())
}

#[tokio::test]
async fn who_may_see_one_namespace_learns_why_and_what_was_not_readable() -> Result<()> {
    let stage = Stage::with_kinds("cli-namespaced").await?;
    let policy = stage.failed_update().await?;
    let reader = stage.user("reader", "get,list", "policies.proviso.dev").await?;
    let said = run("proviso", &reader, &["status", "-n", TEAM]).await?;
    ensure!(said.code == Some(1) && said.out.contains(MESSAGE), "{said:?}");
    ensure!(
        said.out.ends_with("Not shown: ClusterPolicies: you may not list clusterpolicies.proviso.dev.\n"),
        "{said:?}"
    );
    // A name alone is one of the kind that may be seen.
    let said = run("proviso", &reader, &["status", "labels", "-n", TEAM]).await?;
    ensure!(said.out.contains(&format!("CompileError: {MESSAGE}")), "{said:?}");
    ensure!(said.out.contains("Live    generation 1\n") && said.out.contains("0 of 1 replicas"), "{said:?}");
    let missing = "\
Not shown: the replicas one by one: you may not list policyrevisions.proviso.dev in the namespace proviso-system.
Not shown: events: you may not list events in the namespace team.
";
    ensure!(said.out.ends_with(missing), "{said:?}");
    let report = run("proviso", &reader, &["status", "labels", "-n", TEAM, "-o", "json"]).await?.json()?;
    ensure!(report["unseen"][0]["reason"] == "Forbidden" && report["revisions"] == json!([]), "{report:#}");
    // What is about revisions alone says which right is missing.
    let said = run("proviso", &reader, &["revisions", "list", "policy/labels", "-n", TEAM]).await?;
    let right = "kubectl auth can-i list policyrevisions.proviso.dev -n proviso-system";
    ensure!(said.code == Some(1) && said.err.contains(right) && said.err.contains("reader"), "{said:?}");
    let said = run("proviso", &reader, &["status", "-A"]).await?;
    ensure!(said.err.contains("you may not list policies.proviso.dev"), "{said:?}");
    let said = run("proviso", &reader, &["rollback", "policy/labels", "-n", TEAM, "--to", "1"]).await?;
    ensure!(said.err.contains("you may not patch policies.proviso.dev in the namespace team"), "{said:?}");

    // Who may change the policy may ask, and the operator answers in that namespace.
    let owner = stage.user("owner", "get,list,patch", "policies.proviso.dev,events").await?;
    let rollback = ["rollback", "policy/labels", "-n", TEAM, "--to", "7"];
    let play = async {
        ensure!(stage.until_asked("labels").await? == "7");
        let note = "there is no generation 7 to go back to; kept are 1, 2";
        stage.event(&policy, EventType::Warning, "RollbackRefused", note).await
    };
    let (said, played) = tokio::join!(run("proviso", &owner, &rollback), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(1) && said.out.contains("the operator refused: there is no generation 7"), "{said:?}");
    // A change under way needs no number to be undone, one that is live does.
    let play = async {
        ensure!(stage.until_asked("labels").await? == "1");
        stage.policy("labels", "owner").await?;
        stage.status("labels", active(3)).await
    };
    let undo = ["rollback", "policy/labels", "-n", TEAM];
    let (said, played) = tokio::join!(run("proviso", &owner, &undo), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(0) && said.out.contains("generation 3 answers requests"), "{said:?}");
    let said = run("proviso", &owner, &undo).await?;
    ensure!(said.code == Some(1) && said.err.contains("rollback ns.team.labels --to GENERATION"), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn a_rollback_is_followed_to_its_end() -> Result<()> {
    let stage = Stage::with_kinds("cli-rollback").await?;
    stage.failed_update().await?;
    let rollback = ["rollback", "ns.team.labels"];

    // To look is to change nothing.
    let said = stage.proviso(&[rollback.as_slice(), &["--dry-run"]].concat()).await?;
    ensure!(said.code == Some(0) && said.out.contains("-  label: team\n+  label: owner\n"), "{said:?}");
    ensure!(
        said.out.ends_with("would become what generation 1 was, as generation 3. Nothing was changed.\n"),
        "{said:?}"
    );
    let policy = stage.policies().get("labels").await?;
    ensure!(policy.metadata.generation == Some(2) && !policy.annotations().contains_key(ROLLBACK_TO), "{policy:?}");

    // The failed update is undone.
    let play = async {
        ensure!(stage.until_asked("labels").await? == "1");
        stage.policy("labels", "owner").await?;
        stage.status("labels", active(3)).await
    };
    let (said, played) = tokio::join!(stage.proviso(&rollback), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.out.starts_with("ns.team.labels: back to generation 1; changes settings.label\n"), "{said:?}");
    ensure!(said.out.ends_with("generation 3 answers requests: what generation 1 was\n"), "{said:?}");

    // It is that already.
    let said = stage.proviso(&[rollback.as_slice(), &["--to", "1"]].concat()).await?;
    ensure!(said.code == Some(0) && said.out.contains("nothing to do"), "{said:?}");
    let policy = stage.policies().get("labels").await?;
    ensure!(!policy.annotations().contains_key(ROLLBACK_TO), "nothing was asked");

    // What it was does not work any more.
    let play = async {
        ensure!(stage.until_asked("labels").await? == "2");
        stage.policy("labels", "team").await?;
        stage.status("labels", failed(4, 3)).await
    };
    let to = [rollback.as_slice(), &["--to", "2"]].concat();
    let (said, played) = tokio::join!(stage.proviso(&to), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(1) && said.out.contains(&format!("CompileError: {MESSAGE}")), "{said:?}");
    ensure!(said.out.contains("generation 4 does not work; generation 3 goes on answering"), "{said:?}");

    // Nobody takes it up.
    let said = stage.proviso(&["rollback", "ns.team.labels", "--to", "1", "--timeout", "0s"]).await?;
    let remedy = "kubectl annotate policies.proviso.dev labels -n team proviso.dev/rollback-to-";
    ensure!(said.code == Some(1) && said.out.contains(remedy), "{said:?}");
    ensure!(stage.until_asked("labels").await? == "1");
    // Nobody waits.
    let said = stage.proviso(&["rollback", "ns.team.labels", "--to", "1", "--wait=false"]).await?;
    ensure!(said.code == Some(0) && said.out.contains("proviso status ns.team.labels --watch"), "{said:?}");
    ensure!(stage.until_asked("labels").await? == "1");
    let events = Api::<Event>::namespaced(stage.client.clone(), TEAM).list(&ListParams::default()).await?;
    ensure!(events.items.len() == 1, "the program makes no Events: {events:?}");
    Ok(())
}
