//! An operator that is killed after each write for a policy: the next operator continues, and leaves no orphans.

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyPhase, PolicyRevision};
use proviso_e2e::until;

use crate::http_proxy::HttpProxy;
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

const WEBHOOK: &str = "proviso-cluster.a";
/// More operators than any step needs.
const MAX_OPERATORS: usize = 30;
/// The shortest grace period of the operator, so that the test does not wait for minutes.
const ARGUMENTS: [&str; 1] = ["--retire-after=5s"];

impl TestCluster {
    /// Writes the status of a replica that has loaded each enabled revision.
    async fn load_all(&self) -> Result<()> {
        let revisions = self.api::<PolicyRevision>().list(&ListParams::default()).await?;
        let is_desired = |it: &PolicyRevision| it.spec.enabled && it.metadata.deletion_timestamp.is_none();
        for revision in revisions.items.iter().filter(|it| is_desired(it)) {
            let status = revision.status.as_ref();
            if status.is_none_or(|status| status.replicas.is_empty()) {
                self.serve(&revision.name_any(), POD).await?;
            }
        }
        Ok(())
    }

    /// Checks that the webhook calls no revision that replicas may unload.
    async fn check_webhook(&self) -> Result<()> {
        let Some(path) = self.path(WEBHOOK).await? else { return Ok(()) };
        let generation = path.rsplit('/').next().context("a generation")?;
        let revision = self.api::<PolicyRevision>().get(&format!("cluster.a-{generation}")).await?;
        ensure!(revision.spec.enabled && revision.metadata.deletion_timestamp.is_none(), "{path}: {revision:#?}");
        Ok(())
    }

    /// Kills the operator after each write, and starts another one, until a step is done without a write. Returns the
    /// writes.
    async fn kill_at_each_write(
        &mut self,
        proxy: &HttpProxy,
        is_done: impl AsyncFn(&TestCluster) -> Result<()>,
    ) -> Result<Vec<String>> {
        let mut writes = Vec::new();
        for _ in 0..MAX_OPERATORS {
            proxy.stop_after(1);
            self.start_operator_at("127.0.0.1".parse()?, &proxy.kubeconfig, &ARGUMENTS)?;
            let stopped = until("another write, or the end of the step", 2 * TIMEOUT, async || {
                if let Some(stopped) = proxy.stopped() {
                    return Ok(stopped);
                }
                self.load_all().await?;
                is_done(self).await?;
                ensure!(!proxy.has_begun(), "the step is done by a write that has no answer yet");
                Ok(Vec::new())
            })
            .await?;
            self.operators.clear();
            self.check_webhook().await?;
            if stopped.is_empty() {
                return Ok(writes);
            }
            writes.extend(stopped);
        }
        bail!("no end after these writes: {writes:#?}")
    }
}

/// Checks that a generation is live and on record, and that all others are unloaded.
async fn check_live(cluster: &TestCluster, generation: i64) -> Result<()> {
    let policy = Api::<ClusterPolicy>::all(cluster.client.clone()).get("a").await?;
    let status = policy.status.context("no status")?;
    let is_live = status.phase == Some(PolicyPhase::Active) && status.live_generation == Some(generation);
    ensure!(is_live, "{status:?}");
    let path = cluster.path(WEBHOOK).await?;
    ensure!(path == Some(format!("/validate/cluster.a/{generation}")), "{path:?}");
    for revision in cluster.api::<PolicyRevision>().list(&ListParams::default()).await? {
        let is_live = revision.spec.policy_ref.generation == generation;
        let conditions = revision.status.clone().unwrap_or_default().conditions;
        let mark = conditions.iter().find(|it| it.type_ == "Live").context("no condition Live")?;
        ensure!(revision.spec.enabled == is_live && (mark.status == "True") == is_live, "{revision:#?}");
    }
    Ok(())
}

async fn check_gone(cluster: &TestCluster) -> Result<()> {
    let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?;
    ensure!(revisions.items.is_empty(), "{} revisions", revisions.items.len());
    ensure!(cluster.path(WEBHOOK).await?.is_none(), "the webhook still exists");
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    ensure!(policies.get_opt("a").await?.is_none(), "the policy still exists");
    Ok(())
}

#[tokio::test]
async fn an_operator_killed_at_each_write_for_a_policy_continues_and_leaves_no_orphans() -> Result<()> {
    let mut cluster = TestCluster::with_policy_server("operator-killed-at-each-write").await?;
    cluster.operators.clear();
    let proxy = HttpProxy::start(&cluster, "operator", str::to_owned).await?;
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());

    cluster.apply_policy("a", "default", "true").await?;
    let created = cluster.kill_at_each_write(&proxy, async |cluster| check_live(cluster, 1).await).await?;
    // The finalizer, the revision, its mark, the webhook and the status.
    for part in ["/clusterpolicies/a", "/policyrevisions", "/cluster.a-1/status", WEBHOOK, "/a/status"] {
        ensure!(created.iter().any(|write| write.ends_with(part)), "no write of {part}: {created:#?}");
    }
    let edited = cluster.apply_policy("a", "default", "2 > 1").await?;
    let edits = cluster.kill_at_each_write(&proxy, async |cluster| check_live(cluster, edited).await).await?;
    // The marks of both generations, the webhook, and the first revision, which is disabled after its grace period.
    for part in ["/cluster.a-1/status", "/cluster.a-2/status", WEBHOOK, "/cluster.a-1"] {
        ensure!(edits.iter().any(|write| write.ends_with(part)), "no write of {part}: {edits:#?}");
    }
    policies.delete("a", &DeleteParams::default()).await?;
    let deletions = cluster.kill_at_each_write(&proxy, async |cluster| check_gone(cluster).await).await?;
    for part in [WEBHOOK, "/cluster.a-1", "/cluster.a-2", "/clusterpolicies/a"] {
        ensure!(deletions.iter().any(|write| write.ends_with(part)), "no write of {part}: {deletions:#?}");
    }
    eprintln!("killed after {} writes", created.len() + edits.len() + deletions.len());
    Ok(())
}
