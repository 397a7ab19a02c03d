//! Questions to the API server itself. Those that may be some seconds old are asked once for all who ask meanwhile; what is kept
//! of the answers is bounded.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use moka::future::Cache;
use serde_json::Value;

use super::budget::{Budget, Share};
use super::resource::{Described, to_value};
use super::weight::weight;
use crate::error::AskError;
use crate::kind::Kind;

/// How old an answer may be: what Kubewarden's policies count on.
const FRESH: Duration = Duration::from_secs(5);
/// How much memory answers of one sort may take, in bytes.
const KEPT: u64 = 16 << 20;
/// The answers about permissions that are kept.
const REVIEWS: u64 = 10_000;
/// How many objects a list brings at a time.
pub(super) const PAGE: u32 = 50;

/// Kind, namespace, and a name or a selector.
type Key = (Kind, Option<String>, String);

/// Objects that were listed. They count for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) objects: Vec<Arc<Value>>,
    share: Share,
}

pub(super) struct Direct {
    client: Client,
    budget: Budget,
    objects: Cache<Key, Option<Arc<Value>>>,
    lists: Cache<Key, Arc<Listed>>,
    /// By the question as JSON.
    reviews: Cache<String, Arc<Value>>,
}

impl Direct {
    pub(super) fn new(client: Client, budget: Budget) -> Self {
        /// What an entry takes beside its value.
        const ENTRY: usize = 256;
        let bytes = |bytes: usize| u32::try_from(ENTRY + bytes).unwrap_or(u32::MAX);
        let objects = Cache::builder().max_capacity(KEPT).time_to_live(FRESH);
        let lists = Cache::builder().max_capacity(KEPT).time_to_live(FRESH);
        Self {
            client,
            budget,
            objects: objects
                .weigher(move |_, object: &Option<Arc<Value>>| bytes(object.as_deref().map_or(0, weight)))
                .build(),
            lists: lists.weigher(move |_, list: &Arc<Listed>| bytes(list.share.bytes())).build(),
            reviews: Cache::builder().max_capacity(REVIEWS).time_to_live(FRESH).build(),
        }
    }

    pub(super) async fn get(
        &self,
        described: &Described,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Arc<Value>>, AskError> {
        let key = (described.kind.clone(), namespace.map(ToOwned::to_owned), name.to_owned());
        let asked = self.objects.try_get_with(key, self.get_now(described, namespace, name)).await;
        asked.map_err(|error| (*error).clone())
    }

    pub(super) async fn get_now(
        &self,
        described: &Described,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Arc<Value>>, AskError> {
        let api: Api<DynamicObject> = described.api(&self.client, namespace);
        let object = api.get_opt(name).await.map_err(|error| refused(described, &error))?;
        Ok(object.map(|object| Arc::new(to_value(described, object))))
    }

    /// Objects by a field selector, for policies of the namespace `own` or for those that see all.
    pub(super) async fn list(
        &self,
        described: &Described,
        own: Option<&str>,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<Listed>, AskError> {
        let key = (described.kind.clone(), namespace.map(ToOwned::to_owned), fields.to_owned());
        let asked = self.lists.try_get_with(key, self.list_now(described, own, namespace, fields)).await;
        asked.map_err(|error| (*error).clone())
    }

    async fn list_now(
        &self,
        described: &Described,
        own: Option<&str>,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Arc<Listed>, AskError> {
        let api: Api<DynamicObject> = described.api(&self.client, namespace);
        let mut page = ListParams::default().fields(fields).limit(PAGE);
        let mut listed = Listed { objects: Vec::new(), share: self.budget.share(own) };
        let _place = self.budget.listing().await;
        loop {
            let list = api.list(&page).await.map_err(|error| refused(described, &error))?;
            for object in list.items {
                let object = to_value(described, object);
                let grown = listed.share.grow(weight(&object));
                grown.map_err(|trouble| AskError::Trouble { kind: described.kind.clone(), trouble })?;
                listed.objects.push(Arc::new(object));
            }
            match list.metadata.continue_.filter(|rest| !rest.is_empty()) {
                Some(rest) => page = page.continue_token(&rest),
                None => return Ok(Arc::new(listed)),
            }
        }
    }

    pub(super) async fn review(&self, review: SubjectAccessReviewSpec) -> Result<Arc<Value>, AskError> {
        let key = serde_json::to_string(&review).unwrap_or_default();
        let asked = self.reviews.try_get_with(key, self.review_now(review)).await;
        asked.map_err(|error| (*error).clone())
    }

    pub(super) async fn review_now(&self, spec: SubjectAccessReviewSpec) -> Result<Arc<Value>, AskError> {
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| AskError::ApiServer(said(&error)))?;
        let status = answer.status.and_then(|status| serde_json::to_value(status).ok());
        status.map(Arc::new).ok_or_else(|| AskError::ApiServer("it answered without a status".to_owned()))
    }
}

fn refused(described: &Described, error: &kube::Error) -> AskError {
    if let kube::Error::Api(status) = error
        && let Some(trouble) = described.trouble(status)
    {
        return AskError::Trouble { kind: described.kind.clone(), trouble };
    }
    AskError::ApiServer(said(error))
}

fn said(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}
