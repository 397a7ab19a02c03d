//! The API on the listener of the reviews. Over a folder: the REST API with the store over the folder, and the authentication of callers.
//! The crate `proviso_rest_api` implements the methods. In a cluster: the requests to services.

mod store;
mod token;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::service::Service as _;
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::service::TowerToHyperService;
use proviso_configuration_api::HEALTHCHECK;
use proviso_http::Streamed;
use proviso_rest_api::{Caller, Code, Error, HEALTH, Problem};
use tokio::sync::watch;

use crate::configuration::FolderConfiguration;
use crate::folder::FolderStoreHandle;
use crate::notify_on_drop::NotifyOnDropBody;
use proviso_http::shutdown::Phase;
use store::FolderStore;

pub use token::{Token, TokenError};

/// The paths of the configuration API, and the paths below them.
const CONFIGURATION: [&str; 9] = [
    "/policy_latest",
    "/policies_latest",
    "/catch_up",
    "/policy",
    "/service_component",
    "/service_component_all",
    "/v1/kv",
    "/api/v1alpha1/subscriptions",
    HEALTHCHECK,
];
/// The first segments of the paths of reviews. They have two segments too, as the records of components.
const REVIEWS: [&str; 4] = ["validate", "validate_raw", "audit", "t"];

/// The callers that may use the API.
#[derive(Debug)]
pub enum Access {
    /// Every program on this machine, but no web page in a browser on this machine.
    Loopback,
    /// Every caller that has the token.
    Token(Token),
}

impl Access {
    /// Returns the access for this listen address and token file; `None` if the API is not served, because the address is not
    /// loopback and there is no token.
    ///
    /// # Errors
    /// Returns an error if the token cannot be read or is too short.
    pub fn new(listen: IpAddr, token: Option<PathBuf>) -> Result<Option<Self>, TokenError> {
        match token {
            Some(path) => Ok(Some(Self::Token(Token::follow(path)?))),
            None => Ok(listen.is_loopback().then_some(Self::Loopback)),
        }
    }

    fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Caller>, Error> {
        match self {
            Self::Token(token) => {
                let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                let given = given.and_then(|value| value.split_once(' '));
                let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                if given.is_some_and(|(_, given)| token.matches(given.trim())) {
                    return Ok(Some(Caller { user: "token".to_owned(), ..Caller::default() }));
                }
                let message =
                    "missing or unknown token: send the token of --api-token-file as `Authorization: Bearer …`";
                Err(Error::new(Code::Unauthenticated, "TOKEN", message))
            }
            Self::Loopback => {
                let host = uri
                    .authority()
                    .map(|authority| authority.as_str().to_owned())
                    .or_else(|| headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(ToOwned::to_owned));
                // A browser sends the requests of a web page whose domain resolves to loopback (DNS rebinding).
                if host.is_some_and(|host| !is_loopback(&host)) || headers.contains_key(header::ORIGIN) {
                    let message = "without --api-token-file the API is for programs on this machine, not for web pages";
                    return Err(Error::new(Code::PermissionDenied, "WEB_PAGE", message));
                }
                Ok(None)
            }
        }
    }
}

/// Returns true for a path, and for the paths below it.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true for the requests of the configuration API: its paths, and `GET /{key}/{scn}` for any key that no other path has.
fn is_configuration(method: &Method, path: &str) -> bool {
    let segments: Vec<_> = path.split('/').skip(1).take(3).collect();
    let is_record = match segments[..] {
        [key, scn] => {
            let is_other = REVIEWS.contains(&key) || ["v1", "api"].contains(&key);
            method == Method::GET && !is_other && !key.is_empty() && !scn.is_empty()
        }
        _ => false,
    };
    is_record || CONFIGURATION.iter().any(|prefix| is_below(path, prefix))
}

