//! Objects of our own kinds, read with care: one that makes no sense to this operator, such as one that another version of
//! the kinds let in, is reported and skipped. It must not keep the others from being read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use proviso_crds::PolicyServer;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cache::Cached;
use crate::objects::{MANAGER, note};

/// An object, or what is wrong with it. kube's `DeserializeGuard` does not say in which field.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<K>(pub Result<K, Malformed>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Malformed {
    pub metadata: ObjectMeta,
    /// The field, and what it should be.
    pub why: String,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match serde_path_to_error::deserialize(&value) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => {
                let why = format!("{}: {}", error.path(), error.inner());
                // What every object has, the API server has looked at itself.
                let metadata = ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?;
                Ok(Self(Err(Malformed { metadata, why })))
            }
        }
    }
}

impl<K: Serialize> Serialize for Guarded<K> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(_) => Err(serde::ser::Error::custom("a malformed object is never written")),
        }
    }
}

impl<K: Resource> Resource for Guarded<K> {
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

/// A kind of Proviso's, as a cache keeps its [`Guarded`] objects.
pub(crate) trait Keyed: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Sent: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    fn from_sent(sent: Self::Sent) -> Self;

    /// The keys of an object; also of one that cannot be read.
    fn keys(object: &Guarded<Self>) -> Vec<String>;
}

impl<K: Keyed> Cached for Guarded<K> {
    type Sent = Guarded<K::Sent>;

    fn from_sent(mut sent: Self::Sent) -> Self {
        // The fields' managers take half of the memory.
        sent.meta_mut().managed_fields = None;
        Self(sent.0.map(K::from_sent))
    }

    fn keys(&self) -> Vec<String> {
        K::keys(self)
    }
}

/// The uid of an object, as its key.
pub(crate) fn by_uid<K: Resource>(object: &Guarded<K>) -> Vec<String> {
    object.uid().into_iter().collect()
}

impl Keyed for PolicyServer {
    type Sent = Self;

    fn from_sent(sent: Self) -> Self {
        sent
    }

    fn keys(object: &Guarded<Self>) -> Vec<String> {
        by_uid(object)
    }
}

/// Tells people about malformed objects: in the log, and by an Event of the object. Once, not whenever one is seen.
pub(crate) struct Reports {
    client: Client,
    /// What was said last, by the uid of the object.
    told: Mutex<HashMap<String, String>>,
}

impl Reports {
    pub fn new(client: Client) -> Self {
        Self { client, told: Mutex::default() }
    }

    /// Tells what is wrong with the object, if anything is and that is news.
    pub async fn tell<K: Resource<DynamicType = ()>>(&self, object: &Guarded<K>) {
        let uid = object.uid().unwrap_or_default();
        let Err(malformed) = &object.0 else {
            self.with(|told| told.remove(&uid));
            return;
        };
        let before = self.with(|told| told.insert(uid.clone(), malformed.why.clone()));
        if before.as_ref() == Some(&malformed.why) {
            return;
        }
        let (namespace, name, kind) = (object.namespace().unwrap_or_default(), object.name_any(), K::kind(&()));
        tracing::warn!(%kind, namespace, name, reason = "Malformed", error = malformed.why, "object skipped");
        let event = Event {
            type_: EventType::Warning,
            reason: "Malformed".to_owned(),
            note: Some(note(&format!("skipped, and what was made of it before goes on: {}", malformed.why))),
            action: "Read".to_owned(),
            secondary: None,
        };
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        // Each of these says something else: see `policies::Context::publish`.
        let recorder = Recorder::new(self.client.clone(), reporter);
        if let Err(error) = recorder.publish(&event, &object.object_ref(&())).await {
            tracing::warn!(%kind, namespace, name, %error, "no Event could be written; trying again when it is seen next");
            self.with(|told| told.remove(&uid));
        }
    }

    /// Takes apart what can be read and what cannot, and tells about the latter.
    pub async fn sort<K: Resource<DynamicType = ()> + Clone>(
        &self,
        objects: Vec<Arc<Guarded<K>>>,
    ) -> (Vec<K>, Vec<Malformed>) {
        let (mut well, mut malformed) = (Vec::new(), Vec::new());
        for object in objects {
            self.tell(&*object).await;
            match Arc::unwrap_or_clone(object).0 {
                Ok(object) => well.push(object),
                Err(object) => malformed.push(object),
            }
        }
        (well, malformed)
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, String>) -> T) -> T {
        // What is in it is whole even if somebody panicked.
        change(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::{ClusterPolicy, PolicyRevision};
    use serde_json::json;

    fn why<K: DeserializeOwned + Resource<DynamicType = ()>>(object: &Value) -> Option<String> {
        let read: Guarded<K> = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(read.name_any(), "a");
        read.0.err().map(|malformed| malformed.why)
    }

    #[test]
    fn what_is_malformed_is_told_with_its_field() {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {"program": {"cel": {"validations": []}}},
        });
        assert_eq!(why::<ClusterPolicy>(&policy), None);
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
            let why = why::<ClusterPolicy>(&policy).unwrap_or_default();
            assert!(why.starts_with(field), "{pointer}: {why}");
        }
        let revision = json!({"metadata": {"name": "a"}, "spec": {"policyServer": "default"}});
        assert!(why::<PolicyRevision>(&revision).unwrap().starts_with("spec: missing field `policyRef`"));
    }
}
