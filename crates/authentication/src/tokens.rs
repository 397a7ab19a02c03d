//! The review of bearer tokens by the API server.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use moka::future::Cache;
use proviso_http::Peer;
use sha2::{Digest as _, Sha256};

use crate::limits::ReviewLimits;

/// The time for which the result of a review is used again. A token that is revoked is accepted until then.
const RESULT_LIFETIME: Duration = Duration::from_secs(10);
/// The maximum number of results. The limits of reviews allow fewer new results within their lifetime.
const MAX_RESULTS: u64 = 4096;
/// The time limit of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of a token, in bytes. The API server accepts headers of up to 1 MiB.
const MAX_TOKEN: usize = 16 * 1024;

/// The reason why a caller is not authenticated. It does not contain the token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AuthenticationError {
    #[error("no credentials: send a bearer token, or call through the API server")]
    NoCredentials,
    #[error("the token is not valid: {0}")]
    Token(Arc<str>),
    #[error("too many tokens were sent that had to be reviewed: try again in {} s", .0.as_secs())]
    TooMany(Duration),
    #[error("the API server cannot review the token: {0}")]
    Unavailable(Arc<str>),
}

impl AuthenticationError {
    /// Returns the HTTP status of the answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::NoCredentials | Self::Token(_) => 401,
            Self::TooMany(_) => 429,
            Self::Unavailable(_) => 503,
        }
    }

    /// Returns the value of the header `Retry-After`, in seconds; `None` if another attempt with the same token would fail too.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::NoCredentials | Self::Token(_) => None,
            Self::TooMany(wait) => Some(wait.as_secs()),
            Self::Unavailable(_) => Some(1),
        }
    }
}

/// The result of a review: the user of the token, or the reason why the token is not valid.
type Outcome = Result<Arc<UserInfo>, Arc<str>>;

/// The SHA-256 digest of a token, so that tokens are not kept in memory.
pub(crate) type TokenDigest = [u8; 32];

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct Caller {
    pub user: Arc<UserInfo>,
    /// The digest of the token of the caller, by which results are cached.
    pub(crate) digest: TokenDigest,
}

/// Reviews bearer tokens. Clones share the cache and the limits.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Inner>);

struct Inner {
    reviews: Api<TokenReview>,
    results: Cache<TokenDigest, Outcome>,
    limits: ReviewLimits,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    #[must_use]
    pub fn new(client: Client) -> Self {
        let results = Cache::builder().max_capacity(MAX_RESULTS).time_to_live(RESULT_LIFETIME).build();
        Self(Arc::new(Inner { reviews: Api::all(client), results, limits: ReviewLimits::default() }))
    }

    /// Returns the user of the bearer token of a request.
    ///
    /// # Errors
    /// Returns an error if the request has no token, if the token is not valid or cannot be reviewed, or if the client or all clients
    /// have sent too many tokens that had to be reviewed.
    pub async fn user(&self, head: &Parts) -> Result<Arc<UserInfo>, AuthenticationError> {
        self.caller(head).await.map(|caller| caller.user)
    }

    /// Returns the caller of a request, for a review of its permissions.
    ///
    /// # Errors
    /// Returns the errors of [`Self::user`].
    pub async fn caller(&self, head: &Parts) -> Result<Caller, AuthenticationError> {
        let token = bearer(&head.headers).ok_or(AuthenticationError::NoCredentials)?;
        if token.len() > MAX_TOKEN {
            return Err(AuthenticationError::Token("it is too long".into()));
        }
        let peer = head.extensions.get::<Peer>().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), Peer::address);
        let digest = Sha256::digest(token.as_bytes()).into();
        // Concurrent requests with the same token wait for one review.
        let result = self.0.results.try_get_with(digest, self.0.review(token, peer)).await;
        let outcome = result.map_err(|error: Arc<AuthenticationError>| AuthenticationError::clone(&error))?;
        outcome.map(|user| Caller { user, digest }).map_err(AuthenticationError::Token)
    }
}

