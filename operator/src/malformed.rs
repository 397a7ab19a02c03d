//! Tolerant reading of Proviso's own kinds. An object that this operator cannot read, for example because another
//! version of the CRDs admitted it, is reported and skipped, so that the other objects can still be read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use proviso_crds::{PolicyServer, reasons};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cache::Cached;
use crate::objects::{MANAGER, event_note};

/// An object, or the error that makes it unreadable. Unlike kube's `DeserializeGuard`, the error names the field.
#[derive(Clone, Debug)]
pub(crate) struct MaybeMalformed<K>(pub Result<K, Malformed>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Malformed {
    pub metadata: ObjectMeta,
    /// The path of the invalid field, and the error of the field.
    pub error: String,
    /// The name in `spec.policyRef`; `None` if the kind does not have this field, or if it cannot be read.
    pub policy_ref: Option<String>,
    /// The status as the API server sent it; null if there is none.
    pub status: Value,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for MaybeMalformed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match serde_path_to_error::deserialize(&value) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => {
                let message = format!("{}: {}", error.path(), error.inner());
                // The API server validates the metadata of every object, so the metadata can be read.
                let metadata = ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?;
                let policy_ref = value["spec"]["policyRef"]["name"].as_str().map(ToOwned::to_owned);
                let status = value["status"].clone();
                Ok(Self(Err(Malformed { metadata, error: message, policy_ref, status })))
            }
        }
    }
}

impl<K: Serialize> Serialize for MaybeMalformed<K> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(_) => Err(serde::ser::Error::custom("a malformed object is never written")),
        }
    }
}

impl<K: Resource> Resource for MaybeMalformed<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|malformed| &malformed.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|malformed| &mut malformed.metadata, K::meta_mut)
    }
}

/// A kind of Proviso whose [`MaybeMalformed`] objects are cached.
pub(crate) trait Keyed: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Sent: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    fn from_sent(sent: Self::Sent) -> Self;

    /// Returns the cache keys of an object, which may be malformed.
    fn keys(object: &MaybeMalformed<Self>) -> Vec<String>;
}

impl<K: Keyed> Cached for MaybeMalformed<K> {
    type Sent = MaybeMalformed<K::Sent>;

    fn from_sent(mut sent: Self::Sent) -> Self {
        // `managedFields` would take half of the memory.
        sent.meta_mut().managed_fields = None;
        Self(sent.0.map(K::from_sent))
    }

    fn keys(&self) -> Vec<String> {
        K::keys(self)
    }
}

/// Returns the uid of the object as its cache key.
pub(crate) fn by_uid<K: Resource>(object: &MaybeMalformed<K>) -> Vec<String> {
    object.uid().into_iter().collect()
}

impl Keyed for PolicyServer {
    type Sent = Self;

    fn from_sent(sent: Self) -> Self {
        sent
    }

    fn keys(object: &MaybeMalformed<Self>) -> Vec<String> {
        by_uid(object)
    }
}

/// Reports each malformed object once, in the log and by an Event of the object.
pub(crate) struct Reports {
    client: Client,
    /// The last reported error of each malformed object, by uid.
    reported: Mutex<HashMap<String, String>>,
}

impl Reports {
    pub fn new(client: Client) -> Self {
        Self { client, reported: Mutex::default() }
    }

    /// Reports the object if it is malformed and its error is new.
    pub async fn report<K: Resource<DynamicType = ()>>(&self, object: &MaybeMalformed<K>) {
        let uid = object.uid().unwrap_or_default();
        let Err(malformed) = &object.0 else {
            self.with(|reported| reported.remove(&uid));
            return;
        };
        let before = self.with(|reported| reported.insert(uid.clone(), malformed.error.clone()));
        if before.as_ref() == Some(&malformed.error) {
            return;
        }
        let (namespace, name, kind) = (object.namespace().unwrap_or_default(), object.name_any(), K::kind(&()));
        tracing::warn!(%kind, namespace, name, reason = reasons::MALFORMED.as_str(), error = malformed.error, "object skipped");
        let event = Event {
            type_: EventType::Warning,
            reason: reasons::MALFORMED.to_string(),
            note: Some(event_note(&format!(
                "malformed and skipped; its earlier version stays in force: {}",
                malformed.error
            ))),
            action: "Read".to_owned(),
            secondary: None,
        };
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        // A new recorder for each Event: see `Context::publish`.
        let recorder = Recorder::new(self.client.clone(), reporter);
        if let Err(error) = recorder.publish(&event, &object.object_ref(&())).await {
            tracing::warn!(%kind, namespace, name, %error, "cannot publish the Event; trying again with the next reconcile");
            self.with(|reported| reported.remove(&uid));
        }
    }

    /// Splits the objects into readable and malformed ones, and reports the malformed ones.
    pub async fn partition<K: Resource<DynamicType = ()> + Clone>(
        &self,
        objects: Vec<Arc<MaybeMalformed<K>>>,
    ) -> (Vec<K>, Vec<Malformed>) {
        let (mut readable, mut malformed) = (Vec::new(), Vec::new());
        for object in objects {
            self.report(&*object).await;
            match Arc::unwrap_or_clone(object).0 {
                Ok(object) => readable.push(object),
                Err(object) => malformed.push(object),
            }
        }
        (readable, malformed)
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, String>) -> T) -> T {
        // The map is consistent even if a thread panicked while it held the lock.
        change(&mut self.reported.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::{ClusterPolicy, PolicyRevision};
    use serde_json::json;

    fn error_of<K: DeserializeOwned + Resource<DynamicType = ()>>(object: &Value) -> Option<String> {
        let read: MaybeMalformed<K> = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(read.name_any(), "a");
        read.0.err().map(|malformed| malformed.error)
    }

    #[test]
    fn a_malformed_object_is_reported_with_its_field() {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {"program": {"cel": {"validations": []}}},
        });
        assert_eq!(error_of::<ClusterPolicy>(&policy), None);
        for (pointer, value, field) in [
            ("/spec/program", json!({}), "spec.program: needs exactly one of"),
            ("/spec/enabled", json!("no"), "spec.enabled: invalid type: string"),
            ("/spec/revisionHistoryLimit", json!(-1), "spec.revisionHistoryLimit: invalid value"),
            ("/spec", Value::Null, "spec: invalid type: null"),
            ("/status", json!({"phase": "Retired"}), "status.phase: unknown variant `Retired`"),
        ] {
            let mut policy = policy.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            policy.pointer_mut(parent).unwrap()[key] = value;
            let error = error_of::<ClusterPolicy>(&policy).unwrap_or_default();
            assert!(error.starts_with(field), "{pointer}: {error}");
        }
        let revision = json!({"metadata": {"name": "a"}, "spec": {"policyServer": "default"}});
        assert!(error_of::<PolicyRevision>(&revision).unwrap().starts_with("spec: missing field `policyRef`"));
    }
}
