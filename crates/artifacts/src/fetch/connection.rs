//! Connections to servers: resolves the name, checks the addresses, connects, and verifies the certificate.
//!
//! The connection uses the addresses that were checked, so that DNS rebinding cannot replace them.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use super::access::TenantLimits;
use super::address;
use super::error::ConnectError;
use super::proxy::Proxies;
use super::sources::Sources;
use crate::reference::Host;

/// The time limit for a connection, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for each address of a server.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

/// The trust settings: the certificate authorities of the system, and the settings of the sources.
pub(super) struct Trust {
    pub sources: Sources,
    proxies: Proxies,
    /// The limits of a fetch for a namespaced policy; `None` if there are none.
    tenant: Option<TenantLimits>,
    system: RootCertStore,
}

impl Trust {
    /// Reads the current certificate authorities of the system. Blocks on the disk.
    pub(super) fn load(sources: Sources, proxies: Proxies, tenant: Option<TenantLimits>) -> Self {
        let mut system = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in found.errors {
            tracing::warn!(%error, "some of the system's certificate authorities cannot be read");
        }
        // Malformed certificates of the system are skipped, because Proviso cannot repair them.
        system.add_parsable_certificates(found.certs);
        Self { sources, proxies, tenant, system }
    }

    fn check_addresses(&self, host: &Host, mut addresses: impl Iterator<Item = IpAddr>) -> Result<(), ConnectError> {
        let is_configured = self.sources.has(host);
        let is_allowed = |ip: IpAddr| {
            address::is_allowed(ip) && self.tenant.as_ref().is_none_or(|tenant| tenant.allow(host, ip, is_configured))
        };
        // One refused address is enough, because no registry has such an address by mistake.
        addresses.find(|ip| !is_allowed(*ip)).map_or(Ok(()), |refused| Err(ConnectError::Address(refused)))
    }

    fn config(&self, host: &Host) -> Result<ClientConfig, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let mut config = if self.sources.is_insecure(host) {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyServer(provider)))
                .with_no_client_auth()
        } else {
            let mut roots = self.system.clone();
            for certificate in self.sources.authorities(host) {
                roots.add(certificate.clone())?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("sources", &self.sources).finish_non_exhaustive()
    }
}

pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Opens a connection for requests to `url`.
pub(super) async fn open(url: &Url, host: &Host, trust: &Trust) -> Result<Sender, ConnectError> {
    tokio::time::timeout(CONNECT_TIMEOUT, async {
        // The scheme is http or https here, so that the URL has a port.
        let port = url.port_or_known_default().unwrap_or(443);
        let Some(proxy) = trust.proxies.for_url(url, host) else {
            let addresses = resolve(host, port).await?;
            trust.check_addresses(host, addresses.iter().map(SocketAddr::ip))?;
            return start_http(connect(addresses).await?, url, host, trust).await;
        };
        // The proxy resolves names, and must limit their addresses. An address in the URL is checked here.
        trust.check_addresses(host, without_brackets(host).parse().into_iter())?;
        let stream = connect(resolve(&proxy.host, proxy.port).await?).await?;
        start_http(proxy.tunnel(stream, host, port).await?, url, host, trust).await
    })
    .await
    .unwrap_or(Err(ConnectError::Timeout(CONNECT_TIMEOUT)))
}

/// Starts HTTP on a stream, inside TLS if the scheme of `url` is https.
async fn start_http<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    url: &Url,
    host: &Host,
    trust: &Trust,
) -> Result<Sender, ConnectError> {
    if url.scheme() == "http" {
        return http_handshake(stream).await;
    }
    let config = trust.config(host).map_err(ConnectError::Setup)?;
    let name =
        ServerName::try_from(without_brackets(host).to_owned()).map_err(|_| ConnectError::Name(host.to_string()))?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    http_handshake(tls.map_err(ConnectError::Tls)?).await
}

/// Returns the name of a host without the brackets of an IPv6 address.
fn without_brackets(host: &Host) -> &str {
    host.name().trim_start_matches('[').trim_end_matches(']')
}

async fn resolve(host: &Host, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    tokio::net::lookup_host((without_brackets(host), port)).await.map(Iterator::collect).map_err(ConnectError::Resolve)
}

async fn connect(addresses: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A request is one small packet, which Nagle's algorithm would delay.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(ConnectError::Connect(failed))
}

async fn http_handshake(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Sender, ConnectError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(ConnectError::Http)?;
    // The task ends when the sender and the response body are dropped. Both also report its error.
    tokio::spawn(connection);
    Ok(sender)
}

/// Accepts every certificate of a server, for insecure sources.
#[derive(Debug)]
struct AcceptAnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
