//! `proviso experiment` with a real API server. The test acts as the operator: it writes the status of experiments.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use proviso_core::experiment::etag;
use proviso_e2e::until;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::actions::{Actions, Call};
use crate::test_cluster::{TEAM, TestCluster, WAIT_TIMEOUT, active, run, spec};

/// Returns the arguments of a `proviso experiment` command.
fn exp<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["experiment"], arguments].concat()
}

/// Creates the policy `labels`, whose generation 1 is live.
async fn live(cluster: &TestCluster) -> Result<()> {
    cluster.policy("labels", "owner").await?;
    cluster.status("labels", active(1)).await
}

#[tokio::test]
async fn an_experiment_is_created_shown_and_deleted() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-experiment").await?;
    live(&cluster).await?;
    let file = cluster.file("changed.json", &json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels"}, "spec": spec("team"),
    }))?;
    let create = exp(&["create", "stricter", "--from", "policy/labels", "-n", TEAM, "-f", &file]);

    // A dry run changes nothing.
    let output = cluster.proviso(&[create.as_slice(), &["--dry-run"]].concat()).await?;
    ensure!(output.code == Some(0) && output.out.contains("-  label: owner\n+  label: team\n"), "{output:?}");
    ensure!(output.out.ends_with("the API server would accept it. Nothing was created.\n"), "{output:?}");
    ensure!(!output.out.contains("enabled"), "a default that the file leaves out is not a difference: {output:?}");
    let output = cluster.proviso(&[create.as_slice(), &["-o", "yaml", "--auto-start"]].concat()).await?;
    let printed: Value = serde_yaml::from_str(&output.out)?;
    ensure!(printed["kind"] == "PolicyExperiment" && printed["metadata"]["namespace"] == TEAM, "{output:?}");
    ensure!(printed["spec"]["autoStart"] == true && printed["spec"]["policy"] == spec("team"), "{output:?}");
    ensure!(cluster.experiments().list(&ListParams::default()).await?.items.is_empty(), "nothing was created");

    let output = cluster.proviso(&create).await?;
    ensure!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    ensure!(output.out.contains("proviso experiment start ns.team.stricter --wait"), "{output:?}");
    let made = cluster.experiments().get("stricter").await?;
    ensure!(made.spec.policy_ref.name == "labels" && made.spec.policy.settings["label"] == "team", "{made:?}");
    let output = cluster.proviso(&create).await?;
    ensure!(output.code == Some(1) && output.err.contains("already exists"), "{output:?}");

    // A copy, and a preview of the deletion.
    let output = cluster.proviso(&exp(&["create", "copy", "--from", "ns.team.labels"])).await?;
    ensure!(output.code == Some(0) && output.err.contains("does not differ from ns.team.labels"), "{output:?}");
    ensure!(output.err.contains("kubectl edit policyexperiment copy -n team"), "{output:?}");
    let output = cluster.proviso(&exp(&["create", "gone", "--from", "ns.team.labels", "--no-op"])).await?;
    ensure!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    let made = serde_json::to_value(&cluster.experiments().get("gone").await?.spec.policy)?;
    ensure!(made["program"] == json!({"cel": {"validations": []}}) && made["settings"]["label"] == "owner", "{made:#}");
    let policy = serde_json::to_value(&cluster.policies().get("labels").await?.spec)?;
    let copy = serde_json::to_value(&cluster.experiments().get("copy").await?.spec.policy)?;
    ensure!(copy == policy, "{copy:#}");

    // The differences are shown for each name of the experiment.
    for name in ["stricter", "pvx/stricter", "policyexperiment/stricter"] {
        let output = cluster.proviso(&exp(&["diff", name, "-n", TEAM])).await?;
        let heads = "--- ns.team.labels generation 1 (live, newest)\n+++ ns.team.stricter (experiment)\n";
        ensure!(
            output.out.starts_with(heads) && output.out.ends_with("-  label: owner\n+  label: team\n"),
            "{output:?}"
        );
    }
    let output = cluster.proviso(&exp(&["diff", "ns.team.copy"])).await?;
    ensure!(output.out == "No differences: ns.team.copy has the spec of ns.team.labels.\n", "{output:?}");

    // Standard input is not a terminal, so the program cannot ask for confirmation.
    let output = cluster.proviso(&exp(&["delete", "ns.team.gone"])).await?;
    ensure!(output.code == Some(2) && output.err.contains("use --yes"), "{output:?}");
    ensure!(cluster.experiments().get_opt("gone").await?.is_some());
    let output = cluster.proviso(&exp(&["delete", "ns.team.gone", "--yes"])).await?;
    ensure!(output.code == Some(0) && output.out.contains("ns.team.labels is unchanged"), "{output:?}");
    ensure!(cluster.experiments().get_opt("gone").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn status_shows_how_verdicts_differ() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-experiment-status").await?;
    live(&cluster).await?;
    cluster.cluster_policy("labels").await?;
    let output = cluster.proviso(&exp(&["status", "policy/labels", "-n", TEAM])).await?;
    ensure!(output.code == Some(0) && output.out == "There is no experiment of ns.team.labels.\n", "{output:?}");
    for from in ["policy/labels", "clusterpolicy/labels"] {
        let output = cluster.proviso(&exp(&["create", "stricter", "--from", from, "--no-op", "-n", TEAM])).await?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    let made = cluster.preview("stricter", 120).await?;

    // The status of all experiments, of those of a policy, and of one experiment.
    let rows = |out: &str| -> Vec<Vec<String>> {
        out.lines().skip(1).map(|row| row.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let output = cluster.proviso(&exp(&["status", "-A"])).await?;
    ensure!(rows(&output.out).len() == 2 && output.code == Some(0), "{output:?}");
    let output = cluster.proviso(&["exp", "status", "pvp/labels", "-n", TEAM]).await?;
    let row = rows(&output.out).remove(0);
    let wanted = ["ns.team.stricter", "labels", "ACTIVE"];
    ensure!(row[..3] == wanted && row[4..] == ["120", "110", "10", "0", "99.1%", "2/2"], "{output:?}");
    let output = cluster.proviso(&exp(&["status", "stricter", "-n", TEAM])).await?;
    ensure!(output.code == Some(1) && output.err.contains("is the name of two experiments"), "{output:?}");
    ensure!(output.err.contains("Use one of these names: ns.team.stricter, cluster.stricter."), "{output:?}");
    let output = cluster.proviso(&exp(&["status", "pvx/stricter", "-n", TEAM])).await?;
    for wanted in [
        "ns.team.stricter  ACTIVE\nits verdict differs for 10 of 120 requests\n",
        &format!("Etag        {}\n", etag(&made.uid().unwrap_or_default(), 1)),
        "NewlyDenied      10        8.3%   allowed now, would be denied\n",
        "DetailsDiffer    0         0.0%   same decision; the details differ\n",
        "Evaluated: 120 of 121 requests (coverage 99.1%).\n",
        "Warning: 1 request was not evaluated, because too many were waiting.\n",
        "NewlyDenied  Pod   team       alice  10 ",
        "Previewing   True ",
        "Commit it: proviso experiment commit ns.team.stricter\n",
    ] {
        ensure!(output.out.contains(wanted), "{wanted}: {output:?}");
    }

    // The JSON and YAML documents.
    let report = cluster.proviso(&exp(&["status", "ns.team.stricter", "-o", "json"])).await?.json()?;
    ensure!(report["state"] == "ACTIVE" && report["policy"] == "ns.team.labels", "{report:#}");
    ensure!(report["divergence"]["newlyDenied"] == 10 && report["samples"][0]["user"] == "alice", "{report:#}");
    ensure!(report["coverage"].as_f64().is_some_and(|it| (0.991..0.992).contains(&it)), "{report:#}");
    ensure!(report["warnings"][0]["reason"] == "Dropped" && report["sampleRate"] == 1.0, "{report:#}");
    ensure!(report["divergence"]["etag"] == report["etag"] && report["ttl"] == "336h", "{report:#}");
    let output = cluster.proviso(&exp(&["status", "ns.team.stricter", "-o", "csv"])).await?;
    let lines: Vec<_> = output.out.lines().collect();
    ensure!(output.code == Some(0) && lines.len() == 1 + 9 + 1, "{output:?}");
    ensure!(
        lines[0].starts_with("time,experiment,policy,etag,liveEtag,") && lines[1].contains(",count,Evaluated,120,")
    );
    ensure!(lines[10].contains(",sample,NewlyDenied,10,Pod,team,alice,web,the label team is missing,"), "{output:?}");
    let all = cluster.proviso(&exp(&["status", "-A", "-o", "yaml"])).await?;
    let all: Value = serde_yaml::from_str(&all.out)?;
    ensure!(all["experiments"][0]["experiment"] == "cluster.stricter", "{all:#}");
    ensure!(all["experiments"][0].get("state").is_none() && all["unseen"] == json!([]), "{all:#}");

    // The counts are of another version of the policy than the live one.
    cluster.live_etag("stricter", "\"another\"").await?;
    let output = cluster.proviso(&exp(&["status", "ns.team.stricter"])).await?;
    ensure!(
        output.out.contains("Warning: the counts are not about the version \"another\" of ns.team.labels"),
        "{output:?}"
    );

    // An update suspends the preview, even before the operator has reconciled it.
    cluster.change_experiment("stricter", "name").await?;
    let output = cluster.proviso(&exp(&["status", "ns.team.stricter"])).await?;
    ensure!(
        output.out.contains("SUSPENDED\nit was changed after its start: generation 2 is not previewed\n"),
        "{output:?}"
    );
    Ok(())
}

/// Starts a watch, and returns its process and the lines of its output.
fn watch(cluster: &TestCluster, arguments: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut watch = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(["experiment", "status", "--watch"])
        .args(arguments)
        .arg("--kubeconfig")
        .arg(cluster.plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    Ok((watch, lines))
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<String> {
    tokio::time::timeout(WAIT_TIMEOUT, lines.next_line()).await??.context("the output has ended")
}

#[tokio::test]
async fn a_watch_writes_a_line_for_each_change() -> Result<()> {
    let mut cluster = TestCluster::with_kinds("cli-experiment-watch").await?;
    live(&cluster).await?;
    cluster.proviso(&exp(&["create", "stricter", "--from", "ns.team.labels", "--no-op"])).await?;
    let (mut one, mut lines) = watch(&cluster, &["ns.team.stricter"])?;
    let (_all, mut documents) = watch(&cluster, &["-A", "-o", "json"])?;
    let (_table, mut rows) = watch(&cluster, &["-A", "-o", "csv"])?;
    ensure!(next(&mut rows).await?.starts_with("time,experiment,policy,"));
    let mut errors = BufReader::new(one.stderr.take().context("stderr")?).lines();
    ensure!(next(&mut lines).await?.ends_with(" ns.team.stricter NOT_STARTED"));
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0].get("state").is_none(), "{document:#}");

    cluster.preview("stricter", 120).await?;
    let line = next(&mut lines).await?;
    ensure!(line.contains(" ns.team.stricter ACTIVE evaluated=120 same=110 newlyDenied=10 "), "{line}");
    ensure!(line.ends_with(" dropped=1 coverage=99.1% replicas=2/2 warnings=Dropped"), "{line}");
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0]["divergence"]["evaluated"] == 120, "{document:#}");
    let row = next(&mut rows).await?;
    ensure!(row.contains(",ns.team.stricter,ns.team.labels,") && row.contains(",count,Evaluated,120,"), "{row}");

    // The watch continues while the API server does not answer.
    cluster.plane.api_server(0).process().kill();
    let error = tokio::time::timeout(WAIT_TIMEOUT, errors.next_line()).await??.context("the output has ended")?;
    ensure!(error.contains("does not answer"), "{error}");
    cluster.plane.api_server(0).process().restart()?;
    cluster.plane.api_server(0).until_ready().await?;
    until("a write", WAIT_TIMEOUT, async || cluster.preview("stricter", 130).await.map(drop)).await?;
    loop {
        if next(&mut lines).await?.contains("evaluated=130 ") {
            break;
        }
    }
    // The watch of one experiment ends when the experiment is deleted.
    cluster.proviso(&exp(&["delete", "ns.team.stricter", "--yes"])).await?;
    loop {
        if next(&mut lines).await?.ends_with(" ns.team.stricter GONE") {
            break;
        }
    }
    ensure!(tokio::time::timeout(WAIT_TIMEOUT, one.wait()).await??.success());
    Ok(())
}

#[tokio::test]
async fn errors_about_experiments_have_a_remedy() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-experiment-errors").await?;
    live(&cluster).await?;
    cluster.proviso(&exp(&["create", "stricter", "--from", "ns.team.labels", "--no-op"])).await?;
    let pod = cluster.file("pod.json", &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "labels"}}))?;
    let mut wrong = spec("team");
    wrong["programm"] = json!({});
    let wrong = cluster.file("wrong.json", &wrong)?;
    let from = ["create", "a", "--from", "ns.team.labels", "-f"];
    for (arguments, code, wanted) in [
        ([from.as_slice(), &[pod.as_str()]].concat(), 1, "pod.json: apiVersion: is \"v1\""),
        ([from.as_slice(), &[wrong.as_str()]].concat(), 1, "wrong.json: programm: is not a field of a policy"),
        ([from.as_slice(), &["/nowhere.yaml"]].concat(), 1, "/nowhere.yaml cannot be read"),
        ([from.as_slice(), &["-", "--start", "-o", "yaml"]].concat(), 2, "-o only prints it"),
        (vec!["create", "a", "--from", "ns.team.lables"], 1, "Did you mean ns.team.labels?"),
        (vec!["diff", "ns.team.strict"], 1, "there is no PolicyExperiment strict in the namespace team"),
        (vec!["diff", "ns.team.strict"], 1, "`proviso experiment status -A` shows all."),
        (vec!["start", "policy/labels"], 2, "policyexperiment/NAME"),
        (vec!["commit", "ns.team.stricter"], 2, "use --yes"),
        (vec!["commit", "ns.team.stricter", "--yes", "--etag", "old"], 1, "its etag is"),
        // The cluster does not serve the aggregated API.
        (vec!["start", "ns.team.stricter"], 1, "this cluster does not serve actions.proviso.dev/v1alpha1"),
        (vec!["start", "ns.team.stricter"], 1, "kubectl patch policyexperiment stricter -n team --type merge"),
        (vec!["stop", "ns.team.stricter"], 1, "proviso experiment delete ns.team.stricter"),
        (vec!["commit", "ns.team.stricter", "--yes"], 1, "ns.team.stricter was not committed"),
    ] {
        let output = cluster.proviso(&exp(&arguments)).await?;
        let err = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(output.code == Some(code) && err.contains(wanted), "{arguments:?}: {output:?}");
    }
    ensure!(cluster.experiments().get_opt("a").await?.is_none());

    // A user who may list one kind, and may not watch it, learns which permission is missing.
    let reader = cluster.user("reader", "get,list", "policyexperiments.proviso.dev").await?;
    let output = run("proviso", &reader, &exp(&["status", "-n", TEAM, "--watch"])).await?;
    let permission = "kubectl auth can-i watch policyexperiments.proviso.dev -n team";
    ensure!(output.code == Some(1) && output.err.contains(permission), "{output:?}");
    let output = run("proviso", &reader, &exp(&["status", "-n", TEAM])).await?;
    let missing = "Not shown: ClusterPolicyExperiments: you may not list clusterpolicyexperiments.proviso.dev.\n";
    ensure!(output.code == Some(0) && output.out.ends_with(missing), "{output:?}");
    let output = run("proviso", &reader, &exp(&["start", "stricter", "-n", TEAM])).await?;
    let permission = "kubectl auth can-i create policyexperiments.actions.proviso.dev --subresource=start -n team";
    ensure!(output.code == Some(1) && output.err.contains(permission), "{output:?}");

    // The policy of the experiment is deleted.
    cluster.policies().delete("labels", &DeleteParams::default()).await?;
    let output = cluster.proviso(&exp(&["diff", "ns.team.stricter"])).await?;
    ensure!(
        output.code == Some(1) && output.err.contains("is an experiment of ns.team.labels, which does not exist"),
        "{output:?}"
    );
    Ok(())
}

