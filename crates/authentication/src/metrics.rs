//! The access to `/metrics` and `/readyz?verbose`, in the way of the kubelet: the caller sends a bearer token, and needs the permission
//! to get the non-resource URL `/metrics`.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use kube::Client;

use crate::permissions::{Permission, Permissions};
use crate::tokens::{AuthenticationError, Tokens};

/// The path of the permission. All authenticated users may get `/readyz` (`system:public-info-viewer`), so the page with the details
/// needs this permission too.
const PATH: &str = "/metrics";
const PERMISSION: Permission = Permission::NonResource { path: PATH, verb: "get" };

/// Decides which callers may read metrics. Clones share the caches and the limits.
#[derive(Clone, Debug)]
pub struct MetricsAccess {
    tokens: Tokens,
    permissions: Permissions,
}

impl MetricsAccess {
    #[must_use]
    pub fn new(client: Client, tokens: Tokens) -> Self {
        Self { tokens, permissions: Permissions::new(client) }
    }

    /// Answers a request only if its caller may read metrics: a middleware for [`axum::middleware::from_fn_with_state`].
    pub async fn require(State(access): State<Self>, request: Request, next: Next) -> Response {
        let (head, body) = request.into_parts();
        let reviewed = match access.tokens.caller(&head).await {
            Ok(caller) => access.permissions.is_allowed(&caller, PERMISSION).await,
            Err(error) => Err(error),
        };
        match reviewed {
            Ok(true) => next.run(Request::from_parts(head, body)).await,
            Ok(false) => {
                let message = "forbidden: the user of the token cannot get the non-resource URL \"/metrics\": bind it to the \
                               ClusterRole proviso-metrics-reader\n";
                (StatusCode::FORBIDDEN, message).into_response()
            }
            Err(error) => refuse(&error),
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
