//! The lifecycle of a policy. The tests play the policy server: they write the status that the leader and the
//! replicas would write.

mod losses;
mod record;
mod rollouts;
mod webhooks;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::{Policy, PolicyPhase, PolicyRevision, PolicyStatus};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{self, TIMEOUT};

/// The namespace of the policy.
const TEAM: &str = "team";
/// The name of the webhook configuration of the policy.
const WEBHOOK: &str = "proviso-ns.team.labels";

/// A cluster with an operator, two pods of a policy server that no kubelet runs, and one policy, `labels`.
struct PolicyCluster(test_cluster::TestCluster);

impl Deref for PolicyCluster {
    type Target = test_cluster::TestCluster;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for PolicyCluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl PolicyCluster {
    async fn start(name: &str) -> Result<Self> {
        Self::start_with(name, &[]).await
    }

    /// Starts the cluster with these arguments of the operator.
    async fn start_with(name: &str, arguments: &[&str]) -> Result<Self> {
        let mut cluster = Self(test_cluster::TestCluster::start(name).await?);
        cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
        for name in ["server-0", "server-1"] {
            cluster.create_ready_pod(name).await?;
        }
        cluster.create_caller_tokens("default").await?;
        cluster.start_operator(arguments)?;
        Ok(cluster)
    }

    /// Creates a pod of the policy server, and writes that it is Ready. No kubelet runs it.
    async fn create_ready_pod(&self, name: &str) -> Result<()> {
        let pods = self.api::<Pod>();
        until("the service account", TIMEOUT, async || {
            let pod = json!({
                "metadata": {"name": name, "labels": {"proviso.dev/policy-server": "default"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            });
            Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.map(drop)?)
        })
        .await?;
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.set_pod_status(name, status).await
    }

    fn policies(&self) -> Api<Policy> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    fn revisions(&self) -> Api<PolicyRevision> {
        self.api()
    }

    /// Creates or updates the policy. Returns its generation.
    async fn write(&self, spec: &Value) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels"}, "spec": spec,
        });
        let written =
            self.policies().patch("labels", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Creates the policy server, without replicas of its own, and lets namespaced policies change objects on it.
    async fn permit_mutation(&self) -> Result<()> {
        self.apply_server("default", json!({"replicas": 0, "namespacedMutation": true})).await?;
        Ok(())
    }

    /// Waits for the revision of a generation.
    async fn revision(&self, generation: i64) -> Result<PolicyRevision> {
        let name = format!("ns.{TEAM}.labels-{generation}");
        until(&name, TIMEOUT, async || Ok(self.revisions().get(&name).await?)).await
    }

    /// Writes the result of the leader for a generation.
    async fn report_initialized(&self, generation: i64, status: &str, reason: &str, message: &str) -> Result<()> {
        let revision = self.revision(generation).await?;
        let condition = condition("Initialized", status, reason, message, generation);
        self.apply_revision_status(&revision, "proviso-leader", json!({"conditions": [condition]})).await
    }

    /// Writes the result of a replica for a generation.
    async fn report_loaded(&self, generation: i64, pod: &str, ready: &str, reason: &str) -> Result<()> {
        let revision = self.revision(generation).await?;
        let uid = self.api::<Pod>().get(pod).await?.uid().unwrap_or_default();
        let replica = replica(pod, &uid, ready, reason);
        self.apply_revision_status(&revision, pod, json!({"replicas": [replica]})).await
    }

    async fn apply_revision_status(&self, revision: &PolicyRevision, manager: &str, status: Value) -> Result<()> {
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": status});
        let apply = PatchParams::apply(manager).force();
        self.revisions().patch_status(&revision.name_any(), &apply, &Patch::Apply(patch)).await?;
        Ok(())
    }

    /// Writes that the leader has prepared the generation, and that both replicas have loaded it.
    async fn serve(&self, generation: i64) -> Result<()> {
        self.report_initialized(generation, "True", "Prepared", "").await?;
        self.report_loaded(generation, "server-0", "True", "Loaded").await?;
        self.report_loaded(generation, "server-1", "True", "Loaded").await
    }

    /// Returns the paths that the validating and the mutating webhook call.
    async fn paths(&self) -> Result<(Option<String>, Option<String>)> {
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone()).get_opt(WEBHOOK).await?;
        let mutating = mutating.and_then(|it| Some(it.webhooks?.pop()?.client_config));
        Ok((self.path(WEBHOOK).await?, self.without_token(mutating).await?))
    }

    /// Waits until the validating webhook calls this generation, and there is no mutating webhook.
    async fn until_live(&self, generation: i64) -> Result<()> {
        let path = Some(format!("/validate/ns.{TEAM}.labels/{generation}"));
        until(&format!("generation {generation} to be live"), TIMEOUT, async || {
            let paths = self.paths().await?;
            ensure!(paths == (path.clone(), None), "{paths:?}");
            let status = self.status().await?;
            ensure!(status.live_generation == Some(generation), "{status:?}");
            Ok(())
        })
        .await
    }

    /// Changes the path of the validating webhook by hand.
    async fn set_path(&self, path: &str) -> Result<()> {
        let change = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": path}]);
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        self.webhooks().patch(WEBHOOK, &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Returns the condition `Live` of the revision of a generation.
    async fn live_condition(&self, generation: i64) -> Result<Condition> {
        let conditions = self.revision(generation).await?.status.unwrap_or_default().conditions;
        conditions.into_iter().find(|it| it.type_ == "Live").context("no condition Live")
    }

    /// Waits until a condition of the policy has this status and reason. Returns its message.
    async fn until_policy_condition(&self, type_: &str, status: &str, reason: &str, bound: Duration) -> Result<String> {
        until(&format!("{type_} {status}, {reason}"), bound, async || {
            let conditions = self.status().await?.conditions;
            let found = conditions.iter().find(|it| it.type_ == type_).with_context(|| format!("{conditions:?}"))?;
            ensure!(found.status == status && found.reason == reason, "{found:?}");
            Ok(found.message.clone())
        })
        .await
    }

    /// Waits until `kubectl describe` of the policy contains these words, for example in an Event.
    async fn until_described(&self, words: &str) -> Result<()> {
        until(words, TIMEOUT, async || {
            let described = self.kubectl.run(&["describe", "policy", "labels", "--namespace", TEAM]).await?;
            ensure!(described.contains(words), "{described}");
            Ok(())
        })
        .await
    }

    async fn status(&self) -> Result<PolicyStatus> {
        Ok(self.policies().get("labels").await?.status.unwrap_or_default())
    }

    async fn until_phase(&self, phase: PolicyPhase) -> Result<PolicyStatus> {
        until(&format!("{phase:?}"), TIMEOUT, async || {
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
