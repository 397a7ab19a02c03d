//! `proviso experiment` with a real API server. The test acts as the operator: it writes the status of experiments.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use proviso_core::experiment::etag;
use proviso_e2e::until;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::actions::{Actions, Call};
use crate::test_cluster::{TEAM, TestCluster, active, run, spec};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

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
        "Evaluated: 120 of 121 requests (coverage 99.1%); too many came at once to evaluate the others.\n",
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
    let all = cluster.proviso(&exp(&["status", "-A", "-o", "yaml"])).await?;
    let all: Value = serde_yaml::from_str(&all.out)?;
    ensure!(all["experiments"][0]["experiment"] == "cluster.stricter", "{all:#}");
    ensure!(all["experiments"][0].get("state").is_none() && all["unseen"] == json!([]), "{all:#}");

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
    let mut errors = BufReader::new(one.stderr.take().context("stderr")?).lines();
    ensure!(next(&mut lines).await?.ends_with(" ns.team.stricter NOT_STARTED"));
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0].get("state").is_none(), "{document:#}");

    cluster.preview("stricter", 120).await?;
    let line = next(&mut lines).await?;
    ensure!(line.contains(" ns.team.stricter ACTIVE evaluated=120 same=110 newlyDenied=10 "), "{line}");
    ensure!(line.ends_with(" dropped=1 coverage=99.1% replicas=2/2"), "{line}");
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0]["divergence"]["evaluated"] == 120, "{document:#}");

    // The watch continues while the API server does not answer.
    cluster.plane.api_server(0).process().kill();
    let error = tokio::time::timeout(WAIT_TIMEOUT, errors.next_line()).await??.context("the output has ended")?;
    ensure!(error.contains("does not answer"), "{error}");
    cluster.plane.api_server(0).process().restart()?;
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

#[tokio::test]
async fn previews_are_started_stopped_and_committed_by_the_aggregated_api() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-experiment-actions").await?;
    live(&cluster).await?;
    let file = cluster.file("changed.json", &spec("team"))?;
    let mut actions = Actions::serve(&cluster).await?;
    let object = "namespaces/team/policyexperiments/stricter";
    let start = Call {
        path: format!("{object}/start"),
        body: json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStart"}),
    };

    let create = exp(&["create", "stricter", "--from", "ns.team.labels", "-f", &file, "--start"]);
    let output = cluster.proviso(&create).await?;
    ensure!(output.code == Some(0) && output.out.contains("ns.team.stricter: started: "), "{output:?}");
    ensure!(actions.next().await? == start);

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

    let output = cluster.proviso(&exp(&["stop", "ns.team.stricter"])).await?;
    ensure!(output.code == Some(0) && output.out.contains("stopped: "), "{output:?}");
    let stop = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStop"});
    ensure!(actions.next().await? == Call { path: format!("{object}/stop"), body: stop });

    // The message of a refusal is shown.
    actions.answer(409, "Conflict", "the experiment has another etag");
    cluster.preview("stricter", 120).await?;
    let commit = exp(&["commit", "ns.team.stricter", "--yes"]);
    let output = cluster.proviso(&commit).await?;
    ensure!(
        output.code == Some(1) && output.err.contains("was not committed: the experiment has another etag"),
        "{output:?}"
    );
    ensure!(output.err.contains("proviso experiment diff ns.team.stricter"), "{output:?}");
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
        ensure!(call == Call { path: format!("{object}/commit"), body: wanted }, "{call:?}");
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
