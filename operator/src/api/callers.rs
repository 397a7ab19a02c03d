//! Who calls: the API server says so of those it sends here; others show a token, and the API server says whose it is.

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

/// Why nobody knows who calls.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("no credentials: send a bearer token, or come by the API server")]
    NoCredentials,
    #[error("the token is not valid: {0}")]
    Token(String),
    #[error("the API server cannot be asked whose token this is: {0}")]
    Unavailable(#[from] kube::Error),
}

/// Tells callers.
#[derive(Clone)]
pub(crate) struct Callers {
    client: Client,
    proxies: Arc<FrontProxies>,
}

impl Callers {
    pub(crate) fn new(client: Client, proxies: Arc<FrontProxies>) -> Self {
        Self { client, proxies }
    }

    /// Who sent a request with this head.
    pub(crate) async fn identify(&self, head: &Parts) -> Result<Caller, Unknown> {
        // What the headers of anybody else say of the caller is not looked at.
        if let Some(caller) = self.proxied(head) {
            return Ok(caller);
        }
        let token = bearer(&head.headers).ok_or(Unknown::NoCredentials)?;
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let user =
            user.ok_or_else(|| Unknown::Token(status.error.unwrap_or_else(|| "nobody's, or not any more".to_owned())))?;
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
        if !proxy.is_shown_by(chain, Timestamp::now()) {
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
