//! The life of a policy, with a real API server and the operator's real program. The policy server is played by the
//! test: it says what the leader and the replicas would say.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use proviso_crds::{Policy, PolicyPhase, PolicyRevision, PolicyStatus};
use proviso_e2e::{ControlPlane, Kubectl, until};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "proviso-system";
/// Where the policy's owner works.
const TEAM: &str = "team";

struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control plane with the kinds, an operator, and two pods of a policy server.
struct Stage {
    operator: Option<Operator>,
    client: Client,
    kubectl: Kubectl,
    plane: ControlPlane,
}

impl Stage {
    async fn start(name: &str) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        plane.ensure_controllers()?;
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        kubectl.run(&["create", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/../crds")]).await?;
        kubectl.run(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"]).await?;
        for namespace in [NAMESPACE, TEAM] {
            kubectl.run(&["create", "namespace", namespace]).await?;
        }
        let client = plane.client().await?;
        let mut stage = Self { operator: None, client, kubectl, plane };
        for name in ["server-0", "server-1"] {
            stage.pod(name).await?;
        }
        stage.start_operator()?;
        Ok(stage)
    }

    fn start_operator(&mut self) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.plane.folder().log("operator"))?;
        let operator = Command::new(env!("CARGO_BIN_EXE_operator"))
            .args(["--namespace", NAMESPACE, "--log-format", "json", "--policy-server-image", "none"])
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--shutdown-delay", "0s"])
            .env("KUBECONFIG", self.plane.kubeconfig())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.operator = Some(Operator(operator));
        Ok(())
    }

    /// Makes a pod of the policy server, Ready; nobody runs it.
    async fn pod(&self, name: &str) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), NAMESPACE);
        until("the service account", PATIENCE, async || {
            let pod = json!({
                "metadata": {"name": name, "labels": {"proviso.dev/policy-server": "default"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            });
            Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.map(drop)?)
        })
        .await?;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    fn policies(&self) -> Api<Policy> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    fn revisions(&self) -> Api<PolicyRevision> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates the policy, or makes it this: a new generation.
    async fn write(&self, spec: &Value) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels"}, "spec": spec,
        });
        let written =
            self.policies().patch("labels", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Waits for the revision of a generation.
    async fn revision(&self, generation: i64) -> Result<PolicyRevision> {
        let name = format!("ns.{TEAM}.labels-{generation}");
        until(&name, PATIENCE, async || Ok(self.revisions().get(&name).await?)).await
    }

    /// Says what the leader would say about the program.
    async fn initialized(&self, generation: i64, status: &str, reason: &str, message: &str) -> Result<()> {
        let revision = self.revision(generation).await?;
        let condition = json!({
            "type": "Initialized", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-11-20T09:14:07Z", "observedGeneration": generation,
        });
        self.say(&revision, "proviso-leader", json!({"conditions": [condition]})).await
    }

    /// Says what a replica would say.
    async fn loaded(&self, generation: i64, pod: &str, ready: &str, reason: &str) -> Result<()> {
        let revision = self.revision(generation).await?;
        let uid = Api::<Pod>::namespaced(self.client.clone(), NAMESPACE).get(pod).await?.uid();
        let replica = json!({
            "name": pod, "podUID": uid, "serverVersion": "0.1.0", "ready": ready, "reason": reason,
            "lastTransitionTime": "2026-11-20T09:14:07Z",
        });
        self.say(&revision, pod, json!({"replicas": [replica]})).await
    }

    async fn say(&self, revision: &PolicyRevision, manager: &str, status: Value) -> Result<()> {
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": status});
        let apply = PatchParams::apply(manager).force();
        self.revisions().patch_status(&revision.name_any(), &apply, &Patch::Apply(patch)).await?;
        Ok(())
    }

    /// The leader and both replicas are content.
    async fn serve(&self, generation: i64) -> Result<()> {
        self.initialized(generation, "True", "Prepared", "").await?;
        self.loaded(generation, "server-0", "True", "Loaded").await?;
        self.loaded(generation, "server-1", "True", "Loaded").await
    }

    /// The paths that the API server asks: of the validating and of the mutating webhook.
    async fn paths(&self) -> Result<(Option<String>, Option<String>)> {
        let name = format!("proviso-ns.{TEAM}.labels");
        let validating = Api::<ValidatingWebhookConfiguration>::all(self.client.clone()).get_opt(&name).await?;
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone()).get_opt(&name).await?;
        let of_first = validating.and_then(|it| it.webhooks?.pop()?.client_config.service?.path);
        let of_second = mutating.and_then(|it| it.webhooks?.pop()?.client_config.service?.path);
        Ok((of_first, of_second))
    }

    /// Waits until requests are validated by this generation, and by no mutating webhook.
    async fn until_live(&self, generation: i64) -> Result<()> {
        let path = Some(format!("/validate/ns.{TEAM}.labels/{generation}"));
        until(&format!("generation {generation} to be live"), PATIENCE, async || {
            let paths = self.paths().await?;
            ensure!(paths == (path.clone(), None), "{paths:?}");
            let status = self.status().await?;
            ensure!(status.live_generation == Some(generation), "{status:?}");
            Ok(())
        })
        .await
    }

    async fn status(&self) -> Result<PolicyStatus> {
        Ok(self.policies().get("labels").await?.status.unwrap_or_default())
    }

    async fn until_phase(&self, phase: PolicyPhase) -> Result<PolicyStatus> {
        until(&format!("{phase:?}"), PATIENCE, async || {
            let status = self.status().await?;
            ensure!(status.phase == Some(phase), "{status:?}");
            Ok(status)
        })
        .await
    }
}

