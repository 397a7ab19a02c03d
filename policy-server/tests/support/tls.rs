//! Certificates for `localhost`, and a TLS client that trusts them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
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
        let mut roots = rustls::RootCertStore::empty();
        for pair in pairs {
            roots.add(pair.der.clone())?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        Ok(connector.connect(ServerName::try_from("localhost")?, stream).await?)
    }

    /// Sends a POST request over `http/1.1` or `h2` on a new connection.
    pub async fn post(&self, address: &str, protocol: &str, path: &str, body: String) -> anyhow::Result<Answer> {
        Self::post_to_any(std::slice::from_ref(self), address, protocol, path, body).await
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

pub fn replace(path: &Path, content: &str) {
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, content).unwrap();
    std::fs::rename(temporary, path).unwrap();
}