fn is_loopback(host: &str) -> bool {
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
    let host = port.map_or(host, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The API, which has the same listener as the reviews.
#[derive(Clone, Debug)]
pub struct Api {
    router: TowerToHyperService<axum::Router>,
    /// The configuration API; `None` in a cluster, where the operator serves it.
    configuration: Option<TowerToHyperService<axum::Router>>,
    /// The callers that may use the API; `None` if the router authenticates its callers.
    access: Option<Arc<Access>>,
    /// The first segments of the paths of the API.
    prefixes: &'static [&'static str],
}

impl Api {
    #[must_use]
    pub fn new(
        folder: FolderStoreHandle,
        configuration: FolderConfiguration,
        requests: axum::Router,
        access: Access,
        phase: &watch::Receiver<Phase>,
    ) -> Self {
        let configuration = Arc::new(configuration);
        let store = Arc::new(FolderStore::new(folder, Arc::clone(&configuration)));
        let configuration = proviso_configuration_api::router(Arc::clone(&configuration), phase.clone())
            .merge(proviso_configuration_api::health_router(configuration, phase.clone()));
        let router = proviso_rest_api::router(Arc::clone(&store))
            .merge(proviso_rest_api::request_policies_router(store))
            .merge(proviso_rest_api::health_router())
            .merge(requests);
        let prefixes = &["/v1", "/api/v1", "/api/v1alpha1"];
        Self {
            router: TowerToHyperService::new(router),
            configuration: Some(TowerToHyperService::new(configuration)),
            access: Some(Arc::new(access)),
            prefixes,
        }
    }

    /// Returns the API of a replica in a cluster: requests to services only. The router authenticates its callers.
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn of_requests(requests: axum::Router) -> Self {
        // These paths, and no others, need no token of an API server in the path (docs/adr/0023).
        let router = TowerToHyperService::new(requests);
        Self { router, configuration: None, access: None, prefixes: &["/api"] }
    }

    /// Returns true if a request with this method and path belongs to the API.
    #[must_use]
    pub fn has_path(&self, method: &Method, path: &str) -> bool {
        self.prefixes.iter().any(|prefix| is_below(path, prefix))
            || self.configuration.is_some() && is_configuration(method, path)
    }

    pub async fn answer(
        &self,
        request: Request<Incoming>,
        phase: &watch::Receiver<Phase>,
    ) -> Response<NotifyOnDropBody> {
        let is_http1 = request.version() <= Version::HTTP_11;
        let configuration =
            self.configuration.as_ref().filter(|_| is_configuration(request.method(), request.uri().path()));
        let admitted = match (&self.access, request.uri().path()) {
            // Probes have no token, and the answers tell only that the server runs.
            (_, HEALTH | HEALTHCHECK) | (None, _) => Ok(None),
            (Some(access), _) => access.admit(request.uri(), request.headers()),
        };
        let response = match admitted {
            Ok(caller) => {
                let mut request = request.map(Body::new);
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller);
                }
                let Ok(response) = configuration.unwrap_or(&self.router).call(request).await;
                response
            }
            Err(error) if request.uri().path().starts_with("/api/") => {
                Problem::from(&error).with_instance(request.uri().path()).to_response()
            }
            Err(error) if configuration.is_some() => proviso_configuration_api::refuse(&error),
            Err(error) => proviso_rest_api::refuse(&error),
        };
        let (head, body) = response.into_parts();
        let body = if head.extensions.get::<Streamed>().is_some() {
            NotifyOnDropBody::stream(body)
        } else {
            // The other bodies of the API are complete in memory, so reading them does not fail.
            body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default().into()
        };
        let mut response = Response::from_parts(head, body);
        if is_http1 && *phase.borrow() != Phase::Serving {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_api_has_its_paths_and_the_records_of_components() {
        for (method, path, expected) in [
            (Method::GET, "/service_component_all/meter", true),
            (Method::PUT, "/policy", true),
            (Method::GET, "/policy/components", true),
            (Method::GET, "/v1/kv/meter:policies/event", true),
            (Method::POST, "/api/v1alpha1/subscriptions/default/meter:resend", true),
            (Method::GET, "/healthcheck", true),
            (Method::GET, "/dti/meter", true),
            (Method::POST, "/dti/meter", false),
            (Method::GET, "/dti/meter/x", false),
            (Method::GET, "/dti/", false),
            (Method::GET, "/policies", false),
            (Method::GET, "/v1/policies", false),
            (Method::GET, "/api/v1", false),
            (Method::POST, "/validate/cluster.a", false),
            (Method::GET, "/validate/cluster.a", false),
            (Method::GET, "/t/token", false),
        ] {
            assert_eq!(is_configuration(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn requests_of_web_pages_are_refused_without_a_token() {
        let admit = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            Access::Loopback.admit(&"/v1/policies".parse().unwrap(), &headers).is_ok()
        };
        for host in ["127.0.0.1:3000", "localhost:3000", "[::1]:3000", "127.0.0.1"] {
            assert!(admit(host, None), "{host}");
        }
        for host in ["evil.example.com:3000", "127.0.0.1.evil.example.com", "10.0.0.1:3000", ""] {
            assert!(!admit(host, None), "{host}");
        }
        assert!(!admit("127.0.0.1:3000", Some("http://127.0.0.1:3000")));
    }
}