fn spec(expression: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": expression}]}},
        "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    })
}

#[tokio::test]
async fn a_first_policy_goes_live_when_every_replica_serves_it() -> Result<()> {
    let stage = Stage::start("operator-first-policy").await?;
    ensure!(stage.write(&spec("true")).await? == 1);
    let status = stage.until_phase(PolicyPhase::Pending).await?;
    ensure!(status.conditions[0].type_ == "Scheduled" && status.conditions[0].status == "True", "{status:?}");
    stage.initialized(1, "True", "Prepared", "").await?;
    stage.loaded(1, "server-0", "True", "Loaded").await?;
    // One of two is not enough.
    until("one of two replicas", PATIENCE, async || {
        let replicas = stage.status().await?.replicas.context("replicas")?;
        ensure!(replicas.summary == "1/2", "{replicas:?}");
        Ok(())
    })
    .await?;
    ensure!(stage.paths().await? == (None, None), "a webhook before everybody serves it");
    stage.loaded(1, "server-1", "True", "Loaded").await?;
    stage.until_live(1).await?;
    stage.until_phase(PolicyPhase::Active).await?;
    // Only the owner's namespace is asked about, and never Proviso's own or the leases of the cluster.
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(stage.client.clone());
    let webhook = webhooks.get("proviso-ns.team.labels").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["team"]"#), "{selector}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    // The API server trusts whom the operator's authority vouches for.
    let authority = Api::<Secret>::namespaced(stage.client.clone(), NAMESPACE).get("proviso-ca").await?;
    let bundle = authority.data.context("its data")?.remove("bundle.crt");
    ensure!(bundle.is_some() && webhook.client_config.ca_bundle == bundle, "another bundle");
    Ok(())
}

