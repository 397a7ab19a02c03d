//! HTTP proxies: the proxy for each server, and the tunnel through it (`CONNECT`, RFC 9110, section 9.3.6). TLS runs end to
//! end inside the tunnel.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use url::Url;

use super::error::ConnectError;
use crate::reference::Host;

/// The proxies of a policy server, as `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name them.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    https: Option<Proxy>,
    http: Option<Proxy>,
    /// The servers that are reached without a proxy.
    no_proxy: Vec<NoProxy>,
}

/// The address and the credentials of a proxy.
#[derive(Clone)]
pub(super) struct Proxy {
    pub host: Host,
    pub port: u16,
    /// The value of the header `Proxy-Authorization`; `None` without a user name.
    authorization: Option<HeaderValue>,
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug)]
enum NoProxy {
    All,
    /// A domain with its subdomains, on one port or on all ports.
    Domain(String, Option<u16>),
    Network(IpNet),
}

/// The error of a variable that does not name a proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: is not a usable proxy: give http://host:port, with user:password@ before the host if the proxy needs credentials"
)]
pub struct ProxyError(&'static str);

impl Proxies {
    /// Parses the values of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. An empty value counts as `None`.
    ///
    /// # Errors
    /// Returns an error if a value is not a proxy. The error omits the value, which may have a password.
    pub fn parse(https: Option<&str>, http: Option<&str>, no_proxy: Option<&str>) -> Result<Self, ProxyError> {
        let proxy = |name, text: Option<&str>| {
            let text = text.map(str::trim).filter(|text| !text.is_empty());
            text.map(|text| Proxy::parse(text).ok_or(ProxyError(name))).transpose()
        };
        let no_proxy = no_proxy.unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty());
        Ok(Self {
            https: proxy("HTTPS_PROXY", https)?,
            http: proxy("HTTP_PROXY", http)?,
            no_proxy: no_proxy.map(NoProxy::parse).collect(),
        })
    }

    /// Returns the proxy for a server; `None` if the server is reached without a proxy.
    pub(super) fn for_url(&self, url: &Url, host: &Host) -> Option<&Proxy> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        let port = url.port_or_known_default();
        proxy.as_ref().filter(|_| !self.no_proxy.iter().any(|entry| entry.covers(host.name(), port)))
    }
}

impl Proxy {
    fn parse(text: &str) -> Option<Self> {
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&text).ok().filter(|url| url.scheme() == "http")?;
        let authorization = (!url.username().is_empty()).then(|| {
            let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let pair = format!("{}:{}", plain(url.username()), plain(url.password().unwrap_or_default()));
            HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair))).ok()
        });
        let authorization = authorization.flatten().map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Some(Self { host: Host::of(&url)?, port: url.port_or_known_default()?, authorization })
    }

    /// Opens a tunnel to a server through this proxy.
    pub(super) async fn tunnel(
        &self,
        stream: tokio::net::TcpStream,
        host: &Host,
        port: u16,
    ) -> Result<TokioIo<Upgraded>, ConnectError> {
        let (mut sender, connection) =
            http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.map_err(ConnectError::Http)?;
        tokio::spawn(connection.with_upgrades());
        let target = format!("{}:{port}", host.name());
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = target.parse().map_err(|_| ConnectError::Name(target.clone()))?;
        if let Ok(target) = HeaderValue::from_str(&target) {
            request.headers_mut().insert(HOST, target);
        }
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        let answer = sender.send_request(request).await.map_err(ConnectError::Http)?;
        if !answer.status().is_success() {
            return Err(ConnectError::Proxy { proxy: self.host.clone(), status: answer.status() });
        }
        hyper::upgrade::on(answer).await.map(TokioIo::new).map_err(ConnectError::Http)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl NoProxy {
    fn parse(text: &str) -> Self {
        if text == "*" {
            return Self::All;
        }
        let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        if let Some((network, bits)) = text.split_once('/')
            && let (Some(address), Ok(bits)) = (address(network), bits.parse())
            && let Ok(network) = IpNet::new(address, bits)
        {
            return Self::Network(network);
        }
        if let Some(address) = address(text) {
            return Self::Network(address.into());
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().ok()),
            None => (text, None),
        };
        let name = name.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
        Self::Domain(name, port)
    }

    fn covers(&self, name: &str, port: Option<u16>) -> bool {
        let address = name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        match self {
            Self::All => true,
            Self::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Self::Domain(domain, wanted) => {
                let below = name.strip_suffix(domain.as_str());
                below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                    && wanted.is_none_or(|wanted| Some(wanted) == port)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_uses_the_proxy_of_its_scheme_unless_no_proxy_covers_it() {
        let no_proxy = "localhost, .cluster.local,10.0.0.0/8,*.example.com:5000, [::1], other.org:443";
        let proxies = Proxies::parse(Some("http://a:8080"), Some("b"), Some(no_proxy)).unwrap();
        for (url, proxy) in [
            ("https://ghcr.io/", Some("a:8080")),
            ("http://ghcr.io/", Some("b:80")),
            ("https://localhost:5000/", None),
            ("https://registry.cluster.local/", None),
            ("https://cluster.local/", None),
            ("https://mycluster.local/", Some("a:8080")),
            ("https://10.1.2.3/", None),
            ("https://11.1.2.3/", Some("a:8080")),
            ("https://registry.example.com:5000/", None),
            ("https://registry.example.com/", Some("a:8080")),
            ("https://[::1]:5000/", None),
            ("https://other.org/", None),
        ] {
            let url = Url::parse(url).unwrap();
            let host = Host::of(&url).unwrap();
            let found = proxies.for_url(&url, &host).map(|proxy| format!("{}:{}", proxy.host.name(), proxy.port));
            assert_eq!(found.as_deref(), proxy, "{url}");
        }
        let all_excluded = Proxies::parse(Some("a"), None, Some("*")).unwrap();
        let url = Url::parse("https://ghcr.io/").unwrap();
        assert!(all_excluded.for_url(&url, &Host::of(&url).unwrap()).is_none());
        assert!(Proxies::parse(Some(""), Some(" "), Some("")).unwrap().https.is_none());
    }

    #[test]
    fn an_invalid_proxy_is_refused_and_errors_do_not_show_passwords() {
        for text in ["https://a:b@proxy", "socks5://proxy", "http://", "a b"] {
            let error = Proxies::parse(Some(text), None, None).unwrap_err().to_string();
            assert!(error.starts_with("HTTPS_PROXY: ") && !error.contains("a:b"), "{error}");
        }
        let proxies = Proxies::parse(Some("http://user:p%40ss@proxy:1"), None, None).unwrap();
        let shown = proxies.https.as_ref().unwrap().authorization.clone().unwrap();
        assert_eq!(shown, format!("Basic {}", STANDARD.encode("user:p@ss")).as_str());
        assert!(!format!("{proxies:?}").contains("p@ss"));
    }
}
