//! What all controllers share: under which name and labels the operator writes, and how it waits.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt as _};
use proviso_crds::names::field_managers;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Who the operator is: in managed fields, labels and Events.
pub(crate) const MANAGER: &str = field_managers::OPERATOR;
/// What selects all that is a part of Proviso, by a label that Kubernetes recommends.
pub(crate) const OURS: &str = "app.kubernetes.io/part-of=proviso";
/// How often an object is looked at when nothing is known to have happened.
pub(crate) const RESYNC: Duration = Duration::from_mins(10);
/// How long the note of an Event may be, in bytes.
const NOTE: usize = 1024;
/// How long to wait after an error.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// How long a watch lasts, in seconds: less than the silence after which [`crate::client`] closes a connection.
const WATCH_SECONDS: u32 = 25;

/// A watch that ends, and is begun again, before its silence is that of a connection that leads nowhere.
pub(crate) fn watching() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// The labels that Kubernetes recommends.
pub(crate) fn labels(name: &str, instance: &str) -> BTreeMap<String, String> {
    let labels = [("name", name), ("instance", instance), ("part-of", "proviso"), ("managed-by", MANAGER)];
    labels.into_iter().map(|(key, value)| (format!("app.kubernetes.io/{key}"), value.to_owned())).collect()
}

/// Server-side apply: what we write is ours, whoever wrote it before.
pub(crate) fn apply() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

/// An object that is gone already is as good as one that was deleted now.
pub(crate) fn ignore_gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => result.map(drop),
    }
}

/// Deletes the object that was found, and no other that has its name meanwhile.
pub(crate) async fn delete<K>(api: &Api<K>, found: &impl Resource) -> kube::Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let only = Preconditions { uid: found.uid(), resource_version: None };
    let delete = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    ignore_gone(api.delete(&found.name_any(), &delete).await)
}

/// The note of an Event: its beginning, if it is too long.
pub(crate) fn note(text: &str) -> String {
    text[..text.floor_char_boundary(NOTE)].to_owned()
}

/// How long it is until then.
pub(crate) fn until(due: Timestamp, now: Timestamp) -> Duration {
    due.duration_since(now).try_into().unwrap_or_default()
}

/// Takes part in the deletion of the object from now on; whether that changed anything.
pub(crate) async fn add_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<bool>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut finalizers = object.finalizers().to_vec();
    if finalizers.iter().any(|it| it == finalizer) {
        return Ok(false);
    }
    finalizers.push(finalizer.to_owned());
    set_finalizers(api, object, &finalizers).await?;
    Ok(true)
}

/// Lets the object go, as far as it depends on this finalizer.
pub(crate) async fn remove_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let rest: Vec<_> = object.finalizers().iter().filter(|it| *it != finalizer).cloned().collect();
    set_finalizers(api, object, &rest).await
}

async fn set_finalizers<K>(api: &Api<K>, object: &K, finalizers: &[String]) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    // With the version that was read: of two writers one must fail.
    let version = object.resource_version();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}}));
    api.patch(&object.name_any(), &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The Secret to write so that the one that was found becomes as wanted; none if it is.
pub(crate) fn changed_secret(found: Option<Secret>, wanted: Secret) -> Option<Secret> {
    let Some(found) = found else { return Some(wanted) };
    let mut secret = found.clone();
    secret.data = wanted.data;
    if let Some(labels) = wanted.metadata.labels {
        secret.labels_mut().extend(labels);
    }
    if let Some(annotations) = wanted.metadata.annotations {
        secret.annotations_mut().extend(annotations);
    }
    secret.metadata.owner_references = wanted.metadata.owner_references;
    (secret != found).then_some(secret)
}

/// Writes a Secret that [`changed_secret`] returned: replaces the one that was found, or creates it. Of two writers one fails.
pub(crate) async fn write_secret(api: &Api<Secret>, secret: &Secret) -> kube::Result<Secret> {
    if secret.metadata.resource_version.is_some() {
        api.replace(&secret.name_any(), &PostParams::default(), secret).await
    } else {
        api.create(&PostParams::default(), secret).await
    }
}
