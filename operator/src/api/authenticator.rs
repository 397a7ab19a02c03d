//! Authentication of callers: the API server names the caller of a request that it proxies. Other callers send a
//! bearer token, which the API server reviews.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use proviso_http::ClientCertificates;
use proviso_rest_api::Caller;

use super::front_proxy::FrontProxies;

/// The reason why a caller is not authenticated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthenticationError {
    #[error("no credentials: send a bearer token, or call through the API server")]
    NoCredentials,
    #[error("the token is not valid: {0}")]
    Token(String),
    #[error("the API server cannot review the token: {0}")]
    Unavailable(#[from] kube::Error),
}

/// Finds the caller of a request.
#[derive(Clone)]
pub(crate) struct Authenticator {
    client: Client,
    proxies: Arc<FrontProxies>,
}

impl Authenticator {
    pub(crate) fn new(client: Client, proxies: Arc<FrontProxies>) -> Self {
        Self { client, proxies }
    }

    /// Returns the caller of a request with this head.
    pub(crate) async fn authenticate(&self, head: &Parts) -> Result<Caller, AuthenticationError> {
        // Headers that name a caller count only on a connection of the API server.
        if let Some(caller) = self.proxied(head) {
            return Ok(caller);
        }
        let token = bearer(&head.headers).ok_or(AuthenticationError::NoCredentials)?;
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let user = user.ok_or_else(|| {
            AuthenticationError::Token(status.error.unwrap_or_else(|| "unknown or expired token".to_owned()))
        })?;
        Ok(Caller {
            user: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        })
    }

    fn proxied(&self, head: &Parts) -> Option<Caller> {
        let ClientCertificates(chain) = head.extensions.get()?;
        let proxy = self.proxies.current()?;
        if !proxy.is_valid_chain(chain, Timestamp::now()) {
            return None;
        }
        proxy.caller(&head.headers)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
