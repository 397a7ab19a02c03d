//! The certificate of a server, which can be replaced while connections are open.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::client::AcceptAnyClient;

/// The error of a certificate and key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is not valid PEM: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    #[error("the certificate file holds no certificate")]
    Missing,
    #[error("the private key is not valid PEM: {0}")]
    Key(rustls::pki_types::pem::Error),
    #[error("the certificate and the private key do not work together: {0}")]
    Pair(rustls::Error),
}

/// The certificate of a server. It is empty at first: handshakes fail until [`Certificate::replace`] succeeds.
#[derive(Debug, Default)]
pub struct Certificate(ArcSwapOption<CertifiedKey>);

impl Certificate {
    /// Replaces the certificate and key for new handshakes. After an error the old pair stays.
    ///
    /// # Errors
    /// Returns an error if `chain` or `key` is not PEM, or if the key does not belong to the certificate.
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

    /// Returns true if a certificate was loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.0.load().is_some()
    }

    /// Returns a TLS acceptor that prefers HTTP/2.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library does not support TLS 1.2 and 1.3.
    pub fn acceptor(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        self.accept_from(Arc::new(NoClientAuth))
    }

    /// Returns a TLS acceptor that also requests client certificates: see
    /// [`ClientCertificates`](crate::ClientCertificates).
    ///
    /// # Errors
    /// Returns an error if the cryptographic library does not support TLS 1.2 and 1.3.
    pub fn acceptor_with_client_certificates(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        self.accept_from(Arc::new(AcceptAnyClient { algorithms }))
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
