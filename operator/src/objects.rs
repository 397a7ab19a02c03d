//! Helpers of all controllers: names, labels, intervals, server-side apply, finalizers and Secrets.

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

/// The name of the operator in managed fields, labels and Events.
pub(crate) const MANAGER: &str = field_managers::OPERATOR;
/// The label selector of all objects of Proviso, by a label that Kubernetes recommends.
pub(crate) const PART_OF_PROVISO: &str = "app.kubernetes.io/part-of=proviso";
/// The interval between reconciles of an object without events.
pub(crate) const RESYNC: Duration = Duration::from_mins(10);
/// The maximum length of the note of an Event, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
/// The delay before another attempt where no controller computes a growing delay.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// The duration of a watch, in seconds: less than the read timeout of [`crate::client`].
const WATCH_SECONDS: u32 = 25;

/// Returns the configuration of a watch that restarts before the read timeout of the client: a watch without events
/// must not look like a broken connection.
pub(crate) fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Returns the labels that Kubernetes recommends.
pub(crate) fn labels(name: &str, instance: &str) -> BTreeMap<String, String> {
    let labels = [("name", name), ("instance", instance), ("part-of", "proviso"), ("managed-by", MANAGER)];
    labels.into_iter().map(|(key, value)| (format!("app.kubernetes.io/{key}"), value.to_owned())).collect()
}

/// Returns the parameters of a server-side apply that takes over fields of other managers.
pub(crate) fn apply_params() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

/// Treats the error "not found" as success: the object is already deleted.
pub(crate) fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => result.map(drop),
    }
}

/// Deletes the object with the uid of `found`, and no newer object of the same name.
pub(crate) async fn delete<K>(api: &Api<K>, found: &impl Resource) -> kube::Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let only = Preconditions { uid: found.uid(), resource_version: None };
    let delete = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    ignore_not_found(api.delete(&found.name_any(), &delete).await)
}

/// Truncates a text to the maximum length of the note of an Event.
pub(crate) fn event_note(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NOTE_BYTES)].to_owned()
}

/// Returns the time from `now` until `due`; zero if `due` has passed.
pub(crate) fn duration_until(due: Timestamp, now: Timestamp) -> Duration {
    due.duration_since(now).try_into().unwrap_or_default()
}

/// Adds a finalizer. Returns whether the object has changed.
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

/// Removes a finalizer.
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
    // With the `resourceVersion` that was read, so that one of two concurrent writers fails.
    let version = object.resource_version();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}}));
    api.patch(&object.name_any(), &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Returns the Secret to write so that `found` becomes `desired`; `None` if nothing has to change.
pub(crate) fn changed_secret(found: Option<Secret>, desired: Secret) -> Option<Secret> {
    let Some(found) = found else { return Some(desired) };
    let mut secret = found.clone();
    secret.data = desired.data;
    if let Some(labels) = desired.metadata.labels {
        secret.labels_mut().extend(labels);
    }
    if let Some(annotations) = desired.metadata.annotations {
        secret.annotations_mut().extend(annotations);
    }
    secret.metadata.owner_references = desired.metadata.owner_references;
    (secret != found).then_some(secret)
}

/// Writes a Secret that [`changed_secret`] returned: replaces the found Secret, or creates a new one. One of two
/// concurrent writers fails.
pub(crate) async fn write_secret(api: &Api<Secret>, secret: &Secret) -> kube::Result<Secret> {
    if secret.metadata.resource_version.is_some() {
        api.replace(&secret.name_any(), &PostParams::default(), secret).await
    } else {
        api.create(&PostParams::default(), secret).await
    }
}
