//! An operator whose permissions are revoked, and restored.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use proviso_crds::ClusterPolicy;
use proviso_e2e::until;

use super::LEASE;
use crate::test_cluster::{NAMESPACE, OPERATOR, POD, TIMEOUT, TestCluster};

/// The largest number of log lines about refused requests: the operator has some twenty watches. A hot loop would be
/// thousands of lines.
const MAX_REFUSALS: usize = 400;

impl TestCluster {
    /// Revokes the permissions to write webhook configurations, and waits until the API server refuses such writes.
    async fn revoke_writes_of_webhooks(&self) -> Result<()> {
        let api = Api::<ClusterRole>::all(self.client.clone());
        let mut role = api.get(OPERATOR).await?;
        let is_of_webhooks = |groups: &[String]| groups.iter().any(|group| group == "admissionregistration.k8s.io");
        let mut all = role.rules.iter_mut().flatten();
        let found = all.find(|rule| rule.api_groups.as_deref().is_some_and(is_of_webhooks)).context("no such rule")?;
        found.verbs.retain(|verb| ["get", "list", "watch"].contains(&verb.as_str()));
        api.replace(OPERATOR, &PostParams::default(), &role).await?;
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:{OPERATOR}");
        until("the refusal of writes", TIMEOUT, async || {
            let asked = ["auth", "can-i", "patch", "validatingwebhookconfigurations", &account];
            ensure!(self.kubectl.run(&asked).await.is_err(), "the permission still counts");
            Ok(())
        })
        .await
    }

    async fn revoke_everything(&self) -> Result<()> {
        let now = DeleteParams::default();
        Api::<ClusterRoleBinding>::all(self.client.clone()).delete(OPERATOR, &now).await?;
        self.api::<RoleBinding>().delete(OPERATOR, &now).await?;
        Ok(())
    }

    /// Returns the number of log lines about requests that the API server has refused.
    fn refusals(&self) -> Result<usize> {
        Ok(self.log()?.lines().filter(|line| line.contains("is forbidden")).count())
    }
}

#[tokio::test]
async fn an_operator_continues_when_its_revoked_permissions_are_restored() -> Result<()> {
    let mut cluster = TestCluster::start("operator-permissions").await?;
    cluster.grant().await?;
    let kubeconfig = cluster.service_account_kubeconfig()?;
    cluster.start_operator_at("127.0.0.1".parse()?, &kubeconfig, &[])?;
    cluster.create_policy_server().await?;
    cluster.make_live("a", "true").await?;
    cluster.until_active("a", 1).await?;

    // The operator leads, and may not switch the webhook.
    cluster.revoke_writes_of_webhooks().await?;
    let generation = cluster.apply_policy("a", "default", "2 > 1").await?;
    cluster.serve("cluster.a-2", POD).await?;
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    until("the refusal in the status", TIMEOUT, async || {
        let status = policies.get("a").await?.status.context("no status")?;
        let live = status.conditions.iter().find(|it| it.type_ == "Live").context("no condition Live")?;
        ensure!(live.status == "False" && live.reason == "KubernetesError", "{live:?}");
        ensure!(live.message.contains("is forbidden") && live.message.contains("generation 1 goes on"), "{live:?}");
        let described = cluster.kubectl.run(&["describe", "clusterpolicy", "a"]).await?;
        ensure!(described.contains("Warning  KubernetesError"), "{described}");
        Ok(())
    })
    .await?;
    let path = cluster.path("proviso-cluster.a").await?;
    ensure!(path.as_deref() == Some("/validate/cluster.a/1"), "{path:?}");
    cluster.grant().await?;
    cluster.until_active("a", generation).await?;
    cluster.until_path("proviso-cluster.a", "/validate/cluster.a/2").await?;

    // The operator may not even renew its Lease.
    let refusals = cluster.refusals()?;
    cluster.revoke_everything().await?;
    until("the end of the leadership", LEASE + TIMEOUT, async || {
        ensure!(cluster.times_leadership_was_lost()? == 1, "the operator still leads");
        Ok(())
    })
    .await?;
    let metrics = cluster.metrics().await?;
    ensure!(metrics.lines().any(|line| line == "proviso_operator_leader 0"), "{metrics}");
    let generation = cluster.apply_policy("a", "default", "3 > 2").await?;
    let refusals = cluster.refusals()? - refusals;
    ensure!(refusals > 0 && refusals <= MAX_REFUSALS, "{refusals} refused requests in the log");
    let path = cluster.path("proviso-cluster.a").await?;
    ensure!(path.as_deref() == Some("/validate/cluster.a/2"), "{path:?}");

    cluster.grant().await?;
    cluster.serve("cluster.a-3", POD).await?;
    cluster.until_active("a", generation).await?;
    ensure!(cluster.operators[0].0.try_wait()?.is_none(), "the operator has exited");
    ensure!(cluster.times_leadership_was_won()? == 2);
    Ok(())
}
