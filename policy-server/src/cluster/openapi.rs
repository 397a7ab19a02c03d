//! Fetches the schema of `PolicyRevision`s from the OpenAPI document of the API server, which every authenticated client may read (the
//! `ClusterRole` `system:discovery`). The replica needs the schema only if a revision has fields that it does not know.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use hyper::{Request, header};
use kube::core::GroupVersionKind;
use kube::{Client, Resource as _};
use proviso_crds::{GROUP, PolicyRevision, VERSION};
use serde::Deserialize;

use super::schema::Schema;

/// The delays between two fetches, while the schema does not explain every field or cannot be fetched. A later upgrade of the
/// `CustomResourceDefinition` is found after at most the longest delay and its jitter.
const FETCH_BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(15))
    .without_max_times()
    .with_jitter();

/// The error of a schema that cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaError {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error("the OpenAPI document {0} does not describe `spec` of the kind PolicyRevision")]
    Missing(String),
}

/// The schema of `spec` of a `PolicyRevision`, and the state of its fetches.
pub(super) struct SchemaCache {
    client: Client,
    /// The last fetched schema; `None` before the first successful fetch.
    schema: Option<Schema>,
    is_fetching: bool,
    /// True if a fetch has ended, with success or not.
    was_tried: bool,
    /// The next delays, and the earliest time of the next fetch; `None` if the next fetch needs no delay.
    delay: Option<(ExponentialBackoff, Instant)>,
}

impl SchemaCache {
    pub(super) fn new(client: Client) -> Self {
        Self { client, schema: None, is_fetching: false, was_tried: false, delay: None }
    }

    pub(super) fn schema(&self) -> Option<&Schema> {
        self.schema.as_ref()
    }

    pub(super) fn is_fetching(&self) -> bool {
        self.is_fetching
    }

    pub(super) fn was_tried(&self) -> bool {
        self.was_tried
    }

    /// Starts a fetch in the background, unless one is running or the delay after the last one has not passed. Calls `done` with the
    /// result, which [`Self::take`] takes.
    pub(super) fn fetch(&mut self, now: Instant, done: impl FnOnce(Result<Schema, SchemaError>) + Send + 'static) {
        if self.is_fetching || self.delay.as_ref().is_some_and(|(_, due)| now < *due) {
            return;
        }
        self.is_fetching = true;
        let client = self.client.clone();
        // The follower waits for the result.
        proviso_tasks::spawn("schema", async move { done(fetch(&client).await) });
    }

    /// Takes the result of a fetch. The next fetch waits, because the schema may not explain every field.
    pub(super) fn take(&mut self, result: Result<Schema, SchemaError>, now: Instant) {
        (self.is_fetching, self.was_tried) = (false, true);
        let mut delays = self.delay.take().map_or_else(|| FETCH_BACKOFF.build(), |(delays, _)| delays);
        // The backoff is endless, so `next` always returns a delay.
        let delay = delays.next().unwrap_or_default();
        self.delay = Some((delays, now + delay));
        match result {
            Ok(schema) => self.schema = Some(schema),
            Err(error) => tracing::warn!(%error, "cannot fetch the schema of the revisions; trying again"),
        }
    }

    /// Ends the delays: the schema explains every field, and the next unknown field is looked up at once.
    pub(super) fn reset_delay(&mut self) {
        self.delay = None;
    }
}

impl std::fmt::Debug for SchemaCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchemaCache")
            .field("schema", &self.schema)
            .field("is_fetching", &self.is_fetching)
            .finish_non_exhaustive()
    }
}

async fn fetch(client: &Client) -> Result<Schema, SchemaError> {
    let path = format!("/openapi/v3/apis/{GROUP}/{VERSION}");
    let request = Request::get(&path).header(header::ACCEPT, "application/json").body(Vec::new());
    let text = client.request_text(request.map_err(kube::Error::HttpError)?).await?;
    let document: Document = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    document.spec().ok_or(SchemaError::Missing(path))
}

/// An OpenAPI v3 document of one group and version.
#[derive(Deserialize)]
struct Document {
    components: Components,
}

#[derive(Deserialize)]
struct Components {
    schemas: BTreeMap<String, Kind>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "x-kubernetes-group-version-kind", default)]
    kinds: Vec<GroupVersionKind>,
    #[serde(default)]
    properties: BTreeMap<String, Schema>,
}

impl Document {
    /// Returns the schema of `spec` of a `PolicyRevision`.
    fn spec(self) -> Option<Schema> {
        let revision = GroupVersionKind::gvk(GROUP, VERSION, &PolicyRevision::kind(&()));
        let mut kinds = self.components.schemas.into_values();
        kinds.find(|kind| kind.kinds.contains(&revision))?.properties.remove("spec")
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::path;
    use super::*;
    use serde_json::{Value, json};

    fn kind(group: &str, kind: &str, default: &str) -> Value {
        json!({
            "type": "object",
            "properties": {
                "metadata": {"description": "m", "allOf": [{"$ref": "#/components/schemas/ObjectMeta"}], "default": {}},
                "spec": {"type": "object", "properties": {"a": {"type": "string", "default": default}}},
            },
            "x-kubernetes-group-version-kind": [{"group": group, "kind": kind, "version": "v1alpha1"}],
        })
    }

    #[test]
    fn the_schema_of_the_kind_is_found_in_the_document() {
        let document = json!({
            "openapi": "3.0.0", "info": {"title": "Kubernetes"}, "paths": {},
            "components": {"schemas": {
                "dev.proviso.v1alpha1.Policy": kind("proviso.dev", "Policy", "policy"),
                "dev.proviso.v1alpha1.PolicyRevision": kind("proviso.dev", "PolicyRevision", "revision"),
                "example.v1alpha1.PolicyRevision": kind("example.com", "PolicyRevision", "other"),
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object", "properties": {
                    "labels": {"type": "object", "additionalProperties": {"type": "string", "default": ""}},
                }},
                "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": {"type": "object"},
            }},
        });
        let spec = |document: &Value| serde_json::from_value::<Document>(document.clone()).unwrap().spec();
        let schema = spec(&document).unwrap();
        let is_default = |value: &str| schema.is_default(&json!({"a": value}), &path("a"));
        assert!(is_default("revision") && !is_default("policy") && !is_default("other"));
        assert!(spec(&json!({"components": {"schemas": {}}})).is_none());
    }
}
