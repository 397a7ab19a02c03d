//! The review of the permissions of callers by the API server.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;

use crate::tokens::{AuthenticationError, Caller, TokenDigest};

/// The time for which the result of a review is used again. A permission that is withdrawn is effective until then.
const RESULT_LIFETIME: Duration = Duration::from_secs(10);
/// The maximum number of results.
const MAX_RESULTS: u64 = 4096;
/// The time limit of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// A permission in the authorization of Kubernetes (RBAC).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Access to a path that is no resource.
    NonResource { path: &'static str, verb: &'static str },
    /// Access to a cluster-scoped resource, which need not exist as an object. `name` is the name of the object, which the rules
    /// of a role may limit by `resourceNames`.
    Resource { group: &'static str, resource: &'static str, verb: &'static str, name: Arc<str> },
}

/// Reviews the permissions of callers. Clones share the cache. The limits of [`crate::Tokens`] limit these reviews too: each token
/// causes at most one review of each permission within ten seconds.
#[derive(Clone, Debug)]
pub struct Permissions {
    reviews: Api<SubjectAccessReview>,
    results: Cache<(TokenDigest, Permission), bool>,
}

impl Permissions {
    #[must_use]
    pub fn new(client: Client) -> Self {
        let results = Cache::builder().max_capacity(MAX_RESULTS).time_to_live(RESULT_LIFETIME).build();
        Self { reviews: Api::all(client), results }
    }

    /// Returns whether a caller has a permission.
    ///
    /// # Errors
    /// Returns [`AuthenticationError::Unavailable`] if the API server does not answer.
    pub async fn is_allowed(&self, caller: &Caller, permission: Permission) -> Result<bool, AuthenticationError> {
        // Concurrent requests with the same token wait for one review.
        let key = (caller.digest, permission.clone());
        let result = self.results.try_get_with(key, self.review(&caller.user, permission)).await;
        result.map_err(|error: Arc<AuthenticationError>| AuthenticationError::clone(&error))
    }

    async fn review(&self, user: &UserInfo, permission: Permission) -> Result<bool, AuthenticationError> {
        let mut spec = SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            ..SubjectAccessReviewSpec::default()
        };
        match permission {
            Permission::NonResource { path, verb } => {
                spec.non_resource_attributes =
                    Some(NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) });
            }
            Permission::Resource { group, resource, verb, name } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    verb: Some(verb.to_owned()),
                    name: Some(name.to_string()),
                    ..ResourceAttributes::default()
                });
            }
        }
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let params = PostParams::default();
        match tokio::time::timeout(REVIEW_TIMEOUT, self.reviews.create(&params, &review)).await {
            Ok(Ok(review)) => {
                let status = review.status.unwrap_or_default();
                Ok(status.allowed && status.denied != Some(true))
            }
            Ok(Err(error)) => Err(AuthenticationError::Unavailable(error.to_string().into())),
            Err(_) => Err(AuthenticationError::Unavailable("no answer in time".into())),
        }
    }
}
