//! The objects of the cluster that the run reads and writes.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use proviso_core::caller_token::split_token;
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, PolicyRevision, PolicyServer};

/// The namespace of Proviso.
pub const NAMESPACE: &str = "proviso-system";
/// The namespace of the requests.
pub const REQUESTS: &str = "torture";

/// Clients of the kinds of objects. Kinds of Proviso are read without their types, so that a malformed object is no failure of
/// the run.
#[derive(Clone)]
pub struct Objects {
    pub policies: Api<DynamicObject>,
    pub experiments: Api<DynamicObject>,
    pub revisions: Api<DynamicObject>,
    pub servers: Api<DynamicObject>,
    pub pods: Api<Pod>,
    pub requests: Api<ConfigMap>,
    /// The webhook configurations: validating, then mutating.
    pub webhooks: [Api<DynamicObject>; 2],
}

impl Objects {
    pub fn new(client: &Client) -> Self {
        let all = |resource: &ApiResource| Api::<DynamicObject>::all_with(client.clone(), resource);
        let webhooks = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"].map(|kind| {
            all(&ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind)))
        });
        let revisions = ApiResource::erase::<PolicyRevision>(&());
        Self {
            policies: all(&ApiResource::erase::<ClusterPolicy>(&())),
            experiments: all(&ApiResource::erase::<ClusterPolicyExperiment>(&())),
            revisions: Api::namespaced_with(client.clone(), NAMESPACE, &revisions),
            servers: all(&ApiResource::erase::<PolicyServer>(&())),
            pods: Api::namespaced(client.clone(), NAMESPACE),
            requests: Api::namespaced(client.clone(), REQUESTS),
            webhooks,
        }
    }

    /// Returns the webhook configurations of both kinds.
    pub async fn webhook_configurations(&self) -> Result<Vec<DynamicObject>> {
        let mut all = Vec::new();
        for api in &self.webhooks {
            all.extend(api.list(&ListParams::default()).await?.items);
        }
        Ok(all)
    }

    /// Replaces the spec of a policy. The answer of a conflict is an error: try again.
    pub async fn replace_spec(&self, policy: &str, spec: &serde_json::Value) -> Result<Option<i64>, kube::Error> {
        let mut object = self.policies.get(policy).await?;
        object.data["spec"] = spec.clone();
        let written = self.policies.replace(policy, &PostParams::default(), &object).await?;
        Ok(written.metadata.generation)
    }
}

/// Returns the generations of a policy at which webhooks point.
pub fn generations_of(policy: &str, configurations: &[DynamicObject]) -> Vec<i64> {
    let (name, prefix) = (format!("proviso-cluster.{policy}"), format!("/validate/cluster.{policy}/"));
    let ours = configurations.iter().filter(|it| it.metadata.name.as_deref() == Some(&name));
    let paths = ours.filter_map(|it| it.data["webhooks"][0]["clientConfig"]["service"]["path"].as_str());
    paths.filter_map(|path| split_token(path).1.strip_prefix(&prefix)?.parse().ok()).collect()
}

/// Creates an object of any kind from JSON.
pub fn object(json: serde_json::Value) -> Result<DynamicObject> {
    serde_json::from_value(json).context("an object of the run")
}