#[tokio::test]
async fn an_update_that_fails_leaves_the_old_generation_live_and_its_owner_sees_why() -> Result<()> {
    let stage = Stage::start("operator-failed-update").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    // The leader cannot prepare it.
    stage.write(&spec("2 > 1")).await?;
    stage.initialized(2, "False", "CompileError", "spec.program.cel: no such thing").await?;
    let status = stage.until_phase(PolicyPhase::Failed).await?;
    ensure!(status.live_generation == Some(1), "{status:?}");
    stage.until_live(1).await?;
    // Whoever sees only this namespace learns it there.
    let described = until("the event", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  CompileError"), "{described}");
        Ok(described)
    });
    let described = described.await?;
    ensure!(described.contains("no such thing") && described.contains("generation 1 goes on answering"), "{described}");
    // A replica cannot load the next one.
    stage.write(&spec("3 > 2")).await?;
    stage.initialized(3, "True", "Prepared", "").await?;
    stage.loaded(3, "server-0", "True", "Loaded").await?;
    stage.loaded(3, "server-1", "False", "CacheError").await?;
    until("the replica's name", PATIENCE, async || {
        let status = stage.status().await?;
        let ready = status.conditions.iter().find(|it| it.type_ == "Ready").context("Ready")?;
        ensure!(ready.message.contains("server-1: CacheError"), "{ready:?}");
        Ok(())
    })
    .await?;
    stage.until_live(1).await?;
    // It recovers.
    stage.loaded(3, "server-1", "True", "Loaded").await?;
    stage.until_live(3).await?;
    // API servers that have not seen the switch still ask the old one; what never was live is let go.
    ensure!(stage.revision(1).await?.spec.enabled, "generation 1 was unloaded at once");
    until("generation 2 to be disabled", PATIENCE, async || {
        ensure!(!stage.revision(2).await?.spec.enabled);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_rollback_is_a_new_generation_of_the_old_spec() -> Result<()> {
    let stage = Stage::start("operator-rollback").await?;
    for (generation, expression) in [(1, "true"), (2, "false")] {
        stage.write(&spec(expression)).await?;
        stage.serve(generation).await?;
        stage.until_live(generation).await?;
    }
    let roll_back = async |to: &str| {
        let annotation = format!("proviso.dev/rollback-to={to}");
        stage.kubectl.run(&["annotate", "policy", "labels", &annotation, "--namespace", TEAM]).await
    };
    roll_back("1").await?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    let policy = stage.policies().get("labels").await?;
    ensure!(
        policy.spec == stage.revision(1).await?.spec.data
            && !policy.annotations().contains_key("proviso.dev/rollback-to")
    );
    // What is not kept cannot be gone back to, and nothing happens.
    roll_back("17").await?;
    until("the refusal", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("no generation 17") && described.contains("1, 2, 3"), "{described}");
        Ok(())
    })
    .await?;
    stage.until_live(3).await
}

#[tokio::test]
async fn a_webhook_that_was_changed_or_deleted_by_hand_is_restored() -> Result<()> {
    let stage = Stage::start("operator-by-hand").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(stage.client.clone());
    let name = "proviso-ns.team.labels";
    let change = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    until("the failure policy", PATIENCE, async || {
        let webhook = webhooks.get(name).await?.webhooks.context("webhooks")?.remove(0);
        ensure!(webhook.failure_policy.as_deref() == Some("Fail"), "{webhook:?}");
        Ok(())
    })
    .await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(1).await?;
    // Also while a newer generation does not work, and what the webhook asked cannot be read from it any more.
    stage.write(&spec("2 > 1")).await?;
    stage.initialized(2, "False", "CompileError", "").await?;
    stage.until_phase(PolicyPhase::Failed).await?;
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(1).await?;
    let change = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]);
    let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
    webhooks.patch(name, &PatchParams::default(), &change).await?;
    stage.until_live(1).await
}