/// The path of the experiment in the aggregated API.
const STRICTER: &str = "namespaces/team/policyexperiments/stricter";

/// Returns the call of the aggregated API that starts or stops the preview.
fn call(action: &str, kind: &str) -> Call {
    let body = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": kind});
    Call { path: format!("{STRICTER}/{action}"), body }
}

/// Starts a cluster with an aggregated API, and creates and starts an experiment.
async fn started(name: &str) -> Result<(TestCluster, Actions)> {
    let cluster = TestCluster::with_kinds(name).await?;
    live(&cluster).await?;
    let file = cluster.file("changed.json", &spec("team"))?;
    let mut actions = Actions::serve(&cluster).await?;
    let create = exp(&["create", "stricter", "--from", "ns.team.labels", "-f", &file, "--start"]);
    let output = cluster.proviso(&create).await?;
    ensure!(output.code == Some(0) && output.out.contains("ns.team.stricter: started: "), "{output:?}");
    ensure!(actions.next().await? == call("start", "PreviewStart"));
    Ok((cluster, actions))
}

#[tokio::test]
async fn previews_are_started_and_stopped_by_the_aggregated_api() -> Result<()> {
    let (cluster, mut actions) = started("cli-experiment-actions").await?;
    let (start, stop) = (call("start", "PreviewStart"), call("stop", "PreviewStop"));

    // `--wait` follows the preview until every replica previews the experiment. The real API answers when the status is ACTIVE.
    cluster.loading("stricter").await?;
    let operator = async {
        ensure!(actions.next().await? == start);
        cluster.preview("stricter", 0).await.map(drop)
    };
    let wait = exp(&["start", "ns.team.stricter", "--wait"]);
    let (output, operator) = tokio::join!(cluster.proviso(&wait), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(0) && output.out.ends_with("every replica previews it\n"), "{output:?}");
    cluster.loading("stricter").await?;
    let output = cluster.proviso(&[wait.as_slice(), &["--timeout", "0s"]].concat()).await?;
    ensure!(
        output.code == Some(1) && output.out.contains("not every Ready replica has loaded it (1/2 replicas)"),
        "{output:?}"
    );
    ensure!(actions.next().await? == start);

    // The operator undoes a start that fails.
    let operator = async {
        ensure!(actions.next().await? == start);
        cluster.failed_start("stricter", "LoadingFailed", "server-0: CacheError").await
    };
    let (output, operator) = tokio::join!(cluster.proviso(&wait), operator);
    operator?;
    let output = output?;
    let wanted = "ns.team.stricter: its preview was stopped: LoadingFailed: server-0: CacheError\n";
    ensure!(output.code == Some(1) && output.out.ends_with(wanted), "{output:?}");

    // `stop` waits until no replica evaluates the experiment any more, and prints the final counts.
    cluster.stopped("stricter", "Stopping").await?;
    let operator = async {
        ensure!(actions.next().await? == stop);
        cluster.stopped("stricter", "Suspended").await
    };
    let stopping = exp(&["stop", "ns.team.stricter"]);
    let (output, operator) = tokio::join!(cluster.proviso(&stopping), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(0) && output.out.contains("ns.team.stricter: stopped: SUSPENDED; "), "{output:?}");
    let wanted = "no replica evaluates it any more; its verdict differs for 10 of 120 requests\n";
    ensure!(output.out.ends_with(wanted), "{output:?}");
    cluster.stopped("stricter", "Stopping").await?;
    let output = cluster.proviso(&[stopping.as_slice(), &["--timeout", "0s"]].concat()).await?;
    ensure!(output.code == Some(1) && output.out.contains("not stopped on every replica yet; more: "), "{output:?}");
    ensure!(actions.next().await? == stop);
    let output = cluster.proviso(&[stopping.as_slice(), &["--wait=false"]].concat()).await?;
    ensure!(output.code == Some(0) && output.out.lines().count() == 1, "{output:?}");
    ensure!(actions.next().await? == stop);
    Ok(())
}

