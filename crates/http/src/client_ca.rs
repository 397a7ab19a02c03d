//! The certificate authorities of client certificates, which can be replaced while connections are open.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

/// The error of certificate authorities that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientCaError {
    #[error("the certificates are not valid PEM: {0}")]
    Pem(rustls::pki_types::pem::Error),
    #[error("the file holds no certificate")]
    Missing,
    #[error("a certificate cannot be used as a certificate authority: {0}")]
    Root(Error),
    #[error("the certificates cannot be used: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Requires that each client has a certificate of one of these authorities: a handshake without one fails.
#[derive(Debug)]
pub struct ClientCa(ArcSwap<Arc<dyn ClientCertVerifier>>);

impl ClientCa {
    /// Reads the certificates of the authorities.
    ///
    /// # Errors
    /// Returns an error if `pem` is not PEM, has no certificate, or has one that is not of an authority.
    pub fn new(pem: &[u8]) -> Result<Self, ClientCaError> {
        Ok(Self(ArcSwap::from_pointee(verifier(pem)?)))
    }

    /// Replaces the authorities for new handshakes. After an error the old authorities stay.
    ///
    /// # Errors
    /// Returns the errors of [`ClientCa::new`].
    pub fn replace(&self, pem: &[u8]) -> Result<(), ClientCaError> {
        self.0.store(Arc::new(verifier(pem)?));
        Ok(())
    }
}

fn verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ClientCaError> {
    let certificates =
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(ClientCaError::Pem)?;
    if certificates.is_empty() {
        return Err(ClientCaError::Missing);
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(ClientCaError::Root)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

impl ClientCertVerifier for ClientCa {
    /// Returns no names of authorities, because they may be replaced. A client then sends the certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.load().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_authority_is_refused_and_the_old_authorities_stay() {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let authorities = ClientCa::new(pem.as_bytes()).unwrap();
        let before = authorities.0.load_full();
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, expected) in
            [("", "holds no certificate"), ("what?", "holds no certificate"), (garbage, "cannot be used")]
        {
            let error = authorities.replace(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(Arc::ptr_eq(&before, &authorities.0.load_full()), "{text:?}");
        }
        authorities.replace(pem.as_bytes()).unwrap();
        assert!(!Arc::ptr_eq(&before, &authorities.0.load_full()));
    }
}