#[tokio::test]
async fn a_webhook_whose_glass_was_broken_is_nobodys_but_theirs_who_broke_it() -> Result<()> {
    let stage = Stage::start("operator-break-glass").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(stage.client.clone());
    let name = "proviso-ns.team.labels";
    let object = format!("validatingwebhookconfiguration/{name}");
    let change = async |operations: Value| -> Result<()> {
        let change: Patch<()> = Patch::Json(serde_json::from_value(operations)?);
        webhooks.patch(name, &PatchParams::default(), &change).await?;
        Ok(())
    };
    let break_glass = async || {
        let annotation = "proviso.dev/break-glass=INC-17 pods do not start";
        stage.kubectl.run(&["annotate", &object, annotation]).await
    };
    let until_told = async |generation: i64| {
        until(&format!("the status of generation {generation}"), PATIENCE, async || {
            let conditions = stage.status().await?.conditions;
            let live = conditions.iter().find(|it| it.type_ == "Live").context("Live")?;
            ensure!(live.reason == "BreakGlass" && live.status == "Unknown", "{live:?}");
            ensure!(live.observed_generation == Some(generation), "{live:?}");
            let remedy = format!("kubectl annotate {object} proviso.dev/break-glass-");
            ensure!(live.message.contains("INC-17 pods do not start") && live.message.ends_with(&remedy), "{live:?}");
            let ready = conditions.iter().find(|it| it.type_ == "Ready").context("Ready")?;
            ensure!(ready.status == "True", "{ready:?}");
            Ok(())
        })
        .await
    };
    break_glass().await?;
    until_told(1).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/rules", "value": []}])).await?;
    let left = webhooks.get(name).await?;
    // All replicas serve another generation, and it is told that the webhook does not move for it.
    stage.write(&spec("2 > 1")).await?;
    stage.serve(2).await?;
    until_told(2).await?;
    let status = stage.status().await?;
    ensure!(status.live_generation == Some(1) && status.phase == Some(PolicyPhase::Updating), "{status:?}");
    ensure!(webhooks.get(name).await? == left, "somebody has touched it");
    ensure!(stage.revision(1).await?.spec.enabled);
    until("the event", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("Warning  BreakGlass"), "{described}");
        Ok(())
    })
    .await?;
    // A configuration that is deleted cannot say that it is to be left alone.
    webhooks.delete(name, &DeleteParams::default()).await?;
    stage.until_live(2).await?;
    until("the end to be told", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
        ensure!(described.contains("BreakGlassEnded"), "{described}");
        Ok(())
    })
    .await?;
    // Without the annotation it is restored.
    break_glass().await?;
    until_told(2).await?;
    change(json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}])).await?;
    let mut mutating = spec("3 > 2");
    mutating["admission"]["mutating"] = json!(true);
    stage.write(&mutating).await?;
    stage.serve(3).await?;
    until_told(3).await?;
    ensure!(stage.paths().await? == (Some("/validate/ns.team.labels/2".to_owned()), None));
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Ignore"));
    stage.write(&spec("4 > 3")).await?;
    stage.serve(4).await?;
    until_told(4).await?;
    stage.kubectl.run(&["annotate", &object, "proviso.dev/break-glass-"]).await?;
    stage.until_live(4).await?;
    ensure!(webhooks.get(name).await?.webhooks.context("webhooks")?[0].failure_policy.as_deref() == Some("Fail"));
    // It goes with its policy, whoever holds it.
    break_glass().await?;
    until_told(4).await?;
    stage.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", PATIENCE, async || {
        ensure!(stage.paths().await? == (None, None));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn without_any_policy_server_a_cluster_can_still_start() -> Result<()> {
    let stage = Stage::start("operator-exemptions").await?;
    stage.kubectl.run(&["create", "namespace", "other"]).await?;
    let mut everything = spec("true");
    everything["admission"]["rules"] = json!([
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps", "leases", "namespaces"]},
    ]);
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "all"}, "spec": everything,
    });
    let file = stage.plane.folder().path().join("all.json");
    std::fs::write(&file, policy.to_string())?;
    stage.kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    let name = "cluster.all-1";
    let revision = until(name, PATIENCE, async || Ok(stage.revisions().get(name).await?)).await?;
    let condition = json!({
        "type": "Initialized", "status": "True", "reason": "Prepared", "message": "",
        "lastTransitionTime": "2026-11-20T09:14:07Z",
    });
    stage.say(&revision, "proviso-leader", json!({"conditions": [condition]})).await?;
    let pods = Api::<Pod>::namespaced(stage.client.clone(), NAMESPACE).list(&ListParams::default()).await?;
    for pod in pods {
        let replica = json!({
            "name": pod.name_any(), "podUID": pod.uid(), "serverVersion": "0.1.0", "ready": "True", "reason": "Loaded",
            "lastTransitionTime": "2026-11-20T09:14:07Z",
        });
        stage.say(&revision, &pod.name_any(), json!({"replicas": [replica]})).await?;
    }
    // Nobody answers the webhook.
    let create = async |what: &[&str]| {
        stage.kubectl.run(&[&["create", "--dry-run=server"], what].concat()).await.map_err(|error| format!("{error:#}"))
    };
    until("the webhook to be asked", PATIENCE, async || {
        let refused = create(&["configmap", "a", "--namespace=other"]).await;
        ensure!(refused.as_ref().is_err_and(|said| said.contains("failed calling webhook")), "{refused:?}");
        Ok(())
    })
    .await?;
    // An object without a namespace is decided like the rest.
    let refused = create(&["namespace", "another"]).await;
    ensure!(refused.as_ref().is_err_and(|said| said.contains("failed calling webhook")), "{refused:?}");
    // But not what Proviso consists of, and the leases by which nodes and components say that they live.
    let own = create(&["configmap", "a", "--namespace", NAMESPACE]).await;
    ensure!(own.is_ok(), "{own:?}");
    for (namespace, passes) in [("kube-system", true), ("kube-node-lease", true), ("other", false)] {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "namespace": namespace}});
        std::fs::write(&file, lease.to_string())?;
        let created = create(&["-f", file.to_str().unwrap()]).await;
        ensure!(created.is_ok() == passes, "{namespace}: {created:?}");
    }
    Ok(())
}

