//! Certificates for `localhost`, and a TLS client that trusts them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proviso_e2e::pki::Identity;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Answer, read_answer};

/// A self-signed certificate and its key.
pub struct Pair {
    pub cert: String,
    pub key: String,
    pub der: CertificateDer<'static>,
}

impl Pair {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { cert: made.cert.pem(), key: made.signing_key.serialize_pem(), der: made.cert.der().clone() }
    }

    /// Returns a pair whose certificate is valid between these times since the Unix epoch.
    pub fn valid_between(from: Duration, to: Duration) -> Self {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        (params.not_before, params.not_after) = (epoch + from, epoch + to);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self { cert: cert.pem(), key: key.serialize_pem(), der: cert.der().clone() }
    }

    /// Writes `tls.crt` and `tls.key`, each atomically.
    pub fn write(&self, folder: &Path) {
        replace(&folder.join("tls.crt"), &self.cert);
        replace(&folder.join("tls.key"), &self.key);
    }

    /// Connects with a client that trusts only this certificate and offers this protocol.
    pub async fn connect(&self, address: &str, protocol: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        Self::connect_to_any(std::slice::from_ref(self), address, protocol).await
    }

    /// Connects with a client that trusts the certificates of all `pairs`.
    async fn connect_to_any(pairs: &[Self], address: &str, protocol: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        Self::connect_as(pairs, address, protocol, None).await
    }

    /// Connects with a client that trusts the certificates of all `pairs`, and has this certificate itself.
    async fn connect_as(
        pairs: &[Self],
        address: &str,
        protocol: &str,
        client: Option<&Identity>,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        for pair in pairs {
            roots.add(pair.der.clone())?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match client {
            Some(identity) => {
                let chain = CertificateDer::pem_file_iter(&identity.certificate)?.collect::<Result<Vec<_>, _>>()?;
                config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&identity.key)?)?
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        Ok(connector.connect(ServerName::try_from("localhost")?, stream).await?)
    }

    /// Sends a POST request over `http/1.1` or `h2` on a new connection.
    pub async fn post(&self, address: &str, protocol: &str, path: &str, body: String) -> anyhow::Result<Answer> {
        Self::post_to_any(std::slice::from_ref(self), address, protocol, path, body).await
    }

    /// Sends a POST request on a new connection, with this client certificate.
    pub async fn post_as(&self, address: &str, client: &Identity, path: &str, body: String) -> anyhow::Result<Answer> {
        let stream = Self::connect_as(std::slice::from_ref(self), address, "http/1.1", Some(client)).await?;
        let request = Request::post(path).header("host", "localhost").body(Full::new(Bytes::from(body)))?;
        send_http1(stream, request).await
    }

    /// Sends a GET request with this bearer token on a new connection.
    pub async fn get(&self, address: &str, path: &str, token: Option<&str>) -> anyhow::Result<Answer> {
        let stream = self.connect(address, "http/1.1").await?;
        let mut request = Request::get(path).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        send_http1(stream, request.body(Full::new(Bytes::new()))?).await
    }

    /// Does the same as [`Self::post`], with a client that trusts the certificates of all `pairs`.
    pub async fn post_to_any(
        pairs: &[Self],
        address: &str,
        protocol: &str,
        path: &str,
        body: String,
    ) -> anyhow::Result<Answer> {
        let stream = Self::connect_to_any(pairs, address, protocol).await?;
        let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        anyhow::ensure!(agreed.as_deref() == Some(protocol.as_bytes()), "agreed on {agreed:?}");
        let request = Request::post(format!("https://localhost{path}")).header("host", "localhost");
        let request = request.body(Full::new(Bytes::from(body)))?;
        let stream = TokioIo::new(stream);
        let response = if protocol == "h2" {
            let (mut sender, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(driver);
            sender.send_request(request).await?
        } else {
            let (mut sender, driver) = hyper::client::conn::http1::handshake(stream).await?;
            tokio::spawn(driver);
            sender.send_request(request).await?
        };
        read_answer(response).await
    }
}

async fn send_http1(stream: TlsStream<TcpStream>, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    read_answer(sender.send_request(request).await?).await
}

pub fn replace(path: &Path, content: &str) {
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, content).unwrap();
    std::fs::rename(temporary, path).unwrap();
}
