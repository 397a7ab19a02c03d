//! The ConfigMaps and Secrets of a component. The operator writes and reads only objects that belong to the subscription: they have its
//! uid in a label and in the reference to their controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::core::{PartialObjectMeta, PartialObjectMetaExt as _};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::configuration::{EVENT_KEY, Part, Place, StoredParts, part_index, part_name};
use proviso_crds::PolicySubscription;
use proviso_crds::names::SUBSCRIPTION_LABEL;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ClusterComponent, Error};
use crate::cache::{Cache, Cached, lock};
use crate::objects::{self, MANAGER};
use crate::subscriptions::stores::Stores;

/// The number of attempts to write an object while somebody else writes it.
const ATTEMPTS: usize = 3;
/// The number of objects of a kind that are read also if the component has fewer policies than the status says.
const MIN_READ: usize = 16;
/// The only key of an object that is not read. It is no key of a policy, so that the object is deleted.
const UNREAD_KEY: &str = "unread";

/// The objects that this operator has read or written, and those that it has deleted.
#[derive(Debug, Default)]
pub(super) struct KnownParts {
    /// The data of an object in one `resourceVersion`, by its uid.
    read: BTreeMap<String, (String, Part)>,
    /// The uids of the deleted objects that the watch still has.
    deleted: BTreeSet<String>,
}

/// A kind of objects that store policies.
pub(super) trait PartObject:
    Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    const PLACE: Place;
    const KIND: &'static str;

    fn cache(stores: &Stores) -> &Cache<PartialObjectMeta<Self>>
    where
        PartialObjectMeta<Self>: Cached;

    fn build(metadata: ObjectMeta, data: &BTreeMap<String, Arc<str>>) -> Self;

    /// Returns the data, without values that are no UTF-8.
    fn into_data(self) -> BTreeMap<String, Arc<str>>;
}

impl PartObject for ConfigMap {
    const PLACE: Place = Place::ConfigMap;
    const KIND: &'static str = "ConfigMap";

    fn cache(stores: &Stores) -> &Cache<PartialObjectMeta<Self>> {
        &stores.config_maps
    }

    fn build(metadata: ObjectMeta, data: &BTreeMap<String, Arc<str>>) -> Self {
        let data = data.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        Self { metadata, data: Some(data), ..Self::default() }
    }

    fn into_data(self) -> BTreeMap<String, Arc<str>> {
        self.data.into_iter().flatten().map(|(key, value)| (key, value.into())).collect()
    }
}

impl PartObject for Secret {
    const PLACE: Place = Place::Secret;
    const KIND: &'static str = "Secret";

    fn cache(stores: &Stores) -> &Cache<PartialObjectMeta<Self>> {
        &stores.secrets
    }

    fn build(metadata: ObjectMeta, data: &BTreeMap<String, Arc<str>>) -> Self {
        let data = data.iter().map(|(key, value)| (key.clone(), ByteString(value.as_bytes().to_vec()))).collect();
        Self { metadata, data: Some(data), type_: Some("Opaque".to_owned()), ..Self::default() }
    }

    fn into_data(self) -> BTreeMap<String, Arc<str>> {
        let text = |(key, value): (String, ByteString)| Some((key, String::from_utf8(value.0).ok()?.into()));
        self.data.into_iter().flatten().filter_map(text).collect()
    }
}

/// Returns true if the controller of the object is the subscription with this uid.
pub(crate) fn is_owned(object: &impl Resource, subscription: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == subscription && owner.controller == Some(true))
}

impl ClusterComponent {
    /// Makes the next read fetch each object from the API server.
    pub fn forget_parts(&self) {
        lock(&self.parts).read.clear();
    }

    /// Reads the objects of the component whose names belong to `delivery.configMap`.
    pub(super) async fn read_parts(&self) -> Result<StoredParts, Error> {
        let (config_maps, secrets) = (self.read_all::<ConfigMap>().await?, self.read_all::<Secret>().await?);
        let parts = config_maps.into_iter().filter_map(|(_, part)| part);
        Ok(StoredParts::read(parts.chain(secrets.into_iter().filter_map(|(_, part)| part))))
    }

