//! Queries that the API server must answer. Answers are cached for some seconds, and identical concurrent queries share one
//! request. The caches are bounded.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use moka::future::Cache;
use serde_json::Value;

use super::budget::{Budget, Reservation};
use super::resource::{ResolvedKind, to_value};
use super::weight::weight;
use crate::error::HostCallError;
use crate::kind::Kind;

/// The maximum age of a cached answer. Kubewarden's policies expect this value.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// The maximum memory of each cache, in bytes.
const MAX_CACHE_BYTES: u64 = 16 << 20;
/// The maximum number of cached answers about permissions.
const MAX_CACHED_REVIEWS: u64 = 10_000;
/// The number of objects in a page of a list.
pub(super) const PAGE_SIZE: u32 = 50;

/// The kind, the namespace, and a name or a selector.
type Key = (Kind, Option<String>, String);

/// Listed objects. They count against the memory budget until this is dropped.
#[derive(Debug)]
pub(crate) struct ObjectList {
    pub(crate) objects: Vec<Arc<Value>>,
    reservation: Reservation,
}

/// Sends queries to the API server and caches the answers.
pub(super) struct ApiServerQueries {
    client: Client,
    budget: Budget,
    objects: Cache<Key, Option<Arc<Value>>>,
    lists: Cache<Key, Arc<ObjectList>>,
    /// The answers by the spec of the review as JSON.
    reviews: Cache<String, Arc<Value>>,
}

impl ApiServerQueries {
    pub(super) fn new(client: Client, budget: Budget) -> Self {
        /// The memory of an entry besides its value, in bytes.
        const ENTRY_OVERHEAD: usize = 256;
        let bytes = |bytes: usize| u32::try_from(ENTRY_OVERHEAD + bytes).unwrap_or(u32::MAX);
        let objects = Cache::builder().max_capacity(MAX_CACHE_BYTES).time_to_live(CACHE_TTL);
        let lists = Cache::builder().max_capacity(MAX_CACHE_BYTES).time_to_live(CACHE_TTL);
        Self {
            client,
            budget,
            objects: objects
                .weigher(move |_, object: &Option<Arc<Value>>| bytes(object.as_deref().map_or(0, weight)))
                .build(),
            lists: lists.weigher(move |_, list: &Arc<ObjectList>| bytes(list.reservation.bytes())).build(),
            reviews: Cache::builder().max_capacity(MAX_CACHED_REVIEWS).time_to_live(CACHE_TTL).build(),
        }
    }

    pub(super) async fn get(
        &self,
        resolved: &ResolvedKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Arc<Value>>, HostCallError> {
        let key = (resolved.kind.clone(), namespace.map(ToOwned::to_owned), name.to_owned());
        let cached = self.objects.try_get_with(key, self.get_uncached(resolved, namespace, name)).await;
        cached.map_err(|error| (*error).clone())
    }

    pub(super) async fn get_uncached(
        &self,
        resolved: &ResolvedKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Arc<Value>>, HostCallError> {
        let api: Api<DynamicObject> = resolved.api(&self.client, namespace);
        let object = api.get_opt(name).await.map_err(|error| to_error(resolved, &error))?;
        Ok(object.map(|object| Arc::new(to_value(resolved, object))))
    }

    /// Lists objects by a field selector. `own` is the namespace of the policies whose memory budget counts; `None` for
    /// policies of the kind `ClusterPolicy`.
    pub(super) async fn list(
        &self,
        resolved: &ResolvedKind,
        own: Option<&str>,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<ObjectList>, HostCallError> {
        let key = (resolved.kind.clone(), namespace.map(ToOwned::to_owned), fields.to_owned());
        let cached = self.lists.try_get_with(key, self.list_uncached(resolved, own, namespace, fields)).await;
        cached.map_err(|error| (*error).clone())
    }

    async fn list_uncached(
        &self,
        resolved: &ResolvedKind,
        own: Option<&str>,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<ObjectList>, HostCallError> {
        let api: Api<DynamicObject> = resolved.api(&self.client, namespace);
        let mut page = ListParams::default().fields(fields).limit(PAGE_SIZE);
        let mut listed = ObjectList { objects: Vec::new(), reservation: self.budget.reservation(own) };
        let _permit = self.budget.list_permit().await;
        loop {
            let list = api.list(&page).await.map_err(|error| to_error(resolved, &error))?;
            for object in list.items {
                let object = to_value(resolved, object);
                let reserved = listed.reservation.grow(weight(&object));
                reserved.map_err(|cause| HostCallError::KindUnavailable { kind: resolved.kind.clone(), cause })?;
                listed.objects.push(Arc::new(object));
            }
            match list.metadata.continue_.filter(|rest| !rest.is_empty()) {
                Some(rest) => page = page.continue_token(&rest),
                None => return Ok(Arc::new(listed)),
            }
        }
    }

    pub(super) async fn review(&self, review: SubjectAccessReviewSpec) -> Result<Arc<Value>, HostCallError> {
        let key = serde_json::to_string(&review).unwrap_or_default();
        let cached = self.reviews.try_get_with(key, self.review_uncached(review)).await;
        cached.map_err(|error| (*error).clone())
    }

    pub(super) async fn review_uncached(&self, spec: SubjectAccessReviewSpec) -> Result<Arc<Value>, HostCallError> {
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| HostCallError::ApiServer(message(&error)))?;
        let status = answer.status.and_then(|status| serde_json::to_value(status).ok());
        status.map(Arc::new).ok_or_else(|| HostCallError::ApiServer("the SubjectAccessReview has no status".to_owned()))
    }
}

fn to_error(resolved: &ResolvedKind, error: &kube::Error) -> HostCallError {
    if let kube::Error::Api(status) = error
        && let Some(cause) = resolved.cause(status)
    {
        return HostCallError::KindUnavailable { kind: resolved.kind.clone(), cause };
    }
    HostCallError::ApiServer(message(error))
}

fn message(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}
