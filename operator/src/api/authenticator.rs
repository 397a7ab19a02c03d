//! Authentication of callers: the API server names the caller of a request that it proxies. Other callers send a
//! bearer token, which the API server reviews.

use std::sync::Arc;

use axum::http::request::Parts;
use jiff::Timestamp;
use proviso_authentication::{AuthenticationError, Tokens};
use proviso_http::ClientCertificates;
use proviso_rest_api::Caller;

use super::front_proxy::FrontProxies;

/// Finds the caller of a request.
#[derive(Clone)]
pub(crate) struct Authenticator {
    tokens: Tokens,
    proxies: Arc<FrontProxies>,
}

impl Authenticator {
    pub(crate) fn new(tokens: Tokens, proxies: Arc<FrontProxies>) -> Self {
        Self { tokens, proxies }
    }

    /// Returns the caller of a request with this head.
    pub(crate) async fn authenticate(&self, head: &Parts) -> Result<Caller, AuthenticationError> {
        // Headers that name a caller count only on a connection of the API server.
        if let Some(caller) = self.proxied(head) {
            return Ok(caller);
        }
        let user = self.tokens.user(head).await?;
        Ok(Caller {
            user: user.username.clone().unwrap_or_default(),
            uid: user.uid.clone().unwrap_or_default(),
            groups: user.groups.clone().unwrap_or_default(),
            extra: user.extra.clone().unwrap_or_default(),
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