#[tokio::test]
async fn a_commit_by_the_aggregated_api_reports_refusals_and_follows_the_policy() -> Result<()> {
    let (cluster, mut actions) = started("cli-experiment-commits").await?;
    // The message and the remedy of a refusal are shown, and that nothing was changed.
    cluster.preview("stricter", 120).await?;
    let commit = exp(&["commit", "ns.team.stricter", "--yes"]);
    for (code, reason, message, remedy) in [
        (409, "ETAG_MISMATCH", "the experiment has another etag", "proviso experiment diff ns.team.stricter"),
        (400, "NOT_PREPARED", "it is still being prepared", "proviso experiment start ns.team.stricter --wait"),
        (400, "DOES_NOT_WORK", "CompileError: no", "Correct the experiment's spec.policy"),
        (409, "COMMIT_UNDER_WAY", "it is being committed", "Wait until the other commit has ended"),
    ] {
        actions.refuse(code, reason, message);
        let output = cluster.proviso(&commit).await?;
        let refusal = format!("ns.team.stricter was not committed, and nothing was changed: {message}");
        let err = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(output.code == Some(1) && err.contains(&refusal) && err.contains(remedy), "{output:?}");
        actions.next().await?;
    }
    actions.answer(504, "Timeout", "the operator is slow");
    let output = cluster.proviso(&commit).await?;
    ensure!(output.code == Some(1) && output.out.contains("it is unknown if the commit succeeded"), "{output:?}");
    actions.next().await?;
    actions.refuse(503, "UNKNOWN_OUTCOME", "the API server does not answer");
    let output = cluster.proviso(&commit).await?;
    ensure!(output.code == Some(1) && output.out.contains("it is unknown if the commit succeeded"), "{output:?}");
    actions.next().await?;
    actions.answer(503, "ServiceUnavailable", "the operator is starting");
    let output = cluster.proviso(&commit).await?;
    ensure!(output.code == Some(1) && output.err.contains("now: the operator is starting"), "{output:?}");
    actions.next().await?;
    ensure!(actions.calls.try_recv().is_err(), "a commit is not sent twice");

    // A commit names the versions that were shown, and follows the policy until it is live.
    actions.succeed();
    let experiment = cluster.experiments().get("stricter").await?;
    let policy = cluster.policies().get("labels").await?;
    let wanted = json!({
        "apiVersion": "actions.proviso.dev/v1alpha1", "kind": "ExperimentCommit",
        "etag": etag(&experiment.uid().unwrap_or_default(), 1),
        "parentEtag": etag(&policy.uid().unwrap_or_default(), 1),
    });
    let operator = async {
        let call = actions.next().await?;
        ensure!(call == Call { path: format!("{STRICTER}/commit"), body: wanted }, "{call:?}");
        cluster.policy("labels", "team").await?;
        cluster.experiments().delete("stricter", &DeleteParams::default()).await?;
        cluster.status("labels", active(2)).await
    };
    let (output, operator) = tokio::join!(cluster.proviso(&commit), operator);
    operator?;
    let output = output?;
    ensure!(
        output.code == Some(0) && output.out.contains("its verdict differs for 10 of 120 requests\n"),
        "{output:?}"
    );
    ensure!(output.out.contains("-  label: owner\n+  label: team\n"), "{output:?}");
    let live = "ns.team.labels: generation 2 answers requests, with the spec of the experiment ns.team.stricter\n";
    let undo = "ns.team.labels: to undo the commit: proviso rollback ns.team.labels --to 1\n";
    ensure!(output.out.ends_with(&format!("{live}{undo}")), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_commit_to_a_file_writes_the_policy_for_a_repository_and_changes_nothing_else() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-experiment-to-file").await?;
    live(&cluster).await?;
    let file = cluster.file("changed.json", &spec("team"))?;
    let output = cluster.proviso(&exp(&["create", "stricter", "--from", "ns.team.labels", "-f", &file])).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let metadata = json!({
        "labels": {"kustomize.toolkit.fluxcd.io/name": "policies", "app.kubernetes.io/part-of": "team"},
        "annotations": {"proviso.dev/changed-by": "alice", "team.example.com/contact": "bob"},
    });
    cluster.policy_metadata("labels", &metadata).await?;
    let policy = cluster.policies().get("labels").await?;
    let experiment = cluster.experiments().get("stricter").await?;

    // Standard output has only the manifest.
    let to_file = exp(&["commit", "ns.team.stricter", "--to-file"]);
    let to_stdout = [to_file.as_slice(), &["-"]].concat();
    let output = cluster.proviso(&to_stdout).await?;
    let manifest: Value = serde_yaml::from_str(&output.out)?;
    ensure!(output.code == Some(0) && manifest["kind"] == "Policy" && manifest.get("status").is_none(), "{output:?}");
    ensure!(manifest["spec"]["settings"]["label"] == "team", "{manifest:#}");
    let wanted = json!({
        "name": "labels", "namespace": TEAM, "labels": {"app.kubernetes.io/part-of": "team"},
        "annotations": {"team.example.com/contact": "bob"},
    });
    ensure!(manifest["metadata"] == wanted, "{manifest:#}");
    ensure!(output.err.contains("Its differences are unknown") && output.err.contains("+  label: team"), "{output:?}");
    ensure!(
        output.err.contains("Then delete the experiment: proviso experiment delete ns.team.stricter\n"),
        "{output:?}"
    );
    let first = output.out.lines().next().context("a comment")?;
    for (object, uid) in [("ns.team.stricter", experiment.uid()), ("ns.team.labels", policy.uid())] {
        let etag = etag(&uid.unwrap_or_default(), 1);
        ensure!(first.starts_with("# ") && first.contains(&format!("{object} ({etag})")), "{first}");
    }

    // A file is never overwritten. The new file can be applied.
    let path = cluster.plane.folder().path().join("labels.yaml");
    let path = path.to_str().context("UTF-8")?;
    let write = [to_file.as_slice(), &[path]].concat();
    let output = cluster.proviso(&write).await?;
    ensure!(output.code == Some(0) && output.out.contains("nothing else was changed\n"), "{output:?}");
    ensure!(output.out.contains("proviso status ns.team.labels\n"), "{output:?}");
    let output = cluster.proviso(&write).await?;
    ensure!(output.code == Some(1) && output.err.contains("exists already"), "{output:?}");
    let output =
        cluster.proviso(&exp(&["create", "again", "--from", "ns.team.labels", "-f", path, "--dry-run"])).await?;
    ensure!(output.code == Some(0) && output.out.contains("-  label: owner\n+  label: team\n"), "{output:?}");

    // Another version than the required one is not written.
    let output = cluster.proviso(&[to_stdout.as_slice(), &["--parent-etag", "old"]].concat()).await?;
    ensure!(output.code == Some(1) && output.out.is_empty() && output.err.contains("its etag is"), "{output:?}");
    // An experiment that does not work is not written.
    cluster.broken("stricter", "no").await?;
    let output = cluster.proviso(&to_stdout).await?;
    ensure!(output.code == Some(1) && output.out.is_empty() && output.err.contains("CompileError: no"), "{output:?}");

    // Nothing was changed, and a commit warns that Flux may undo it.
    ensure!(cluster.policies().get("labels").await?.metadata.resource_version == policy.metadata.resource_version);
    ensure!(cluster.experiments().get("stricter").await?.metadata.generation == Some(1));
    let output = cluster.proviso(&exp(&["commit", "ns.team.stricter", "--yes"])).await?;
    let err = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let warning = "warning: Flux applies ns.team.labels from a repository (label kustomize.toolkit.fluxcd.io/name)";
    ensure!(err.contains(warning) && err.contains("--to-file FILE"), "{output:?}");
    Ok(())
}
