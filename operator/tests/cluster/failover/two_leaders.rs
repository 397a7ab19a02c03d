//! Two operators that both lead for a long time, which a Lease cannot exclude: see `crates/election`.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::PolicyRevision;
use proviso_e2e::{until, until_with};
use serde_json::json;

use crate::http_proxy::HttpProxy;
use crate::rotation::verify;
use crate::test_cluster::{NAMESPACE, TIMEOUT, TestCluster};

const LEASE: &str = "proviso-operator";
/// The namespace of the Lease of the second operator.
const OTHER: &str = "other";
const WEBHOOK: &str = "proviso-cluster.a";
/// Without writes for this time, two operators do not undo each other's writes.
const SETTLED: Duration = Duration::from_secs(3);
/// The kinds of the objects that operators write, and true if the kind is namespaced.
const KINDS: [(&str, &str, bool); 9] = [
    ("proviso.dev/v1alpha1", "ClusterPolicy", false),
    ("proviso.dev/v1alpha1", "PolicyServer", false),
    ("proviso.dev/v1alpha1", "PolicyRevision", true),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", false),
    ("apps/v1", "StatefulSet", true),
    ("rbac.authorization.k8s.io/v1", "Role", true),
    ("v1", "Secret", true),
    ("v1", "Service", true),
    ("v1", "ConfigMap", true),
];

impl TestCluster {
    /// Returns the versions of the objects that operators write.
    async fn versions(&self) -> Result<Vec<(String, Option<String>)>> {
        let mut versions = Vec::new();
        for (api_version, kind, is_namespaced) in KINDS {
            let api = self.dynamic(api_version, kind, is_namespaced.then_some(NAMESPACE));
            for object in api.list(&ListParams::default()).await? {
                versions.push((format!("{kind} {}", object.name_any()), object.resource_version()));
            }
        }
        Ok(versions)
    }

    /// Records the paths that the webhook of the policy `a` calls, until the future is dropped.
    async fn record_paths(&self, paths: &RefCell<Vec<String>>) -> Result<()> {
        loop {
            if let Some(path) = self.path(WEBHOOK).await? {
                let mut paths = paths.borrow_mut();
                if paths.last() != Some(&path) {
                    paths.push(path);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn two_operators_that_both_lead_agree_on_each_rollout_and_settle() -> Result<()> {
    let mut cluster = TestCluster::start("operator-two-leaders").await?;
    cluster.kubectl.run(&["create", "namespace", OTHER]).await?;
    let other = Api::<Lease>::namespaced(cluster.client.clone(), OTHER);
    let lease = serde_json::from_value(json!({"metadata": {"name": LEASE}, "spec": {}}))?;
    other.create(&PostParams::default(), &lease).await?;
    // The second operator holds another Lease without knowing it.
    let own = format!("/namespaces/{NAMESPACE}/leases/{LEASE}");
    let split = format!("/namespaces/{OTHER}/leases/{LEASE}");
    let proxy = HttpProxy::start(&cluster, "second", move |path| path.replace(&own, &split)).await?;
    cluster.start_as("first")?;
    cluster.start_operator_at("127.0.0.1".parse()?, &proxy.kubeconfig, &["--identity", "second"])?;
    until("two leaders", TIMEOUT, async || {
        let won = cluster.times_leadership_was_won()?;
        ensure!(won == 2, "{won}");
        Ok(())
    })
    .await?;

    let paths = RefCell::new(Vec::new());
    let rollouts = async {
        cluster.create_policy_server().await?;
        for (generation, expression) in [(1, "true"), (2, "2 > 1"), (3, "3 > 2")] {
            cluster.make_live("a", expression).await?;
            cluster.until_active("a", generation).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        result = rollouts => result?,
        result = cluster.record_paths(&paths) => result?,
    }
    let expected = [1, 2, 3].map(|generation| format!("/validate/cluster.a/{generation}"));
    ensure!(paths.borrow().as_slice() == expected.as_slice(), "a webhook moved back: {:?}", paths.borrow());
    let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?;
    let names: Vec<_> = revisions.iter().map(kube::ResourceExt::name_any).collect();
    ensure!(names == ["cluster.a-1", "cluster.a-2", "cluster.a-3"], "{names:?}");

    until_with("both operators to settle", 2 * TIMEOUT, TIMEOUT, async || {
        let before = cluster.versions().await?;
        tokio::time::sleep(SETTLED).await;
        let after = cluster.versions().await?;
        let changed: Vec<_> = after.iter().filter(|object| !before.contains(object)).collect();
        ensure!(changed.is_empty(), "written again: {changed:?}");
        Ok(())
    })
    .await?;
    let certificate = cluster.secret("policy-server-default-tls", "tls.crt").await?;
    verify(&certificate, &cluster.published_bundle("a").await?)?;
    let holder = other.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(holder.as_deref() == Some("second") && cluster.holder().await?.as_deref() == Some("first"), "{holder:?}");
    let lost = cluster.times_leadership_was_lost()?;
    ensure!(lost == 0, "an operator has stopped leading");
    cluster.operators.pop().context("the second operator")?.terminate().await?;
    cluster.make_live("a", "4 > 3").await
}