    /// Reads the objects of a kind, by their metadata. The part of an object with another name, after a change of `delivery.configMap`,
    /// is `None`.
    async fn read_all<O: PartObject>(&self) -> Result<Vec<(Arc<PartialObjectMeta<O>>, Option<Part>)>, Error>
    where
        PartialObjectMeta<O>: Cached,
    {
        let limit = self.max_parts();
        let mut objects = O::cache(&self.shared.stores).reader().by_key(&self.uid);
        objects.retain(|metadata| self.owns(&**metadata));
        // Users who may create objects can name the subscription as the controller. The objects of the operator are older, or have no number.
        objects.sort_by_cached_key(|it| {
            (it.name_any() != self.config_map(), it.creation_timestamp().map(|time| time.0), it.name_any())
        });
        let (mut found, mut read) = (Vec::new(), 0);
        for metadata in objects {
            let Some(index) = part_index(self.config_map(), &metadata.name_any()) else {
                found.push((metadata, None));
                continue;
            };
            if read == limit {
                let data = BTreeMap::from([(UNREAD_KEY.to_owned(), "".into())]);
                found.push((metadata, Some(Part { place: O::PLACE, index, data })));
            } else if let Some(part) = self.read_one::<O>(&metadata, index).await? {
                read += 1;
                found.push((metadata, Some(part)));
            }
        }
        Ok(found)
    }

    /// Returns the maximum number of objects of a kind that can have policies of the component: each has at least one key, and a policy has
    /// at most two keys. One more has the event.
    fn max_parts(&self) -> usize {
        let recorded = {
            let reported = lock(&self.reported);
            reported.status.policies.len() + reported.status.unconfirmed.len()
        };
        let desired = self.with_view(|view| view.desired.as_ref().map_or(0, |desired| desired.items.len()));
        (2 * (recorded + desired) + 1).max(MIN_READ)
    }

    fn owns(&self, object: &impl Resource) -> bool {
        let is_deleted = object.uid().is_some_and(|uid| lock(&self.parts).deleted.contains(&uid));
        object.namespace().as_ref() == Some(&self.namespace) && is_owned(object, &self.uid) && !is_deleted
    }

