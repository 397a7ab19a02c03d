//! HTTP requests to the servers of one module.
//!
//! The client follows redirects itself and checks each target again. It sends credentials only to the server that requested
//! them, and limits the size of each body.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde::Deserialize;
use url::Url;

use super::challenge::Challenge;
use super::connection::{self, Sender, Trust};
use super::credentials::Credential;
use super::error::{ConnectError, FetchError};
use super::memory::MemoryBudget;
use crate::module::{MAX_MODULE, Module};
use crate::reference::Host;

/// The maximum number of redirects that the client follows.
const MAX_REDIRECTS: u32 = 5;
/// The maximum size of the response of a token server, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// A client for the servers of one module.
#[derive(Debug)]
pub(super) struct Client {
    trust: Arc<Trust>,
    credential: Option<Credential>,
    /// True if requests to insecure sources may use plain HTTP.
    allows_plain_http: bool,
    /// The servers that support plain HTTP only.
    plain_http_hosts: BTreeSet<Host>,
    /// The value of the header `Authorization` for the server of the module.
    authorization: Option<HeaderValue>,
}

/// A response whose body is not read yet.
#[derive(Debug)]
pub(super) struct Answer {
    pub host: Host,
    pub status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
}

#[derive(Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: Option<String>,
}

impl Client {
    pub(super) fn new(trust: Arc<Trust>, credential: Option<Credential>, allows_plain_http: bool) -> Self {
        Self { trust, credential, allows_plain_http, plain_http_hosts: BTreeSet::new(), authorization: None }
    }

    /// Sends a GET request, and repeats it with credentials if the server requests them.
    pub(super) async fn get(&mut self, url: &Url, accept: &'static str) -> Result<Answer, FetchError> {
        let answer = self.follow(url.clone(), accept, self.authorization.clone()).await?;
        // A challenge counts only if the server of the URL sent it, and not the target of a redirect.
        let is_challenged = answer.status == StatusCode::UNAUTHORIZED && Host::of(url).as_ref() == Some(&answer.host);
        if !is_challenged || self.authorization.is_some() {
            return Ok(answer);
        }
        let Some(challenge) = Challenge::read(&answer.headers) else { return Ok(answer) };
        self.authorization = self.authorize(answer.host.clone(), challenge).await?;
        match self.authorization.clone() {
            Some(authorization) => self.follow(url.clone(), accept, Some(authorization)).await,
            None => Ok(answer),
        }
    }

