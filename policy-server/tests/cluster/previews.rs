//! Experiments in a cluster: candidate revisions are previewed on the requests of the webhook of their policy, or of their own
//! webhook, and their status has the counts. The tests take the part of the operator.

mod callers;
mod counts;
mod verdicts;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_core::experiment::etag;
use proviso_crds::{DivergenceCounts, PreviewReport};
use proviso_e2e::{Registry, until};
use serde_json::{Value, json};

use crate::support::cluster::{POD, TestEnv, ask, namespaced, revision, until_answered};
use crate::support::{self, Server, WAIT_TIMEOUT, forbid, modules, pod, rego, wapc, with};

const NEVER: &str = "false";

/// Returns the candidate revision of generation 1 of an experiment of this policy.
pub fn candidate(policy: &str, experiment: &str, spec: &Value) -> Value {
    let mut candidate = revision(policy, 1, spec);
    candidate["metadata"]["name"] = format!("experiment.cluster.{experiment}-1").into();
    candidate["spec"]["role"] = "Candidate".into();
    candidate["spec"]["experimentRef"] =
        json!({"name": experiment, "uid": format!("uid-{experiment}"), "generation": 1});
    candidate
}

/// Returns the spec with rules that cover only the creation of this resource.
fn only(resource: &str, spec: Value) -> Value {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]});
    with(spec, &json!({"admission": {"rules": [rule]}}))
}

trait Previews {
    async fn report(&self, name: &str) -> Result<PreviewReport>;
    async fn until_counted(&self, name: &str, wanted: impl Fn(&DivergenceCounts) -> bool) -> Result<PreviewReport>;
}

impl Previews for TestEnv {
    async fn report(&self, name: &str) -> Result<PreviewReport> {
        let status = self.revisions.get(name).await?.data["status"].clone();
        let items = status["replicas"].as_array().context("replicas")?;
        let item = items.iter().find(|item| item["name"] == POD).context("its item")?;
        serde_json::from_value(item["preview"].clone()).with_context(|| format!("{item}"))
    }

    async fn until_counted(&self, name: &str, wanted: impl Fn(&DivergenceCounts) -> bool) -> Result<PreviewReport> {
        until(&format!("the counts of {name}"), WAIT_TIMEOUT, async || {
            let report = self.report(name).await?;
            ensure!(wanted(&report.counts), "{report:?}");
            Ok(report)
        })
        .await
    }
}

/// Waits until the replica has loaded this revision.
pub async fn until_loaded(server: &Server, name: &str) {
    server.until_details(&format!("[+] {name} loaded")).await;
}

/// Marks a generation of this policy as live, as the operator does, and waits until the replica knows it. Requests count for an
/// experiment only if the live generation has answered them.
async fn make_live(env: &TestEnv, server: &Server, policy: &str, generation: u32) -> Result<()> {
    env.set_condition(&format!("{policy}-{generation}"), "Live", "True").await?;
    let label = format!("policy=\"{policy}\"");
    until(&format!("{policy}-{generation} to be live"), WAIT_TIMEOUT, async || {
        let live = server.count("proviso_policy_live_generation", &[&label]).await;
        ensure!(live == u64::from(generation), "{live} is live");
        Ok(())
    })
    .await
}

/// Sends a review to the webhook of an experiment of the policy `a`.
pub async fn preview(server: &Server, experiment: &str, review: &Value) -> Result<()> {
    preview_of(server, "a", experiment, review).await
}

/// Sends a review to the webhook of an experiment of this policy.
async fn preview_of(server: &Server, policy: &str, experiment: &str, review: &Value) -> Result<()> {
    let answer = server.post(&format!("/preview/cluster.{policy}/{experiment}/1"), review.to_string()).await;
    ensure!(answer.status == StatusCode::OK && answer.is_allowed(), "{}", answer.text);
    ensure!(answer.response()["uid"] == review["request"]["uid"], "{}", answer.text);
    Ok(())
}

fn dry_run() -> Value {
    let mut review = pod("dry", "x");
    review["request"]["dryRun"] = json!(true);
    review
}

