//! `proviso experiment` with a real API server. The test plays the operator: it writes the status of experiments.

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
use crate::stage::{Stage, TEAM, active, run, spec};

const PATIENCE: Duration = Duration::from_secs(30);

fn exp<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["experiment"], arguments].concat()
}

/// The policy `labels` at generation 1, live.
async fn live(stage: &Stage) -> Result<()> {
    stage.policy("labels", "owner").await?;
    stage.status("labels", active(1)).await
}

#[tokio::test]
async fn an_experiment_is_created_shown_and_deleted() -> Result<()> {
    let stage = Stage::with_kinds("cli-experiment").await?;
    live(&stage).await?;
    let file = stage.file("changed.json", &json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels"}, "spec": spec("team"),
    }))?;
    let create = exp(&["create", "stricter", "--from", "policy/labels", "-n", TEAM, "-f", &file]);

    // To look is to change nothing.
    let said = stage.proviso(&[create.as_slice(), &["--dry-run"]].concat()).await?;
    ensure!(said.code == Some(0) && said.out.contains("-  label: owner\n+  label: team\n"), "{said:?}");
    ensure!(said.out.ends_with("the API server would take it. Nothing was created.\n"), "{said:?}");
    ensure!(!said.out.contains("enabled"), "what the file leaves to its default is no difference: {said:?}");
    let said = stage.proviso(&[create.as_slice(), &["-o", "yaml", "--auto-start"]].concat()).await?;
    let printed: Value = serde_yaml::from_str(&said.out)?;
    ensure!(printed["kind"] == "PolicyExperiment" && printed["metadata"]["namespace"] == TEAM, "{said:?}");
    ensure!(printed["spec"]["autoStart"] == true && printed["spec"]["policy"] == spec("team"), "{said:?}");
    ensure!(stage.experiments().list(&ListParams::default()).await?.items.is_empty(), "nothing was created");

    let said = stage.proviso(&create).await?;
    ensure!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    ensure!(said.out.contains("proviso experiment start ns.team.stricter --wait"), "{said:?}");
    let made = stage.experiments().get("stricter").await?;
    ensure!(made.spec.policy_ref.name == "labels" && made.spec.policy.settings["label"] == "team", "{made:?}");
    let said = stage.proviso(&create).await?;
    ensure!(said.code == Some(1) && said.err.contains("already exists"), "{said:?}");

    // A copy, and a preview of the deletion.
    let said = stage.proviso(&exp(&["create", "copy", "--from", "ns.team.labels"])).await?;
    ensure!(said.code == Some(0) && said.err.contains("does not differ from ns.team.labels"), "{said:?}");
    ensure!(said.err.contains("kubectl edit policyexperiment copy -n team"), "{said:?}");
    let said = stage.proviso(&exp(&["create", "gone", "--from", "ns.team.labels", "--no-op"])).await?;
    ensure!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    let made = serde_json::to_value(&stage.experiments().get("gone").await?.spec.policy)?;
    ensure!(made["program"] == json!({"cel": {"validations": []}}) && made["settings"]["label"] == "owner", "{made:#}");
    let policy = serde_json::to_value(&stage.policies().get("labels").await?.spec)?;
    let copy = serde_json::to_value(&stage.experiments().get("copy").await?.spec.policy)?;
    ensure!(copy == policy, "{copy:#}");

    // What it would change, by any of its names.
    for name in ["stricter", "pvx/stricter", "policyexperiment/stricter"] {
        let said = stage.proviso(&exp(&["diff", name, "-n", TEAM])).await?;
        let heads = "--- ns.team.labels generation 1 (live, newest)\n+++ ns.team.stricter (experiment)\n";
        ensure!(said.out.starts_with(heads) && said.out.ends_with("-  label: owner\n+  label: team\n"), "{said:?}");
    }
    let said = stage.proviso(&exp(&["diff", "ns.team.copy"])).await?;
    ensure!(said.out == "Nothing differs: ns.team.copy is what ns.team.labels is.\n", "{said:?}");

    // Nobody can be asked here.
    let said = stage.proviso(&exp(&["delete", "ns.team.gone"])).await?;
    ensure!(said.code == Some(2) && said.err.contains("say --yes"), "{said:?}");
    ensure!(stage.experiments().get_opt("gone").await?.is_some());
    let said = stage.proviso(&exp(&["delete", "ns.team.gone", "--yes"])).await?;
    ensure!(said.code == Some(0) && said.out.contains("ns.team.labels stays as it is"), "{said:?}");
    ensure!(stage.experiments().get_opt("gone").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn status_tells_how_verdicts_differ() -> Result<()> {
    let stage = Stage::with_kinds("cli-experiment-status").await?;
    live(&stage).await?;
    stage.cluster_policy("labels").await?;
    let said = stage.proviso(&exp(&["status", "policy/labels", "-n", TEAM])).await?;
    ensure!(said.code == Some(0) && said.out == "There is no experiment of ns.team.labels.\n", "{said:?}");
    for from in ["policy/labels", "clusterpolicy/labels"] {
        let said = stage.proviso(&exp(&["create", "stricter", "--from", from, "--no-op", "-n", TEAM])).await?;
        ensure!(said.code == Some(0), "{said:?}");
    }
    let made = stage.preview("stricter", 120).await?;

    // All, those of a policy, and one.
    let rows = |out: &str| -> Vec<Vec<String>> {
        out.lines().skip(1).map(|row| row.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let said = stage.proviso(&exp(&["status", "-A"])).await?;
    ensure!(rows(&said.out).len() == 2 && said.code == Some(0), "{said:?}");
    let said = stage.proviso(&["exp", "status", "pvp/labels", "-n", TEAM]).await?;
    let row = rows(&said.out).remove(0);
    let wanted = ["ns.team.stricter", "labels", "ACTIVE"];
    ensure!(row[..3] == wanted && row[4..] == ["120", "110", "10", "0", "99.1%", "2/2"], "{said:?}");
    let said = stage.proviso(&exp(&["status", "stricter", "-n", TEAM])).await?;
    ensure!(said.code == Some(1) && said.err.contains("is the name of two experiments"), "{said:?}");
    ensure!(said.err.contains("Say which: ns.team.stricter, cluster.stricter."), "{said:?}");
    let said = stage.proviso(&exp(&["status", "pvx/stricter", "-n", TEAM])).await?;
    for wanted in [
        "ns.team.stricter  ACTIVE\nit decided 10 of 120 requests otherwise\n",
        &format!("Etag        {}\n", etag(&made.uid().unwrap_or_default(), 1)),
        "NewlyDenied      10        8.3%   allowed now, would be denied\n",
        "Evaluated: 120 of 121 requests (coverage 99.1%); the others were too many at once.\n",
        "NewlyDenied  Pod   team       alice  10 ",
        "Previewing   True ",
        "Make it the policy: proviso experiment commit ns.team.stricter\n",
    ] {
        ensure!(said.out.contains(wanted), "{wanted}: {said:?}");
    }

    // For programs.
    let report = stage.proviso(&exp(&["status", "ns.team.stricter", "-o", "json"])).await?.json()?;
    ensure!(report["state"] == "ACTIVE" && report["policy"] == "ns.team.labels", "{report:#}");
    ensure!(report["divergence"]["newlyDenied"] == 10 && report["samples"][0]["user"] == "alice", "{report:#}");
    ensure!(report["coverage"].as_f64().is_some_and(|it| (0.991..0.992).contains(&it)), "{report:#}");
    let all = stage.proviso(&exp(&["status", "-A", "-o", "yaml"])).await?;
    let all: Value = serde_yaml::from_str(&all.out)?;
    ensure!(all["experiments"][0]["experiment"] == "cluster.stricter", "{all:#}");
    ensure!(all["experiments"][0].get("state").is_none() && all["unseen"] == json!([]), "{all:#}");

    // An update suspends, also before the operator has looked at it.
    stage.change_experiment("stricter", "name").await?;
    let said = stage.proviso(&exp(&["status", "ns.team.stricter"])).await?;
    ensure!(
        said.out.contains("SUSPENDED\nit was changed after its start: generation 2 is not previewed\n"),
        "{said:?}"
    );
    Ok(())
}

/// A watch, and the lines that it writes.
fn watch(stage: &Stage, arguments: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut watch = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(["experiment", "status", "--watch"])
        .args(arguments)
        .arg("--kubeconfig")
        .arg(stage.plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    Ok((watch, lines))
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<String> {
    tokio::time::timeout(PATIENCE, lines.next_line()).await??.context("the end")
}

#[tokio::test]
async fn who_watches_gets_a_line_for_each_change() -> Result<()> {
    let mut stage = Stage::with_kinds("cli-experiment-watch").await?;
    live(&stage).await?;
    stage.proviso(&exp(&["create", "stricter", "--from", "ns.team.labels", "--no-op"])).await?;
    let (mut one, mut lines) = watch(&stage, &["ns.team.stricter"])?;
    let (_all, mut documents) = watch(&stage, &["-A", "-o", "json"])?;
    let mut complaints = BufReader::new(one.stderr.take().context("stderr")?).lines();
    ensure!(next(&mut lines).await?.ends_with(" ns.team.stricter NOT_STARTED"));
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0].get("state").is_none(), "{document:#}");

    stage.preview("stricter", 120).await?;
    let line = next(&mut lines).await?;
    ensure!(line.contains(" ns.team.stricter ACTIVE evaluated=120 same=110 newlyDenied=10 "), "{line}");
    ensure!(line.ends_with(" dropped=1 coverage=99.1% replicas=2/2"), "{line}");
    let document: Value = serde_json::from_str(&next(&mut documents).await?)?;
    ensure!(document["experiments"][0]["divergence"]["evaluated"] == 120, "{document:#}");

    // It does not give up while the API server is away.
    stage.plane.api_server(0).process().kill();
    let complaint = tokio::time::timeout(PATIENCE, complaints.next_line()).await??.context("the end")?;
    ensure!(complaint.contains("does not answer"), "{complaint}");
    stage.plane.api_server(0).process().restart()?;
    until("a write", PATIENCE, async || stage.preview("stricter", 130).await.map(drop)).await?;
    loop {
        if next(&mut lines).await?.contains("evaluated=130 ") {
            break;
        }
    }
    // It ends with what it watched.
    stage.proviso(&exp(&["delete", "ns.team.stricter", "--yes"])).await?;
    loop {
        if next(&mut lines).await?.ends_with(" ns.team.stricter GONE") {
            break;
        }
    }
    ensure!(tokio::time::timeout(PATIENCE, one.wait()).await??.success());
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_to_an_experiment_is_said_with_what_to_do() -> Result<()> {
    let stage = Stage::with_kinds("cli-experiment-errors").await?;
    live(&stage).await?;
    stage.proviso(&exp(&["create", "stricter", "--from", "ns.team.labels", "--no-op"])).await?;
    let pod = stage.file("pod.json", &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "labels"}}))?;
    let mut wrong = spec("team");
    wrong["programm"] = json!({});
    let wrong = stage.file("wrong.json", &wrong)?;
    let from = ["create", "a", "--from", "ns.team.labels", "-f"];
    for (arguments, code, wanted) in [
        ([from.as_slice(), &[pod.as_str()]].concat(), 1, "pod.json: apiVersion: is \"v1\""),
        ([from.as_slice(), &[wrong.as_str()]].concat(), 1, "wrong.json: programm: is no field of a policy"),
        ([from.as_slice(), &["/nowhere.yaml"]].concat(), 1, "/nowhere.yaml cannot be read"),
        ([from.as_slice(), &["-", "--start", "-o", "yaml"]].concat(), 2, "-o only prints it"),
        (vec!["create", "a", "--from", "ns.team.lables"], 1, "Did you mean ns.team.labels?"),
        (vec!["diff", "ns.team.strict"], 1, "there is no PolicyExperiment strict in the namespace team"),
        (vec!["diff", "ns.team.strict"], 1, "`proviso experiment status -A` shows all."),
        (vec!["start", "policy/labels"], 2, "policyexperiment/NAME"),
        (vec!["commit", "ns.team.stricter"], 2, "say --yes"),
        (vec!["commit", "ns.team.stricter", "--yes", "--etag", "old"], 1, "its etag is"),
        // The API that does it is not there.
        (vec!["start", "ns.team.stricter"], 1, "this cluster does not serve actions.proviso.dev/v1alpha1"),
        (vec!["start", "ns.team.stricter"], 1, "kubectl patch policyexperiment stricter -n team --type merge"),
        (vec!["stop", "ns.team.stricter"], 1, "proviso experiment delete ns.team.stricter"),
        (vec!["commit", "ns.team.stricter", "--yes"], 1, "ns.team.stricter was not committed"),
    ] {
        let said = stage.proviso(&exp(&arguments)).await?;
        let err = said.err.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(said.code == Some(code) && err.contains(wanted), "{arguments:?}: {said:?}");
    }
    ensure!(stage.experiments().get_opt("a").await?.is_none());

    // Who may see one kind, and not watch it, is told so.
    let reader = stage.user("reader", "get,list", "policyexperiments.proviso.dev").await?;
    let said = run("proviso", &reader, &exp(&["status", "-n", TEAM, "--watch"])).await?;
    let right = "kubectl auth can-i watch policyexperiments.proviso.dev -n team";
    ensure!(said.code == Some(1) && said.err.contains(right), "{said:?}");
    let said = run("proviso", &reader, &exp(&["status", "-n", TEAM])).await?;
    let missing = "Not shown: ClusterPolicyExperiments: you may not list clusterpolicyexperiments.proviso.dev.\n";
    ensure!(said.code == Some(0) && said.out.ends_with(missing), "{said:?}");
    let said = run("proviso", &reader, &exp(&["start", "stricter", "-n", TEAM])).await?;
    let right = "kubectl auth can-i create policyexperiments.actions.proviso.dev --subresource=start -n team";
    ensure!(said.code == Some(1) && said.err.contains(right), "{said:?}");

    // Its policy is gone.
    stage.policies().delete("labels", &DeleteParams::default()).await?;
    let said = stage.proviso(&exp(&["diff", "ns.team.stricter"])).await?;
    ensure!(
        said.code == Some(1) && said.err.contains("is an experiment of ns.team.labels, which is not there"),
        "{said:?}"
    );
    Ok(())
}

#[tokio::test]
async fn previews_are_started_stopped_and_committed_by_the_aggregated_api() -> Result<()> {
    let stage = Stage::with_kinds("cli-experiment-actions").await?;
    live(&stage).await?;
    let file = stage.file("changed.json", &spec("team"))?;
    let mut actions = Actions::serve(&stage).await?;
    let object = "namespaces/team/policyexperiments/stricter";
    let start = Call {
        path: format!("{object}/start"),
        body: json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStart"}),
    };

    let create = exp(&["create", "stricter", "--from", "ns.team.labels", "-f", &file, "--start"]);
    let said = stage.proviso(&create).await?;
    ensure!(said.code == Some(0) && said.out.contains("ns.team.stricter: started: "), "{said:?}");
    ensure!(actions.next().await? == start);

    // It is followed until every replica previews it. The API answers when the status says that it is ACTIVE.
    stage.loading("stricter").await?;
    let play = async {
        ensure!(actions.next().await? == start);
        stage.preview("stricter", 0).await.map(drop)
    };
    let wait = exp(&["start", "ns.team.stricter", "--wait"]);
    let (said, played) = tokio::join!(stage.proviso(&wait), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(0) && said.out.ends_with("every replica previews it\n"), "{said:?}");
    stage.loading("stricter").await?;
    let said = stage.proviso(&[wait.as_slice(), &["--timeout", "0s"]].concat()).await?;
    ensure!(
        said.code == Some(1) && said.out.contains("not every Ready replica has loaded it (1/2 replicas)"),
        "{said:?}"
    );
    ensure!(actions.next().await? == start);

    let said = stage.proviso(&exp(&["stop", "ns.team.stricter"])).await?;
    ensure!(said.code == Some(0) && said.out.contains("stopped: "), "{said:?}");
    let stop = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStop"});
    ensure!(actions.next().await? == Call { path: format!("{object}/stop"), body: stop });

    // A refusal is told.
    actions.answer(409, "Conflict", "the experiment has another etag");
    stage.preview("stricter", 120).await?;
    let commit = exp(&["commit", "ns.team.stricter", "--yes"]);
    let said = stage.proviso(&commit).await?;
    ensure!(
        said.code == Some(1) && said.err.contains("was not committed: the experiment has another etag"),
        "{said:?}"
    );
    ensure!(said.err.contains("proviso experiment diff ns.team.stricter"), "{said:?}");
    actions.next().await?;
    actions.answer(503, "ServiceUnavailable", "the operator is starting");
    let said = stage.proviso(&commit).await?;
    ensure!(said.code == Some(1) && said.err.contains("now: the operator is starting"), "{said:?}");
    actions.next().await?;
    ensure!(actions.calls.try_recv().is_err(), "a commit is not sent twice");

    // What was shown is committed, and the policy is followed until it is live.
    actions.succeed();
    let experiment = stage.experiments().get("stricter").await?;
    let policy = stage.policies().get("labels").await?;
    let wanted = json!({
        "apiVersion": "actions.proviso.dev/v1alpha1", "kind": "ExperimentCommit",
        "etag": etag(&experiment.uid().unwrap_or_default(), 1),
        "parentEtag": etag(&policy.uid().unwrap_or_default(), 1),
    });
    let play = async {
        let call = actions.next().await?;
        ensure!(call == Call { path: format!("{object}/commit"), body: wanted }, "{call:?}");
        stage.policy("labels", "team").await?;
        stage.experiments().delete("stricter", &DeleteParams::default()).await?;
        stage.status("labels", active(2)).await
    };
    let (said, played) = tokio::join!(stage.proviso(&commit), play);
    played?;
    let said = said?;
    ensure!(said.code == Some(0) && said.out.contains("it decided 10 of 120 requests otherwise\n"), "{said:?}");
    ensure!(said.out.contains("-  label: owner\n+  label: team\n"), "{said:?}");
    let live = "ns.team.labels: generation 2 answers requests: what the experiment ns.team.stricter was\n";
    let back = "ns.team.labels: the way back: proviso rollback ns.team.labels --to 1\n";
    ensure!(said.out.ends_with(&format!("{live}{back}")), "{said:?}");
    Ok(())
}