#[tokio::test]
async fn validating_turns_into_mutating_and_back_without_an_orphan() -> Result<()> {
    let stage = Stage::start("operator-mutating").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let mut mutating = spec("true");
    mutating["admission"]["mutating"] = json!(true);
    stage.write(&mutating).await?;
    stage.serve(2).await?;
    until("the mutating webhook alone", PATIENCE, async || {
        let paths = stage.paths().await?;
        ensure!(paths == (None, Some("/validate/ns.team.labels/2".to_owned())), "{paths:?}");
        Ok(())
    })
    .await?;
    stage.write(&spec("2 > 1")).await?;
    stage.serve(3).await?;
    stage.until_live(3).await
}

#[tokio::test]
async fn disabled_and_deleted_policies_leave_no_webhook() -> Result<()> {
    let stage = Stage::start("operator-delete").await?;
    stage.write(&spec("true")).await?;
    stage.serve(1).await?;
    stage.until_live(1).await?;
    let mut disabled = spec("true");
    disabled["enabled"] = json!(false);
    stage.write(&disabled).await?;
    stage.until_phase(PolicyPhase::Disabled).await?;
    ensure!(stage.paths().await? == (None, None));
    // On again: a generation as any other.
    stage.write(&spec("true")).await?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    stage.policies().delete("labels", &DeleteParams::default()).await?;
    until("the webhook to go", PATIENCE, async || {
        ensure!(stage.paths().await? == (None, None));
        Ok(())
    })
    .await?;
    // The revisions answer a little longer than the webhook asks.
    ensure!(stage.revision(3).await?.spec.enabled);
    until("everything to go", PATIENCE, async || {
        let left = stage.revisions().list(&ListParams::default()).await?.items.len();
        ensure!(left == 0 && stage.policies().get_opt("labels").await?.is_none(), "{left} revisions are left");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_operator_that_was_killed_goes_on_where_it_was() -> Result<()> {
    let mut stage = Stage::start("operator-killed").await?;
    stage.write(&spec("true")).await?;
    stage.revision(1).await?;
    stage.operator = None;
    stage.serve(1).await?;
    stage.start_operator()?;
    stage.until_live(1).await?;
    // Two edits while nobody looks: the second counts.
    stage.operator = None;
    stage.write(&spec("2 > 1")).await?;
    ensure!(stage.write(&spec("3 > 2")).await? == 3);
    stage.start_operator()?;
    stage.serve(3).await?;
    stage.until_live(3).await?;
    if stage.revisions().get_opt("ns.team.labels-2").await?.is_some() {
        bail!("a revision of a generation that nobody saw");
    }
    Ok(())
}
