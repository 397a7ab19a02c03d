//! The access to `/metrics` and `/readyz?verbose`, in the way of the kubelet: the caller sends a bearer token, and needs the permission
//! to get the non-resource URL `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;

use crate::tokens::{AuthenticationError, TokenDigest, Tokens};

/// The path of the permission. All authenticated users may get `/readyz` (`system:public-info-viewer`), so the page with the details
/// needs this permission too.
const PATH: &str = "/metrics";
/// The time for which the result of a review is used again.
const RESULT_LIFETIME: Duration = Duration::from_secs(10);
/// The maximum number of results.
const MAX_RESULTS: u64 = 1024;
/// The time limit of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Decides which callers may read metrics. Clones share the caches and the limits.
#[derive(Clone, Debug)]
pub struct MetricsAccess {
    tokens: Tokens,
    reviews: Api<SubjectAccessReview>,
    results: Cache<TokenDigest, bool>,
}

impl MetricsAccess {
    #[must_use]
    pub fn new(client: Client, tokens: Tokens) -> Self {
        let results = Cache::builder().max_capacity(MAX_RESULTS).time_to_live(RESULT_LIFETIME).build();
        Self { tokens, reviews: Api::all(client), results }
    }

    /// Answers a request only if its caller may read metrics: a middleware for [`axum::middleware::from_fn_with_state`].
    pub async fn require(State(access): State<Self>, request: Request, next: Next) -> Response {
        let (head, body) = request.into_parts();
        let reviewed = match access.tokens.reviewed(&head).await {
            Ok((user, digest)) => access.is_allowed(user, digest).await.map(|is_allowed| (is_allowed, digest)),
            Err(error) => Err(error),
        };
        match reviewed {
            Ok((true, _)) => next.run(Request::from_parts(head, body)).await,
            Ok((false, _)) => {
                let message = "forbidden: the user of the token cannot get the non-resource URL \"/metrics\": bind it to the \
                               ClusterRole proviso-metrics-reader\n";
                (StatusCode::FORBIDDEN, message).into_response()
            }
            Err(error) => refuse(&error),
        }
    }

    /// Returns whether the user of the token with this digest may read metrics.
    async fn is_allowed(&self, user: Arc<UserInfo>, digest: TokenDigest) -> Result<bool, AuthenticationError> {
        let result = self.results.try_get_with(digest, self.review(&user)).await;
        result.map_err(|error: Arc<AuthenticationError>| AuthenticationError::clone(&error))
    }

    async fn review(&self, user: &UserInfo) -> Result<bool, AuthenticationError> {
        let attributes = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
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

/// Returns the answer to a caller that is not authenticated.
fn refuse(error: &AuthenticationError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::UNAUTHORIZED);
    let mut response = (status, format!("{error}\n")).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;
    use crate::mock_api::{MockApi, head};

    #[tokio::test]
    async fn metrics_need_a_valid_token_and_the_permission_of_its_user() {
        let api = MockApi::default();
        let access = MetricsAccess::new(api.client(), Tokens::new(api.client()));
        let router =
            Router::new().route(PATH, get(async || "secret")).layer(from_fn_with_state(access, MetricsAccess::require));
        let ask = async |token: Option<&str>| {
            let (mut parts, body) = (head(token, "192.0.2.1"), Body::empty());
            parts.uri = PATH.parse().unwrap();
            router.clone().oneshot(Request::from_parts(parts, body)).await.unwrap()
        };
        for (token, expected) in [
            (None, StatusCode::UNAUTHORIZED),
            (Some("bad"), StatusCode::UNAUTHORIZED),
            (Some("good"), StatusCode::FORBIDDEN),
            (Some("prometheus"), StatusCode::OK),
        ] {
            let response = ask(token).await;
            assert_eq!(response.status(), expected, "{token:?}");
            let is_unauthorized = expected == StatusCode::UNAUTHORIZED;
            assert_eq!(response.headers().contains_key(header::WWW_AUTHENTICATE), is_unauthorized, "{token:?}");
        }
        // Both results are used again.
        let before = api.requests();
        for token in ["good", "prometheus"] {
            for _ in 0..50 {
                ask(Some(token)).await;
            }
        }
        assert_eq!(api.requests(), before);
        let last = async { (0..100).map(|number| format!("flood-{number}")).collect::<Vec<_>>() }.await;
        let mut statuses = Vec::new();
        for token in &last {
            statuses.push(ask(Some(token)).await);
        }
        let limited = statuses.last().unwrap();
        assert_eq!(limited.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limited.headers()[header::RETRY_AFTER], "1");
        // A caller whose token is known is still answered.
        assert_eq!(ask(Some("prometheus")).await.status(), StatusCode::OK);
    }
}
