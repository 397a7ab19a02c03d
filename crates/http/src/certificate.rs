//! The certificate of a server: another one can take its place while connections stand.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::client::AnyClient;

/// A certificate and a key that do not work.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is no PEM: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    #[error("it holds no certificate")]
    Missing,
    #[error("the key is no PEM: {0}")]
    Key(rustls::pki_types::pem::Error),
    #[error("certificate and key do not work together: {0}")]
    Pair(rustls::Error),
}

/// What a server shows to its clients. Empty at first: handshakes fail until there is one.
#[derive(Debug, Default)]
pub struct Certificate(ArcSwapOption<CertifiedKey>);

impl Certificate {
    /// Puts this pair in place, for handshakes from now on. One that does not work changes nothing.
    ///
    /// # Errors
    /// When it is no chain and key in PEM, or the two do not belong together.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(CertificateError::Certificate)?;
        if chain.is_empty() {
            return Err(CertificateError::Missing);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Key)?;
        let provider = aws_lc_rs::default_provider();
        let pair = CertifiedKey::from_der(chain, key, &provider).map_err(CertificateError::Pair)?;
        self.0.store(Some(Arc::new(pair)));
        Ok(())
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.load().is_some()
    }

    /// Accepts connections under TLS, HTTP/2 first.
    ///
    /// # Errors
    /// When the cryptographic library has no TLS 1.2 and 1.3.
    pub fn acceptor(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        self.accept_from(Arc::new(NoClientAuth))
    }

    /// The same, and asks clients for certificates: see [`ClientCertificates`](crate::ClientCertificates).
    ///
    /// # Errors
    /// When the cryptographic library has no TLS 1.2 and 1.3.
    pub fn asking_acceptor(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        self.accept_from(Arc::new(AnyClient { algorithms }))
    }

    fn accept_from(self: Arc<Self>, clients: Arc<dyn ClientCertVerifier>) -> Result<TlsAcceptor, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
