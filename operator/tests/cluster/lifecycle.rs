//! The life of a policy. The policy server is played by the tests: they say what the leader and the replicas would say.

mod rollouts;
mod webhooks;

use std::ops::{Deref, DerefMut};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::{Policy, PolicyPhase, PolicyRevision, PolicyStatus};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::stage::{self, PATIENCE};

/// Where the policy's owner works.
const TEAM: &str = "team";

/// With an operator, and two pods of a policy server that nobody runs; about one policy, `labels`.
struct Stage(stage::Stage);

impl Deref for Stage {
    type Target = stage::Stage;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Stage {
    async fn start(name: &str) -> Result<Self> {
        let mut stage = Self(stage::Stage::start(name).await?);
        stage.kubectl.run(&["create", "namespace", TEAM]).await?;
        for name in ["server-0", "server-1"] {
            stage.pod(name).await?;
        }
        stage.start_operator(&[])?;
        Ok(stage)
    }

    /// Makes a pod of the policy server, Ready; nobody runs it.
    async fn pod(&self, name: &str) -> Result<()> {
        let pods = self.api::<Pod>();
        until("the service account", PATIENCE, async || {
            let pod = json!({
                "metadata": {"name": name, "labels": {"proviso.dev/policy-server": "default"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            });
            Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.map(drop)?)
        })
        .await?;
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.say_of_pod(name, status).await
    }

    fn policies(&self) -> Api<Policy> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    fn revisions(&self) -> Api<PolicyRevision> {
        self.api()
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
        let condition = condition("Initialized", status, reason, message, generation);
        self.say(&revision, "proviso-leader", json!({"conditions": [condition]})).await
    }

    /// Says what a replica would say.
    async fn loaded(&self, generation: i64, pod: &str, ready: &str, reason: &str) -> Result<()> {
        let revision = self.revision(generation).await?;
        let uid = self.api::<Pod>().get(pod).await?.uid().unwrap_or_default();
        let replica = replica(pod, &uid, ready, reason);
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
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone()).get_opt(&name).await?;
        let path = mutating.and_then(|it| it.webhooks?.pop()?.client_config.service?.path);
        Ok((self.path(&name).await?, path))
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