    /// Sends a request with a body, and repeats it with credentials if the server requests them. Does not follow redirects, so
    /// that the content goes to no other server.
    pub(super) async fn write(
        &mut self,
        method: &Method,
        url: &Url,
        content: (&'static str, Bytes),
    ) -> Result<Answer, FetchError> {
        let answer = self.write_once(method, url, content.clone()).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        // A present authorization may be read-only or expired, so the challenge counts in any case.
        let Some(challenge) = Challenge::read(&answer.headers) else { return Ok(answer) };
        self.authorization = self.authorize(answer.host.clone(), challenge).await?;
        match self.authorization {
            Some(_) => self.write_once(method, url, content).await,
            None => Ok(answer),
        }
    }

    async fn write_once(
        &mut self,
        method: &Method,
        url: &Url,
        (kind, content): (&'static str, Bytes),
    ) -> Result<Answer, FetchError> {
        let mut request = Request::new(Full::new(content));
        *request.method_mut() = method.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        let authorization = self.authorization.clone();
        self.transmit(&mut url.clone(), request, authorization.as_ref()).await
    }

    /// Returns the value of the header `Authorization` for a challenge: the credential, or a token from the token server.
    /// `None` if the challenge is Basic and the client has no credential.
    async fn authorize(&mut self, server: Host, challenge: Challenge) -> Result<Option<HeaderValue>, FetchError> {
        let basic = self.credential.as_ref().and_then(|credential| sensitive_header(&credential.to_basic()));
        let Challenge::Bearer { realm, service, scope } = challenge else { return Ok(basic) };
        let url = Url::parse(&realm).ok().and_then(|url| Some((Host::of(&url)?, url)));
        let Some((host, mut url)) = url else {
            let error = format!("{realm:?} is not a URL to get a token from");
            return Err(FetchError::Malformed { host: server, what: "challenge", error });
        };
        let queries = [("service", service), ("scope", scope)];
        url.query_pairs_mut().extend_pairs(queries.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let answer = Box::pin(self.follow(url, "application/json", basic)).await?;
        let answer = self.ok(answer)?.read("token", MAX_TOKEN).await?;
        let malformed = |error: &str| FetchError::Malformed { host, what: "token", error: error.to_owned() };
        let Ok(Token { token }) = serde_json::from_slice(&answer) else { return Err(malformed("it is not JSON")) };
        let Some(token) = token else { return Err(malformed("it has neither `token` nor `access_token`")) };
        sensitive_header(&format!("Bearer {token}"))
            .map(Some)
            .ok_or_else(|| malformed("it has characters that are not allowed in a header"))
    }

    /// Returns the response if its status is 200, and the matching error otherwise.
    pub(super) fn ok(&self, answer: Answer) -> Result<Answer, FetchError> {
        match answer.status {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(FetchError::Unauthorized {
                host: answer.host,
                status: answer.status,
                secret: self.credential.as_ref().map(|credential| credential.secret.clone()),
            }),
            status => Err(FetchError::Status { host: answer.host, status }),
        }
    }

    /// Sends a GET request and follows redirects. Only the origin of the first URL receives the authorization.
    async fn follow(
        &mut self,
        mut url: Url,
        accept: &'static str,
        mut authorization: Option<HeaderValue>,
    ) -> Result<Answer, FetchError> {
        let mut redirects = 0;
        loop {
            let answer = self.send(&mut url, accept, authorization.as_ref()).await?;
            let location = answer.headers.get(LOCATION).filter(|_| is_redirect(answer.status));
            let Some(location) = location else { return Ok(answer) };
            // The error omits the query, which may have a signature that grants access.
            let to = String::from_utf8_lossy(location.as_bytes());
            let to = to.split('?').next().unwrap_or_default().chars().take(200).collect::<String>();
            let refuse = |why| FetchError::Redirect { host: answer.host.clone(), to, why };
            let next = location.to_str().ok().and_then(|location| url.join(location).ok());
            let next = match next {
                None => return Err(refuse("it is not a URL")),
                Some(next) if !matches!(next.scheme(), "http" | "https") => {
                    return Err(refuse("it is not an https URL"));
                }
                Some(next) if url.scheme() == "https" && next.scheme() == "http" => {
                    return Err(refuse("it is plain HTTP, and the request began with HTTPS"));
                }
                Some(_) if redirects == MAX_REDIRECTS => return Err(refuse("there were five redirects before it")),
                Some(next) => next,
            };
            if next.origin() != url.origin() {
                authorization = None;
            }
            redirects += 1;
            url = next;
        }
    }

    /// Sends one GET request. Changes the scheme of `url` to `http` if the server supports and may use plain HTTP only.
    async fn send(
        &mut self,
        url: &mut Url,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, FetchError> {
        let mut request = Request::new(Full::<Bytes>::default());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        self.transmit(url, request, authorization).await
    }

    async fn transmit(
        &mut self,
        url: &mut Url,
        mut request: Request<Full<Bytes>>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, FetchError> {
        let Some(host) = Host::of(url) else {
            return Err(FetchError::NoModule { reference: url.to_string(), why: "the URL has no host".to_owned() });
        };
        let connect = |error| FetchError::Connect { host: host.clone(), error };
        let mut sender = self.open(url, &host).await?;
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        // A valid path of a URL is normally a valid path of a URI.
        *request.uri_mut() = target.parse().map_err(|_| FetchError::NoModule {
            reference: url.to_string(),
            why: "the URL has characters that are not allowed".to_owned(),
        })?;
        let headers = request.headers_mut();
        if let Ok(name) = HeaderValue::from_str(&host.to_string()) {
            headers.insert(HOST, name);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("proviso/", env!("CARGO_PKG_VERSION"))));
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let answer = sender.send_request(request).await.map_err(|error| connect(ConnectError::Http(error)))?;
        let (head, body) = answer.into_parts();
        Ok(Answer { host, status: head.status, headers: head.headers, body })
    }

    async fn open(&mut self, url: &mut Url, host: &Host) -> Result<Sender, FetchError> {
        let may_use_plain_http = self.allows_plain_http && self.trust.sources.is_insecure(host);
        if url.scheme() == "http" && !may_use_plain_http {
            return Err(FetchError::Plain(host.clone()));
        }
        if self.plain_http_hosts.contains(host) {
            to_plain_http(url);
        }
        let failed = |error| FetchError::Connect { host: host.clone(), error };
        match connection::open(url, host, &self.trust).await {
            Err(ConnectError::Connect(_) | ConnectError::Tls(_)) if may_use_plain_http && url.scheme() == "https" => {
                to_plain_http(url);
                let sender = connection::open(url, host, &self.trust).await.map_err(failed)?;
                self.plain_http_hosts.insert(host.clone());
                Ok(sender)
            }
            result => result.map_err(failed),
        }
    }
}

impl Answer {
    /// Returns the header `Location`, resolved against the requested URL; `None` if it is missing or not a URL.
    pub(super) fn location(&self, url: &Url) -> Option<Url> {
        self.headers.get(LOCATION)?.to_str().ok().and_then(|location| url.join(location).ok())
    }

    /// Reads the body, which is a module.
    pub(super) async fn read_module(self, memory: &MemoryBudget) -> Result<Module, FetchError> {
        // A response without `Content-Length` may be as large as the limit.
        let size = self.body.size_hint().exact().unwrap_or(MAX_MODULE);
        let permit = memory.acquire(size).await.map_err(|closed| FetchError::Stopped(closed.to_string()))?;
        Ok(Module::fetched(self.read("module", MAX_MODULE).await?, permit))
    }

    /// Reads the body, of at most `limit` bytes. `what` names the body in the error.
    pub(super) async fn read(mut self, what: &'static str, limit: u64) -> Result<Bytes, FetchError> {
        let too_large = |host: &Host| FetchError::TooLarge { what: format!("the {what} from {host}"), limit };
        // The announced size is 0 without `Content-Length`.
        let announced = self.body.size_hint().lower();
        if announced > limit {
            return Err(too_large(&self.host));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(announced).unwrap_or_default());
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| FetchError::Body { host: self.host.clone(), error })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() as u64 + data.len() as u64 > limit {
                return Err(too_large(&self.host));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.into())
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Changes the scheme to `http`. The change from `https` cannot fail, because both schemes have hosts and ports.
fn to_plain_http(url: &mut Url) {
    let _ = url.set_scheme("http");
}

/// Returns a header value that debug output does not show; `None` if a header cannot hold the text.
fn sensitive_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