fn lines<'a>(lines: &'a [Value], experiment: &str) -> Vec<&'a Value> {
    let experiment = json!(format!("cluster.{experiment}"));
    lines.iter().filter(|line| line["experiment"] == experiment).collect()
}

/// Waits for the preview line of this request, and returns it.
async fn until_line(server: &Server, experiment: &str, uid: &str) -> Result<Value> {
    until(&format!("the line of {experiment} about {uid}"), WAIT_TIMEOUT, async || {
        let written = server.previews();
        let found = lines(&written, experiment).into_iter().find(|line| line["request"]["uid"] == uid).cloned();
        found.with_context(|| format!("{written:#?}"))
    })
    .await
}

#[tokio::test]
async fn candidates_with_the_same_rules_are_previewed_on_live_requests() -> Result<()> {
    let env = TestEnv::start("previews-on-live-requests").await?;
    let mut server = env.replica("pod-1").await?;
    env.create(&revision("a", 3, &forbid("input.request.name == \"bad\"", "one"))).await?;
    env.create(&candidate("a", "stricter", &forbid("true", "two"))).await?;
    env.create(&candidate("a", "none", &forbid(NEVER, ""))).await?;
    // A candidate that does not compile does not affect the others.
    env.create(&candidate("a", "broken", &rego("package test\ndeny contains"))).await?;
    env.until_reported("experiment.cluster.broken-1", "pod-1", "False", "CompileError").await?;
    for name in ["cluster.a-3", "experiment.cluster.stricter-1", "experiment.cluster.none-1"] {
        until_loaded(&server, name).await;
        env.until_reported(name, "pod-1", "True", "Loaded").await?;
    }
    make_live(&env, &server, "cluster.a", 3).await?;

    let path = "/validate/cluster.a/3";
    ensure!(server.post(path, dry_run().to_string()).await.is_allowed());
    ensure!(server.post("/audit/cluster.a/3", pod("u", "x").to_string()).await.is_allowed());
    for name in ["good", "bad", "good", "better"] {
        ensure!(server.post(path, pod("u", name).to_string()).await.is_allowed() == (name != "bad"), "{name}");
    }
    let report = env.until_counted("experiment.cluster.stricter-1", |it| it.evaluated == 4).await?;
    ensure!(report.counts.newly_denied == 3 && report.counts.message_differs == 1, "{report:?}");
    let sample = report.samples.iter().find(|it| it.count == 3).context("a group of three")?;
    ensure!((sample.kind.as_str(), sample.namespace.as_str(), sample.user.as_str()) == ("Pod", "default", "ann"));
    ensure!((sample.name.as_str(), sample.message.as_str()) == ("better", "two"), "{sample:?}");
    let report = env.until_counted("experiment.cluster.none-1", |it| it.evaluated == 4).await?;
    ensure!(report.counts.same == 3 && report.counts.newly_allowed == 1 && report.counts.dropped == 0, "{report:?}");
    ensure!(report.samples.len() == 1 && report.samples[0].message == "one", "{report:?}");

    // The line has the etags of the experiment and of the live generation.
    let written = server.previews();
    let line = lines(&written, "stricter")[0];
    ensure!(line["experimentEtag"] == etag("uid-stricter", 1), "{line}");
    ensure!(line["liveEtag"] == etag("uid-a", 3) && line["liveGeneration"] == 3 && line["policy"] == "cluster.a");

    // A restarted server, and a server of a new pod with the same name, continue the counts.
    for pod_uid in ["pod-1", "pod-2"] {
        server.kill().await;
        env.expire_lease().await?;
        server = env.replica(pod_uid).await?;
        until_loaded(&server, "experiment.cluster.stricter-1").await;
        let before = env.report("experiment.cluster.stricter-1").await?.counts;
        ensure!(server.post(path, pod("u", "good").to_string()).await.is_allowed());
        let after =
            env.until_counted("experiment.cluster.stricter-1", |it| it.evaluated == before.evaluated + 1).await?.counts;
        ensure!(after.newly_denied == before.newly_denied + 1 && after.since == before.since, "{after:?}");
    }

    // A deleted candidate is not previewed any more. A new candidate of the same name starts new counts.
    env.revisions.delete("experiment.cluster.stricter-1", &DeleteParams::default()).await?;
    server.until("its end", async || !server.details().await.contains("stricter")).await;
    env.create(&candidate("a", "stricter", &forbid("true", "two"))).await?;
    until_loaded(&server, "experiment.cluster.stricter-1").await;
    ensure!(server.post(path, pod("u", "good").to_string()).await.is_allowed());
    let report = env.until_counted("experiment.cluster.stricter-1", |it| it.evaluated > 0).await?;
    ensure!(report.counts.evaluated == 1 && report.samples[0].count == 1, "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_candidate_with_other_rules_has_its_own_path() -> Result<()> {
    let env = TestEnv::start("previews-on-their-own-path").await?;
    let server = env.replica("pod-1").await?;
    let services = || {
        let mut review = pod("service", "x");
        review["request"]["kind"]["kind"] = "Service".into();
        review["request"]["resource"]["resource"] = "services".into();
        review
    };
    env.create(&revision("a", 1, &only("pods", forbid("input.request.name == \"bad\"", "one")))).await?;
    let wider = with(
        only("pods", forbid("true", "two")),
        &json!({"admission": {"rules": [{
            "operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "services"],
        }]}}),
    );
    env.create(&candidate("a", "wider", &wider)).await?;
    env.create(&candidate("a", "narrower", &only("services", forbid("true", "two")))).await?;
    env.create(&candidate("a", "off", &with(only("services", forbid("true", "")), &json!({"enabled": false})))).await?;
    let first_path = "/validate/cluster.a/1";
    let wider = "experiment.cluster.wider-1";
    for name in ["cluster.a-1", wider, "experiment.cluster.narrower-1", "experiment.cluster.off-1"] {
        until_loaded(&server, name).await;
    }

    // While no generation is live, the candidate is compared with a policy that allows everything.
    preview(&server, "wider", &pod("first", "bad")).await?;
    env.until_counted(wider, |it| it.evaluated == 1 && it.newly_denied == 1).await?;
    let first = server.until_previews(1).await.remove(0);
    ensure!(first["liveGeneration"].is_null() && first["live"]["allowed"] == true, "{first}");

    env.set_condition("cluster.a-1", "Live", "True").await?;
    until("the live generation to be known", WAIT_TIMEOUT, async || {
        preview(&server, "wider", &pod("second", "bad")).await?;
        let written = server.previews();
        ensure!(written.iter().any(|line| line["liveGeneration"] == 1), "{written:#?}");
        Ok(())
    })
    .await?;
    let written = server.previews();
    let second = written.iter().find(|line| line["liveGeneration"] == 1).context("its line")?;
    // The live verdict is only computed for the comparison: it is neither counted nor logged as a decision.
    ensure!(second["live"]["allowed"] == false && second["live"]["message"] == "one", "{second}");
    ensure!(second["divergence"] == "MessageDiffers", "{second}");
    ensure!(server.count("proviso_evaluations_total", &[]).await == 0);
    ensure!(server.event("request denied").is_none());

    // The live policy does not cover services, so its verdict allows them.
    preview(&server, "wider", &services()).await?;
    preview(&server, "wider", &dry_run()).await?;
    ensure!(until_line(&server, "wider", "service").await?["divergence"] == "NewlyDenied");

    // A request of the policy counts only for a candidate that does not cover the request, or that disables the policy.
    ensure!(!server.post(first_path, pod("third", "bad").to_string()).await.is_allowed());
    for experiment in ["narrower", "off"] {
        let line = until_line(&server, experiment, "third").await?;
        ensure!(line["divergence"] == "NewlyAllowed", "{line}");
    }
    env.until_counted("experiment.cluster.off-1", |it| it.evaluated == 1 && it.newly_allowed == 1).await?;
    preview(&server, "off", &services()).await?;

    // The committed policy has the same rules as the experiment. From now on, the requests of the policy count for the
    // experiment, and requests to its own path do not.
    let path = "/validate/cluster.a/2";
    let wider_spec = env.revisions.get(wider).await?.data["spec"]["data"].clone();
    let mut next = revision("a", 2, &json!({}));
    next["spec"]["data"] = wider_spec;
    env.create(&next).await?;
    until_answered(&server, path, "two").await?;
    // A request of a generation with the same rules does not count before that generation is live.
    ensure!(lines(&server.previews(), "wider").iter().all(|line| line["request"]["uid"] != "u"));
    env.set_condition("cluster.a-1", "Live", "False").await?;
    env.set_condition("cluster.a-2", "Live", "True").await?;
    until("a preview on a request of the policy", WAIT_TIMEOUT, async || {
        ensure!(!server.post(path, pod("piggybacked", "x").to_string()).await.is_allowed());
        // The lines of earlier requests may come late.
        let written = server.previews();
        ensure!(lines(&written, "wider").iter().any(|line| line["request"]["uid"] == "piggybacked"));
        Ok(())
    })
    .await?;
    preview(&server, "wider", &pod("late", "x")).await?;
    ensure!(!server.post(path, pod("last", "x").to_string()).await.is_allowed());
    until_line(&server, "wider", "last").await?;
    let written = server.previews();
    ensure!(written.iter().all(|line| line["request"]["uid"] != "late" && line["request"]["uid"] != "dry"));
    ensure!(lines(&written, "wider").iter().all(|line| line["request"]["uid"] != "third"));
    ensure!(lines(&written, "wider").last().context("a line")?["divergence"] == "Same");

    // An unknown experiment or a malformed review does not stop a request.
    for path in ["/preview/cluster.a/wider/2", "/preview/cluster.a/other/1", "/preview/cluster.b/wider/1"] {
        ensure!(ask(&server, path).await.is_allowed(), "{path}");
    }
    let malformed = r#"{"kind": "AdmissionReview", "request": {"uid": "malformed", "operation": 1}}"#;
    ensure!(server.post("/preview/cluster.a/wider/1", malformed).await.is_allowed());
    ensure!(server.post("/preview/cluster.a/wider/1", "{}").await.status == StatusCode::BAD_REQUEST);
    ensure!(ask(&server, "/preview/cluster.a/wider").await.status == StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn mutating_group_and_namespaced_policies_are_previewed() -> Result<()> {
    let env = TestEnv::start("previews-of-every-kind").await?;
    let server = env.replica("pod-1").await?;
    let patch = |value: &str| {
        let patch = json!([{"op": "add", "path": "/metadata/labels/tier", "value": value}]);
        let answer = json!({"response": {"allowed": true, "patchType": "JSONPatch", "patch": patch}});
        with(rego(&format!("package test\nmain := {answer}")), &json!({"admission": {"mutating": true}}))
    };
    let member = |message: &str| json!({"program": forbid("true", message)["program"]});
    let group = |expression: &str| {
        let members = json!({"one": member("one"), "two": {"program": forbid(NEVER, "")["program"]}});
        json!({"program": {"group": {"members": members, "expression": expression, "message": "the group says no"}}})
    };
    env.create(&revision("mutating", 1, &patch("web"))).await?;
    env.create(&candidate("mutating", "other-patch", &patch("shop"))).await?;
    env.create(&candidate("mutating", "same-patch", &patch("web"))).await?;
    env.create(&revision("group", 1, &group("one() || two()"))).await?;
    env.create(&candidate("group", "all", &group("one() && two()"))).await?;
    env.create(&namespaced(revision("mine", 1, &forbid(NEVER, "")))).await?;
    env.create(&namespaced(candidate("mine", "ours", &forbid("true", "no")))).await?;
    // A candidate with the same name in another scope.
    env.create(&candidate("group", "ours", &forbid(NEVER, ""))).await?;
    for name in ["cluster.other-patch", "cluster.same-patch", "cluster.all", "ns.default.ours", "cluster.ours"] {
        until_loaded(&server, &format!("experiment.{name}-1")).await;
    }
    for policy in ["cluster.mutating", "cluster.group", "ns.default.mine"] {
        until_loaded(&server, &format!("{policy}-1")).await;
        make_live(&env, &server, policy, 1).await?;
    }
    for path in ["/validate/cluster.mutating/1", "/validate/cluster.group/1", "/validate/ns.default.mine/1"] {
        until(path, WAIT_TIMEOUT, async || {
            ensure!(ask(&server, path).await.is_allowed());
            Ok(())
        })
        .await?;
    }
    let counted = async |name: &str| -> Result<DivergenceCounts> {
        Ok(env.until_counted(&format!("experiment.{name}-1"), |it| it.evaluated > 0).await?.counts)
    };
    ensure!(counted("cluster.other-patch").await?.mutation_differs > 0);
    ensure!(counted("cluster.same-patch").await?.same > 0);
    let report = env.until_counted("experiment.cluster.all-1", |it| it.newly_denied > 0).await?;
    ensure!(report.samples[0].message == "the group says no", "{report:?}");
    ensure!(counted("ns.default.ours").await?.newly_denied > 0);
    ensure!(counted("cluster.ours").await?.same > 0);
    Ok(())
}

#[tokio::test]
async fn an_endless_experiment_does_not_delay_live_answers() -> Result<()> {
    let env = modules::RegistryEnv::start("previews-that-loop").await?;
    env.registry.push("endless", "v1", Registry::MODULE, &wapc::executing(wapc::ENDLESS)).await?;
    let mut command = env.command(POD, &env.path("cache"));
    command.args(["--preview-queue", "2"]);
    let server = support::cluster::TestEnv::run(command).await?;
    env.cluster.create(&revision("a", 1, &forbid(NEVER, ""))).await?;
    let endless = json!({"program": {"wasm": {"module": env.module("endless:v1")}}, "timeoutEvalSeconds": 10});
    env.cluster.create(&candidate("a", "endless", &endless)).await?;
    let name = "experiment.cluster.endless-1";
    until_loaded(&server, "cluster.a-1").await;
    until_loaded(&server, name).await;
    make_live(&env.cluster, &server, "cluster.a", 1).await?;

    let (begin, calls) = (Instant::now(), 100);
    for _ in 0..calls {
        let asked = Instant::now();
        ensure!(ask(&server, "/validate/cluster.a/1").await.is_allowed());
        // Each evaluation of the experiment takes 9.5 s, the time limit of its webhook.
        ensure!(asked.elapsed() < Duration::from_secs(8), "an answer waited for an experiment");
    }
    let report = env.cluster.until_counted(name, |it| it.evaluated + it.dropped == calls).await?;
    ensure!(report.counts.errors == report.counts.evaluated && report.counts.errors > 0, "{report:?}");
    ensure!(report.counts.dropped > 50, "{report:?}");
    ensure!(!report.samples[0].message.is_empty(), "{report:?}");
    ensure!(server.count("proviso_preview_dropped_total", &[]).await == report.counts.dropped);
    ensure!(server.count("proviso_preview_errors_total", &[]).await == report.counts.errors);

    // The log says how many requests were dropped, in at most one line each second.
    let lines = until("the lines about dropped requests", WAIT_TIMEOUT, async || {
        let lines = server.drops();
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        ensure!(dropped == report.counts.dropped, "{lines:#?}");
        Ok(lines)
    })
    .await?;
    ensure!(u64::try_from(lines.len())? <= begin.elapsed().as_secs() + 2, "{lines:#?}");
    for line in &lines {
        ensure!(line["experiment"] == "cluster.endless" && line["policy"] == "cluster.a", "{line}");
        ensure!(line["experimentEtag"] == etag("uid-endless", 1) && line["liveEtag"] == etag("uid-a", 1), "{line}");
    }
    Ok(())
}
