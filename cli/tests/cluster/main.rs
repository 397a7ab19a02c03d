//! Tests of the program with a real API server. The test acts as the operator and as the policy server: it writes the objects
//! and the status that they would write.

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
mod subscriptions;
#[path = "../support/mod.rs"]
mod support;
mod test_cluster;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt as _};
use proviso_crds::fixtures::condition;
use serde_json::{Value, json};
use test_cluster::{MESSAGE, ROLLBACK_TO, TEAM, TestCluster, WAIT_TIMEOUT, active, failed, run};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

#[tokio::test]
async fn status_and_revisions_show_a_failed_update() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-status").await?;
    let output = cluster.proviso(&["status"]).await?;
    ensure!(output.code == Some(0) && output.out.contains("no Policy in the namespace default"), "{output:?}");
    cluster.failed_update().await?;
    cluster.cluster_policy("trusted").await?;

    // No policy of these failed, and the operator has not reconciled one of them.
    let output = cluster.proviso(&["status"]).await?;
    ensure!(output.code == Some(3) && output.out.contains("cluster.trusted  Pending"), "{output:?}");
    let output = cluster.proviso(&["status", "-A"]).await?;
    ensure!(output.code == Some(1) && !output.out.contains('\u{1b}'), "{output:?}");
    let row = output.out.lines().find(|line| line.contains("ns.team.labels")).context("its row")?;
    let cells: Vec<_> = row.split_whitespace().take(6).collect();
    ensure!(cells == ["ns.team.labels", "Failed", "1", "2", "Protect", "0/1"], "{row}");
    ensure!(output.out.contains(&format!("CompileError: {MESSAGE}")), "{output:?}");

    // The status of one policy, by each of its names. As a kubectl plugin, the program names itself `kubectl proviso`.
    for name in ["policy/labels", "pvp/labels", "labels"] {
        let output = cluster.proviso(&["status", name, "-n", TEAM]).await?;
        ensure!(output.code == Some(1) && output.out.starts_with("ns.team.labels  Failed\n"), "{name}: {output:?}");
    }
    let output = run("kubectl-proviso", cluster.plane.kubeconfig(), &["status", "ns.team.labels"]).await?;
    for wanted in [
        "generation 2 does not work; generation 1 goes on answering\n",
        "Replicas of generation 1 (live)\n",
        "policy-server-default-0  True",
        "generation 2: spec.program",
        "Undo the change: kubectl proviso rollback ns.team.labels --to 1\n",
    ] {
        ensure!(output.out.contains(wanted), "{wanted}: {output:?}");
    }

    // The JSON and YAML documents.
    let report = cluster.proviso(&["status", "ns.team.labels", "-o", "json"]).await?.json()?;
    ensure!(report["policy"] == "ns.team.labels" && report["phase"] == "Failed" && report["liveGeneration"] == 1);
    ensure!(report["problem"] == json!({"reason": "CompileError", "message": MESSAGE}), "{report:#}");
    ensure!(report["revisions"][1]["replicas"][0]["name"] == "policy-server-default-0", "{report:#}");
    ensure!(report["events"][0]["reason"] == "CompileError" && report["unseen"] == json!([]), "{report:#}");
    let overview = cluster.proviso(&["status", "-A", "-o", "yaml"]).await?;
    let overview: Value = serde_yaml::from_str(&overview.out)?;
    ensure!(overview["policies"][0]["policy"] == "cluster.trusted", "{overview:#}");

    // The revisions.
    let output = cluster.proviso(&["revisions", "list", "ns.team.labels"]).await?;
    let rows: Vec<_> = output.out.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>()).collect();
    ensure!(rows[1] == ["2", "Failed", "(CompileError)"] && rows[2][..2] == ["1", "Live"], "{output:?}");
    ensure!(output.out.lines().nth(1).is_some_and(|row| row.ends_with("settings.label")), "{output:?}");
    let shown = cluster.proviso(&["revisions", "show", "ns.team.labels", "1", "-o", "json"]).await?.json()?;
    ensure!(shown["state"] == "Live" && shown["spec"]["settings"]["label"] == "owner", "{shown:#}");
    let output = cluster.proviso(&["revisions", "show", "ns.team.labels", "2"]).await?;
    ensure!(output.out.contains(MESSAGE) && output.out.contains("\nsettings:\n  label: team\n"), "{output:?}");
    let output = cluster.proviso(&["revisions", "diff", "ns.team.labels"]).await?;
    ensure!(
        output.out.starts_with("--- ns.team.labels generation 1 (live)\n+++ ns.team.labels generation 2 (newest)\n")
    );
    ensure!(output.out.ends_with("-  label: owner\n+  label: team\n"), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_watch_writes_a_document_for_each_change() -> Result<()> {
    let mut cluster = TestCluster::with_kinds("cli-watch").await?;
    cluster.policy("labels", "owner").await?;
    let mut watch = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(["status", "ns.team.labels", "--watch", "-o", "json", "--kubeconfig"])
        .arg(cluster.plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut reports = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    let mut errors = BufReader::new(watch.stderr.take().context("stderr")?).lines();
    let mut next = async || -> Result<Value> {
        let line = tokio::time::timeout(WAIT_TIMEOUT, reports.next_line()).await??.context("the output has ended")?;
        Ok(serde_json::from_str(&line)?)
    };
    ensure!(next().await?["phase"] == "Pending");
    cluster.status("labels", active(1)).await?;
    let report = next().await?;
    ensure!(report["phase"] == "Active" && report["liveGeneration"] == 1, "{report:#}");
    // The watch continues while the API server does not answer.
    cluster.plane.api_server(0).process().kill();
    let error = tokio::time::timeout(WAIT_TIMEOUT, errors.next_line()).await??.context("the output has ended")?;
    ensure!(error.contains("does not answer"), "{error}");
    cluster.plane.api_server(0).process().restart()?;
    cluster.plane.api_server(0).until_ready().await?;
    ensure!(next().await?["phase"] == "Active");
    Ok(())
}

#[tokio::test]
async fn errors_have_a_remedy() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-errors").await?;
    cluster.failed_update().await?;
    cluster.cluster_policy("labels").await?;
    let team = ["-n", TEAM];
    for (arguments, code, wanted) in [
        (vec!["status", "labels"], 1, "Use one of these names: ns.team.labels, cluster.labels."),
        (vec!["status", "policy/lables"], 1, "Did you mean cluster.labels or ns.team.labels?"),
        (vec!["revisions", "show", "policy/labels", "7"], 1, "Kept generations: 1, 2."),
        (vec!["revisions", "diff", "policy/labels", "7"], 1, "no revision of generation 7"),
        (vec!["rollback", "policy/labels", "--to", "7"], 1, "Kept generations: 1, 2."),
        (vec!["rollback", "clusterpolicy/labels"], 1, "has no generation to roll back to"),
        (vec!["revisions", "diff", "clusterpolicy/labels"], 2, "has no live generation"),
        (vec!["status", "ns.other.labels"], 2, "--namespace says team"),
        (vec!["status", "pod/labels"], 2, "policy/NAME"),
    ] {
        let output = cluster.proviso(&[arguments.as_slice(), &team].concat()).await?;
        ensure!(output.code == Some(code) && output.err.contains(wanted), "{arguments:?}: {output:?}");
    }
    // The user forgot the namespace.
    let output = cluster.proviso(&["status", "policy/labels"]).await?;
    ensure!(output.err.contains("there is no Policy labels in the namespace default"), "{output:?}");
    ensure!(output.err.contains("ns.team.labels"), "{output:?}");

    let nowhere = cluster.kubeconfig("nowhere", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    })?;
    let output = run("proviso", &nowhere, &["status"]).await?;
    ensure!(output.code == Some(1) && output.err.contains("https://127.0.0.1:1 does not answer: "), "{output:?}");
    ensure!(output.err.contains("refused") && output.err.contains("kubectl config current-context"), "{output:?}");
    let stranger = cluster.kubeconfig("stranger", |config| config["users"][0]["user"] = json!({"token": "expired"}))?;
    let output = run("proviso", &stranger, &["status"]).await?;
    ensure!(output.err.contains("refused the credentials") && output.err.contains("Log in again"), "{output:?}");
    let output = cluster.proviso(&["status", "--context", "other"]).await?;
    ensure!(output.err.contains("Choose a context with --context: e2e."), "{output:?}");
    let output = run("proviso", Path::new("/nowhere"), &["status"]).await?;
    ensure!(output.code == Some(1) && output.err.contains("/nowhere"), "{output:?}");
    let without_kubeconfig = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .arg("status")
        .env("HOME", "/nowhere")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output();
    let errors = String::from_utf8(without_kubeconfig.await?.stderr)?;
    ensure!(errors.contains("there is no kubeconfig") && errors.contains("--kubeconfig or KUBECONFIG"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_without_proviso_has_its_own_error() -> Result<()> {
    let cluster = TestCluster::start("cli-not-installed").await?;
    for arguments in [vec!["status"], vec!["status", "labels"], vec!["rollback", "cluster.labels"]] {
        let output = cluster.proviso(&arguments).await?;
        ensure!(output.code == Some(1), "{output:?}");
        ensure!(output.err.contains("CustomResourceDefinitions are not installed"), "{arguments:?}: {output:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_of_one_namespace_sees_problems_and_omissions() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-namespaced").await?;
    let policy = cluster.failed_update().await?;
    let reader = cluster.user("reader", "get,list", "policies.proviso.dev").await?;
    let output = run("proviso", &reader, &["status", "-n", TEAM]).await?;
    ensure!(output.code == Some(1) && output.out.contains(MESSAGE), "{output:?}");
    ensure!(
        output.out.ends_with("Not shown: ClusterPolicies: you may not list clusterpolicies.proviso.dev.\n"),
        "{output:?}"
    );
    // A name without a kind means the kind that the user may read.
    let output = run("proviso", &reader, &["status", "labels", "-n", TEAM]).await?;
    ensure!(output.out.contains(&format!("CompileError: {MESSAGE}")), "{output:?}");
    ensure!(output.out.contains("Live    generation 1\n") && output.out.contains("0 of 1 replicas"), "{output:?}");
    let missing = "\
Not shown: the status of each replica: you may not list policyrevisions.proviso.dev in the namespace proviso-system.
Not shown: events: you may not list events in the namespace team.
";
    ensure!(output.out.ends_with(missing), "{output:?}");
    let report = run("proviso", &reader, &["status", "labels", "-n", TEAM, "-o", "json"]).await?.json()?;
    ensure!(report["unseen"][0]["reason"] == "Forbidden" && report["revisions"] == json!([]), "{report:#}");
    // A command about revisions only names the missing permission.
    let output = run("proviso", &reader, &["revisions", "list", "policy/labels", "-n", TEAM]).await?;
    let permission = "kubectl auth can-i list policyrevisions.proviso.dev -n proviso-system";
    ensure!(output.code == Some(1) && output.err.contains(permission) && output.err.contains("reader"), "{output:?}");
    let output = run("proviso", &reader, &["status", "-A"]).await?;
    ensure!(output.err.contains("you may not list policies.proviso.dev"), "{output:?}");
    let output = run("proviso", &reader, &["rollback", "policy/labels", "-n", TEAM, "--to", "1"]).await?;
    ensure!(output.err.contains("you may not patch policies.proviso.dev in the namespace team"), "{output:?}");

    // A user who may change the policy may request a rollback, and the operator answers with an Event in that namespace.
    let owner = cluster.user("owner", "get,list,patch", "policies.proviso.dev,events").await?;
    let rollback = ["rollback", "policy/labels", "-n", TEAM, "--to", "7"];
    let operator = async {
        ensure!(cluster.take_rollback_request("labels").await? == "7");
        let note = "there is no generation 7 to roll back to; retained generations: 1, 2";
        cluster.event(&policy, EventType::Warning, "RollbackRefused", note).await
    };
    let (output, operator) = tokio::join!(run("proviso", &owner, &rollback), operator);
    operator?;
    let output = output?;
    ensure!(
        output.code == Some(1) && output.out.contains("the operator refused: there is no generation 7"),
        "{output:?}"
    );
    // A generation that is not live is undone without `--to`; a live generation needs `--to`.
    let operator = async {
        ensure!(cluster.take_rollback_request("labels").await? == "1");
        cluster.policy("labels", "owner").await?;
        cluster.status("labels", active(3)).await
    };
    let undo = ["rollback", "policy/labels", "-n", TEAM];
    let (output, operator) = tokio::join!(run("proviso", &owner, &undo), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(0) && output.out.contains("generation 3 answers requests"), "{output:?}");
    let output = run("proviso", &owner, &undo).await?;
    ensure!(output.code == Some(1) && output.err.contains("rollback ns.team.labels --to GENERATION"), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_rollback_is_followed_to_its_outcome() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-rollback").await?;
    cluster.failed_update().await?;
    let rollback = ["rollback", "ns.team.labels"];

    // A dry run changes nothing.
    let output = cluster.proviso(&[rollback.as_slice(), &["--dry-run"]].concat()).await?;
    ensure!(output.code == Some(0) && output.out.contains("-  label: team\n+  label: owner\n"), "{output:?}");
    ensure!(
        output.out.ends_with("would get the spec of generation 1, as generation 3. Nothing was changed.\n"),
        "{output:?}"
    );
    let policy = cluster.policies().get("labels").await?;
    ensure!(policy.metadata.generation == Some(2) && !policy.annotations().contains_key(ROLLBACK_TO), "{policy:?}");

    // The failed update is undone.
    let operator = async {
        ensure!(cluster.take_rollback_request("labels").await? == "1");
        cluster.policy("labels", "owner").await?;
        cluster.status("labels", active(3)).await
    };
    let (output, operator) = tokio::join!(cluster.proviso(&rollback), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(
        output.out.starts_with("ns.team.labels: rolls back to generation 1; changes settings.label\n"),
        "{output:?}"
    );
    ensure!(output.out.ends_with("generation 3 answers requests, with the spec of generation 1\n"), "{output:?}");

    // The policy has the requested spec already.
    let output = cluster.proviso(&[rollback.as_slice(), &["--to", "1"]].concat()).await?;
    ensure!(output.code == Some(0) && output.out.contains("nothing to do"), "{output:?}");
    let policy = cluster.policies().get("labels").await?;
    ensure!(!policy.annotations().contains_key(ROLLBACK_TO), "no rollback was requested");

    // The requested spec does not work any more.
    let operator = async {
        ensure!(cluster.take_rollback_request("labels").await? == "2");
        cluster.policy("labels", "team").await?;
        cluster.status("labels", failed(4, 3)).await
    };
    let to = [rollback.as_slice(), &["--to", "2"]].concat();
    let (output, operator) = tokio::join!(cluster.proviso(&to), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(1) && output.out.contains(&format!("CompileError: {MESSAGE}")), "{output:?}");
    ensure!(output.out.contains("generation 4 does not work; generation 3 goes on answering"), "{output:?}");

    // The API server refuses the requested spec. The user sees the cause without an Event, and at once.
    let cause = "the rollback to generation 1 is refused: no longer permitted";
    let operator = async {
        let mut refused = failed(4, 3);
        let conditions = refused["conditions"].as_array_mut().context("conditions")?;
        conditions.push(condition("RolledBack", "False", "RollbackRefused", cause, 4));
        cluster.until_rollback_request("labels").await?;
        cluster.status("labels", refused).await?;
        ensure!(cluster.take_rollback_request("labels").await? == "1");
        anyhow::Ok(())
    };
    let to = [rollback.as_slice(), &["--to", "1"]].concat();
    let (output, operator) = tokio::join!(cluster.proviso(&to), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(1) && output.out.contains(&format!("the operator refused: {cause}")), "{output:?}");
    let output = cluster.proviso(&["status", "ns.team.labels"]).await?;
    ensure!(output.out.contains("Rolled back") && output.out.contains(cause), "{output:?}");
    cluster.status("labels", failed(4, 3)).await?;

    // The operator does not process the request.
    let output = cluster.proviso(&["rollback", "ns.team.labels", "--to", "1", "--timeout", "0s"]).await?;
    let remedy = "kubectl annotate policies.proviso.dev labels -n team proviso.dev/rollback-to-";
    ensure!(output.code == Some(1) && output.out.contains(remedy), "{output:?}");
    ensure!(cluster.take_rollback_request("labels").await? == "1");
    // `--wait=false` only makes the request.
    let output = cluster.proviso(&["rollback", "ns.team.labels", "--to", "1", "--wait=false"]).await?;
    ensure!(output.code == Some(0) && output.out.contains("proviso status ns.team.labels --watch"), "{output:?}");
    ensure!(cluster.take_rollback_request("labels").await? == "1");
    let events = Api::<Event>::namespaced(cluster.client.clone(), TEAM).list(&ListParams::default()).await?;
    ensure!(events.items.len() == 1, "the program makes no Events: {events:?}");
    Ok(())
}