impl Inner {
    async fn review(&self, token: &str, peer: IpAddr) -> Result<Outcome, AuthenticationError> {
        let at_least_a_second = |wait: Duration| Duration::from_secs(wait.as_secs() + 1);
        self.limits.take(peer).await.map_err(|wait| AuthenticationError::TooMany(at_least_a_second(wait)))?;
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let (params, unavailable) = (PostParams::default(), AuthenticationError::Unavailable);
        let reviewed = tokio::time::timeout(REVIEW_TIMEOUT, self.reviews.create(&params, &review)).await;
        let status = match reviewed {
            Ok(Ok(review)) => review.status.unwrap_or_default(),
            Ok(Err(error)) => return Err(unavailable(error.to_string().into())),
            Err(_) => return Err(unavailable("no answer in time".into())),
        };
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(Arc::new);
        Ok(user.ok_or_else(|| status.error.map_or_else(|| "unknown or expired token".into(), Arc::from)))
    }
}

/// Returns the bearer token of a request; `None` if it has none.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock_api::{MockApi, head};

    #[tokio::test]
    async fn a_valid_token_is_reviewed_once_and_concurrent_requests_wait_for_the_review() {
        let api = MockApi::default();
        let tokens = Tokens::new(api.client());
        let (first, second) = (head(Some("good"), "192.0.2.1"), head(Some("good"), "192.0.2.2"));
        let (one, two) = tokio::join!(tokens.user(&first), tokens.user(&second));
        assert_eq!((one.unwrap().username.as_deref(), two.unwrap().username.as_deref()), (Some("good"), Some("good")));
        for _ in 0..100 {
            tokens.user(&first).await.unwrap();
        }
        assert_eq!(api.reviews(), 1);
    }

    #[tokio::test]
    async fn a_flood_of_bad_tokens_becomes_few_reviews_and_does_not_stop_other_clients() {
        let api = MockApi::default();
        let tokens = Tokens::new(api.client());
        let mut limited = 0;
        for number in 0..1000 {
            let bad = head(Some(&format!("bad-{number}")), "192.0.2.1");
            match tokens.user(&bad).await.unwrap_err() {
                AuthenticationError::Token(_) => {}
                error @ AuthenticationError::TooMany(_) => {
                    assert_eq!((error.status(), error.retry_after()), (429, Some(1)));
                    limited += 1;
                }
                error => panic!("{error}"),
            }
        }
        assert!(api.reviews() < 20 && limited > 980, "{} reviews, {limited} limited", api.reviews());
        // The same bad token again and again needs no other review.
        let reviews = api.reviews();
        let repeated = head(Some("bad-0"), "192.0.2.1");
        for _ in 0..100 {
            assert!(matches!(tokens.user(&repeated).await, Err(AuthenticationError::Token(_))));
        }
        assert_eq!(api.reviews(), reviews);
        assert!(tokens.user(&head(Some("good"), "192.0.2.2")).await.is_ok());
    }

    #[tokio::test]
    async fn a_request_without_a_token_is_not_reviewed_and_a_failed_review_is_repeated() {
        let api = MockApi::default();
        let tokens = Tokens::new(api.client());
        assert!(matches!(tokens.user(&head(None, "192.0.2.1")).await, Err(AuthenticationError::NoCredentials)));
        let long = "a".repeat(MAX_TOKEN + 1);
        assert!(matches!(tokens.user(&head(Some(&long), "192.0.2.1")).await, Err(AuthenticationError::Token(_))));
        assert_eq!(api.reviews(), 0);
        let good = head(Some("good"), "192.0.2.1");
        api.set_available(false);
        let error = tokens.user(&good).await.unwrap_err();
        assert_eq!((error.status(), error.retry_after()), (503, Some(1)));
        api.set_available(true);
        assert!(tokens.user(&good).await.is_ok());
    }

    #[test]
    fn a_bearer_token_is_read_from_the_header_of_its_scheme_only() {
        let value = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            bearer(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(value("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(value("bearer  abc ").as_deref(), Some("abc"));
        for other in ["Basic abc", "Bearer ", "Bearer", "abc"] {
            assert_eq!(value(other), None, "{other}");
        }
    }
}
