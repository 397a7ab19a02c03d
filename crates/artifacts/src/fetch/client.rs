//! GET with limits: redirects are followed by hand, each to a server that is checked anew; credentials are shown only
//! to who asked for them; bodies end at a limit.

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
use super::room::Rooms;
use crate::module::{MAX_MODULE, Module};
use crate::reference::Host;

/// How many redirects are followed.
const MAX_REDIRECTS: u32 = 5;
/// The largest answer with a token, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// Asks the servers that one module comes from.
#[derive(Debug)]
pub(super) struct Client {
    trust: Arc<Trust>,
    credential: Option<Credential>,
    /// Whether an insecure source may be asked over plain HTTP, too.
    may_be_plain: bool,
    /// The servers that speak nothing else.
    plain: BTreeSet<Host>,
    /// What the server of the module is shown.
    authorization: Option<HeaderValue>,
}

/// An answer, its body not read yet.
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
    pub(super) fn new(trust: Arc<Trust>, credential: Option<Credential>, may_be_plain: bool) -> Self {
        Self { trust, credential, may_be_plain, plain: BTreeSet::new(), authorization: None }
    }

    /// Asks for this, and once more with credentials if the server wants some.
    pub(super) async fn get(&mut self, url: &Url, accept: &'static str) -> Result<Answer, FetchError> {
        let answer = self.follow(url.clone(), accept, self.authorization.clone()).await?;
        // What another server wants to see that this one redirects to is for nobody to say.
        let is_asked = answer.status == StatusCode::UNAUTHORIZED && Host::of(url).as_ref() == Some(&answer.host);
        if !is_asked || self.authorization.is_some() {
            return Ok(answer);
        }
        let Some(challenge) = Challenge::read(&answer.headers) else { return Ok(answer) };
        self.authorization = self.authorize(answer.host.clone(), challenge).await?;
        match self.authorization.clone() {
            Some(authorization) => self.follow(url.clone(), accept, Some(authorization)).await,
            None => Ok(answer),
        }
    }

    /// Sends this, and once more with credentials if the server wants some. Redirects are answers: what is written goes
    /// to nobody else.
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
        // Also with an authorization: it may be one that is for reading only, or has ended.
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

    /// What to show a server that asks for this; none without credentials.
    async fn authorize(&mut self, server: Host, challenge: Challenge) -> Result<Option<HeaderValue>, FetchError> {
        let basic = self.credential.as_ref().and_then(|credential| secret_value(&credential.to_basic()));
        let Challenge::Bearer { realm, service, scope } = challenge else { return Ok(basic) };
        let url = Url::parse(&realm).ok().and_then(|url| Some((Host::of(&url)?, url)));
        let Some((host, mut url)) = url else {
            let error = format!("{realm:?} is no URL to get a token from");
            return Err(FetchError::Malformed { host: server, what: "challenge", error });
        };
        let queries = [("service", service), ("scope", scope)];
        url.query_pairs_mut().extend_pairs(queries.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let answer = Box::pin(self.follow(url, "application/json", basic)).await?;
        let answer = self.ok(answer)?.read("token", MAX_TOKEN).await?;
        let malformed = |error: &str| FetchError::Malformed { host, what: "token", error: error.to_owned() };
        let Ok(Token { token }) = serde_json::from_slice(&answer) else { return Err(malformed("it is no JSON")) };
        let Some(token) = token else { return Err(malformed("there is none in it")) };
        secret_value(&format!("Bearer {token}")).map(Some).ok_or_else(|| malformed("it has odd characters"))
    }

    /// The answer, if it is what was asked for.
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

    /// Follows redirects; only the first server is shown the authorization.
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
            // Without its query, which may hold a signature that lets anybody in.
            let to = String::from_utf8_lossy(location.as_bytes());
            let to = to.split('?').next().unwrap_or_default().chars().take(200).collect::<String>();
            let refuse = |why| FetchError::Redirect { host: answer.host.clone(), to, why };
            let next = location.to_str().ok().and_then(|location| url.join(location).ok());
            let next = match next {
                None => return Err(refuse("it is no URL")),
                Some(next) if !matches!(next.scheme(), "http" | "https") => return Err(refuse("it is not https")),
                Some(next) if url.scheme() == "https" && next.scheme() == "http" => {
                    return Err(refuse("it is plain HTTP, and this began with HTTPS"));
                }
                Some(_) if redirects == MAX_REDIRECTS => return Err(refuse("there were five before it")),
                Some(next) => next,
            };
            if next.origin() != url.origin() {
                authorization = None;
            }
            redirects += 1;
            url = next;
        }
    }

    /// Asks once. Where the server turns out to speak plain HTTP, and may, the URL says so from then on.
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
        // A path of a URL is one of a URI.
        *request.uri_mut() = target.parse().map_err(|_| FetchError::NoModule {
            reference: url.to_string(),
            why: "the URL has odd characters".to_owned(),
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
        let may_be_plain = self.may_be_plain && self.trust.sources.is_insecure(host);
        if url.scheme() == "http" && !may_be_plain {
            return Err(FetchError::Plain(host.clone()));
        }
        if self.plain.contains(host) {
            to_plain(url);
        }
        let failed = |error| FetchError::Connect { host: host.clone(), error };
        match connection::open(url, host, &self.trust).await {
            Err(ConnectError::Connect(_) | ConnectError::Tls(_)) if may_be_plain && url.scheme() == "https" => {
                to_plain(url);
                let sender = connection::open(url, host, &self.trust).await.map_err(failed)?;
                self.plain.insert(host.clone());
                Ok(sender)
            }
            result => result.map_err(failed),
        }
    }
}

impl Answer {
    /// Where the server says that it goes on, from the URL that was asked.
    pub(super) fn location(&self, url: &Url) -> Option<Url> {
        self.headers.get(LOCATION)?.to_str().ok().and_then(|location| url.join(location).ok())
    }

    /// The body, which is a module.
    pub(super) async fn read_module(self, rooms: &Rooms) -> Result<Module, FetchError> {
        // One that does not say how long it is may be as long as any.
        let size = self.body.size_hint().exact().unwrap_or(MAX_MODULE);
        let room = rooms.take(size).await.map_err(|closed| FetchError::Stopped(closed.to_string()))?;
        Ok(Module::fetched(self.read("module", MAX_MODULE).await?, room))
    }

    /// The body, of at most this many bytes.
    pub(super) async fn read(mut self, what: &'static str, limit: u64) -> Result<Bytes, FetchError> {
        let too_large = |host: &Host| FetchError::TooLarge { what: format!("the {what} from {host}"), limit };
        // What it says it will send; a server that does not say so has none.
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

/// Both schemes have hosts and ports, so that one can always be made the other.
fn to_plain(url: &mut Url) {
    let _ = url.set_scheme("http");
}

/// A header that no debug output shows.
fn secret_value(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