    /// Returns the data of an object, which is read only if its `resourceVersion` has changed; `None` if the object is gone.
    async fn read_one<O: PartObject>(
        &self,
        metadata: &PartialObjectMeta<O>,
        index: usize,
    ) -> Result<Option<Part>, Error> {
        let (uid, version) = (metadata.uid().unwrap_or_default(), metadata.resource_version());
        let known = lock(&self.parts).read.get(&uid).cloned();
        if let Some((known, part)) = known
            && Some(known) == version
            && part.index == index
        {
            return Ok(Some(part));
        }
        let Some(object) = self.api::<O>().get_opt(&metadata.name_any()).await? else { return Ok(None) };
        if !self.owns(&object) {
            return Ok(None);
        }
        let (uid, version) = (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
        let part = Part { place: O::PLACE, index, data: object.into_data() };
        lock(&self.parts).read.insert(uid, (version, part.clone()));
        Ok(Some(part))
    }

    pub(super) async fn write_part(&self, part: &Part) -> Result<(), Error> {
        match part.place {
            Place::ConfigMap => self.write_one::<ConfigMap>(part).await,
            Place::Secret => self.write_one::<Secret>(part).await,
        }
    }

    async fn write_one<O: PartObject>(&self, part: &Part) -> Result<(), Error>
    where
        PartialObjectMeta<O>: Cached<Sent = PartialObjectMeta<O>>,
    {
        let (api, cache) = (self.api::<O>(), O::cache(&self.shared.stores));
        let name = part_name(self.config_map(), part.index);
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let cached = cache.reader().get(&name, Some(&self.namespace)).filter(|found| self.owns(&**found));
        let mut existing = cached.map(|found| found.metadata.clone());
        if let Some(existing) = existing.as_mut().filter(|it| it.annotations.is_some()) {
            // The cache has no values of annotations. The `resourceVersion` stays, so that a change in the meantime is a conflict.
            existing.annotations = api.get_metadata_opt(&name).await?.and_then(|found| found.metadata.annotations);
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            let object = O::build(self.metadata(&name, existing.as_ref()), &part.data);
            let write = async {
                let written = match &existing {
                    Some(_) => api.replace(&name, &params, &object).await,
                    None => api.create(&params, &object).await,
                }?;
                let (uid, version) =
                    (written.uid().unwrap_or_default(), written.resource_version().unwrap_or_default());
                lock(&self.parts).read.insert(uid, (version, part.clone()));
                Ok(written.meta().clone().into_response_partial())
            };
            match cache.write(write).await {
                Ok(()) => return Ok(()),
                // The cache is late, or somebody has removed the label, or the object belongs to somebody else, or another leader has
                // written it.
                Err(kube::Error::Api(status)) if attempt < ATTEMPTS && [404, 409].contains(&status.code) => {
                    let found = api.get_metadata_opt(&name).await?;
                    if found.as_ref().is_some_and(|found| !is_owned(found, &self.uid)) {
                        return Err(Error::Conflict { kind: O::KIND, name });
                    }
                    self.check_record().await?;
                    // A write into a namespace that is being deleted, or of a kind that is not served, fails again.
                    existing = found.map(|found| found.metadata);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the metadata of an object. Labels, annotations and owners of others stay.
    fn metadata(&self, name: &str, existing: Option<&ObjectMeta>) -> ObjectMeta {
        let mut metadata = existing.cloned().unwrap_or_default();
        metadata.managed_fields = None;
        metadata.name = Some(name.to_owned());
        metadata.namespace = Some(self.namespace.clone());
        metadata.labels.get_or_insert_default().extend([
            (SUBSCRIPTION_LABEL.to_owned(), self.uid.clone()),
            ("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned()),
        ]);
        let owners = metadata.owner_references.get_or_insert_default();
        if owners.iter().all(|owner| owner.uid != self.uid) {
            owners.push(OwnerReference {
                api_version: PolicySubscription::api_version(&()).into_owned(),
                kind: PolicySubscription::kind(&()).into_owned(),
                name: self.name.clone(),
                uid: self.uid.clone(),
                controller: Some(true),
                // `blockOwnerDeletion` would need the permission to write finalizers of subscriptions.
                block_owner_deletion: None,
            });
        }
        metadata
    }

    pub(super) async fn delete_part(&self, place: Place, index: usize) -> Result<(), Error> {
        let name = part_name(self.config_map(), index);
        match place {
            Place::ConfigMap => self.delete_named::<ConfigMap>(&name).await,
            Place::Secret => self.delete_named::<Secret>(&name).await,
        }
    }

    async fn delete_named<O: PartObject>(&self, name: &str) -> Result<(), Error>
    where
        PartialObjectMeta<O>: Cached,
    {
        let found = O::cache(&self.shared.stores).reader().get(name, Some(&self.namespace));
        let Some(found) = found.filter(|found| self.owns(&**found)) else { return Ok(()) };
        objects::delete(&self.api::<O>(), &*found).await?;
        let uid = found.uid().unwrap_or_default();
        let mut known = lock(&self.parts);
        known.read.remove(&uid);
        known.deleted.insert(uid);
        Ok(())
    }

    /// Copies the objects with another name than `delivery.configMap` names now, and then deletes them. So the bodies that the component
    /// has acknowledged survive a change of the name.
    pub async fn rename_parts(&self) -> Result<(), Error> {
        self.rename_all::<Secret>().await?;
        self.rename_all::<ConfigMap>().await
    }

    async fn rename_all<O: PartObject>(&self) -> Result<(), Error>
    where
        PartialObjectMeta<O>: Cached<Sent = PartialObjectMeta<O>>,
    {
        let found = self.read_all::<O>().await?;
        let mut parts: Vec<_> = found.iter().filter_map(|(_, part)| part.clone()).collect();
        let limit = self.max_parts();
        for (old, _) in found.iter().filter(|(_, part)| part.is_none()) {
            let name = old.name_any();
            if parts.len() < limit
                && let Some(object) = self.api::<O>().get_opt(&name).await?.filter(|object| self.owns(object))
            {
                let data = object.into_data();
                // A stop between the two writes leaves both objects.
                if parts.iter().all(|part| part.data != data) {
                    let is_free = |index: &usize| parts.iter().all(|part| part.index != *index);
                    // The part with the event is the first one. Each other part gets the first number that is free.
                    let first = usize::from(O::PLACE == Place::ConfigMap && !data.contains_key(EVENT_KEY));
                    let index = (first..=first + parts.len()).find(is_free).unwrap_or(first + parts.len());
                    let part = Part { place: O::PLACE, index, data };
                    self.write_one::<O>(&part).await?;
                    parts.push(part);
                }
            }
            self.delete_named::<O>(&name).await?;
        }
        Ok(())
    }

    /// Returns true if the first ConfigMap of the component exists and belongs to the subscription, as far as the cache knows.
    pub fn has_config_map(&self) -> bool {
        let cached = self.shared.stores.config_maps.reader().get(self.config_map(), Some(&self.namespace));
        cached.is_some_and(|found| self.owns(&*found))
    }

    /// Returns an error if the first ConfigMap of the component exists and does not belong to the subscription.
    pub async fn check_foreign(&self) -> Result<(), Error> {
        let name = self.config_map();
        match self.api::<ConfigMap>().get_metadata_opt(name).await? {
            Some(found) if !is_owned(&found, &self.uid) => {
                Err(Error::Conflict { kind: ConfigMap::KIND, name: name.to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn api<O: PartObject>(&self) -> Api<O> {
        Api::namespaced(self.shared.context.client.clone(), &self.namespace)
    }
}
