//! The certificate of a server, which can be replaced while connections are open. A certificate that is not valid now
//! never replaces a valid one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::Validity;
use x509_parser::time::ASN1Time;

use crate::client::AcceptAnyClient;
use crate::client_ca::ClientCa;

/// The error of a certificate and key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is not valid PEM: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    #[error("the certificate file holds no certificate")]
    Missing,
    #[error("the private key is not valid PEM: {0}")]
    Key(rustls::pki_types::pem::Error),
    #[error("the certificate is not a valid X.509 certificate: {0}")]
    X509(String),
    #[error("the certificate and the private key do not work together: {0}")]
    Pair(rustls::Error),
    #[error(transparent)]
    Validity(#[from] ValidityError),
}

/// The reason why a certificate is not valid now, by the clock of this machine. Clients refuse such a certificate, if
/// their clocks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidityError {
    #[error(
        "the certificate has expired: its notAfter is {0}. Renew the certificate, or correct the clock of this machine"
    )]
    Expired(ASN1Time),
    #[error(
        "the certificate is not valid yet: its notBefore is {0}. Issue another certificate, or correct the clock of \
         this machine"
    )]
    NotYetValid(ASN1Time),
}

impl ValidityError {
    /// Returns the error of a certificate at a time; `None` if the certificate is valid then.
    fn at(now: ASN1Time, Validity { not_before, not_after }: &Validity) -> Option<Self> {
        if now > *not_after {
            return Some(Self::Expired(*not_after));
        }
        (now < *not_before).then_some(Self::NotYetValid(*not_before))
    }
}

/// The certificate of a server. It is empty at first: handshakes fail until [`Certificate::replace`] succeeds.
#[derive(Debug, Default)]
pub struct Certificate(ArcSwapOption<Loaded>);

/// A certificate and key that new handshakes use.
#[derive(Debug)]
struct Loaded {
    pair: Arc<CertifiedKey>,
    validity: Validity,
}

impl Certificate {
    /// Replaces the certificate and key for new handshakes. After an error the old pair stays.
    ///
    /// A certificate that has expired, or is not valid yet, is loaded if no valid certificate is loaded: without it, no
    /// handshake would succeed at all, and a server whose clock is wrong would never start. See
    /// [`Certificate::validity_error`].
    ///
    /// # Errors
    /// Returns an error if `chain` or `key` is not PEM, if the key does not belong to the certificate, or if the
    /// certificate is not valid now and the loaded one is.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        self.replace_at(ASN1Time::now(), chain, key)
    }

    fn replace_at(&self, now: ASN1Time, chain: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(CertificateError::Certificate)?;
        let validity = validity(chain.first().ok_or(CertificateError::Missing)?)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Key)?;
        let provider = aws_lc_rs::default_provider();
        let pair = CertifiedKey::from_der(chain, key, &provider).map_err(CertificateError::Pair)?;
        let is_valid_loaded = self.0.load_full().is_some_and(|loaded| loaded.validity.is_valid_at(now));
        if is_valid_loaded && let Some(error) = ValidityError::at(now, &validity) {
            return Err(error.into());
        }
        self.0.store(Some(Arc::new(Loaded { pair: Arc::new(pair), validity })));
        Ok(())
    }

    /// Returns true if a certificate was loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.0.load().is_some()
    }

    /// Returns the reason why the loaded certificate is not valid now; `None` if it is valid, or none is loaded.
    #[must_use]
    pub fn validity_error(&self) -> Option<ValidityError> {
        self.0.load_full().and_then(|loaded| ValidityError::at(ASN1Time::now(), &loaded.validity))
    }

    /// Returns a TLS acceptor that prefers HTTP/2.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library does not support TLS 1.2 and 1.3.
    pub fn acceptor(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        Ok(TlsAcceptor::from(Arc::new(self.config(Arc::new(NoClientAuth))?)))
    }

    /// Returns a TLS acceptor that requires a client certificate of one of these authorities.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library does not support TLS 1.2 and 1.3.
    pub fn acceptor_for_clients_of(self: Arc<Self>, authorities: Arc<ClientCa>) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = self.config(authorities)?;
        // A resumed session would not verify the client certificate again, although the authorities may have been replaced.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Returns a TLS acceptor that also requests client certificates: see
    /// [`ClientCertificates`](crate::ClientCertificates).
    ///
    /// # Errors
    /// Returns an error if the cryptographic library does not support TLS 1.2 and 1.3.
    pub fn acceptor_with_client_certificates(self: Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        Ok(TlsAcceptor::from(Arc::new(self.config(Arc::new(AcceptAnyClient { algorithms }))?)))
    }

    fn config(self: Arc<Self>, clients: Arc<dyn ClientCertVerifier>) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full().map(|loaded| Arc::clone(&loaded.pair))
    }
}

fn validity(certificate: &CertificateDer<'_>) -> Result<Validity, CertificateError> {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    let (_, certificate) = parsed.map_err(|error| CertificateError::X509(error.to_string()))?;
    Ok(certificate.validity().clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: i64) -> ASN1Time {
        ASN1Time::from_timestamp(second).unwrap()
    }

    /// A certificate that is valid between these seconds since the Unix epoch, and its key, in PEM.
    fn pair(from: u64, to: u64) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + Duration::from_secs(from);
        params.not_after = epoch + Duration::from_secs(to);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    /// Returns the validity of the loaded certificate, in seconds since the Unix epoch.
    fn loaded(certificate: &Certificate) -> Option<(i64, i64)> {
        let loaded = certificate.0.load_full()?;
        Some((loaded.validity.not_before.timestamp(), loaded.validity.not_after.timestamp()))
    }

    #[test]
    fn a_certificate_that_is_not_valid_now_never_replaces_a_valid_one() {
        let expired = Some(ValidityError::Expired(at(2_000)));
        let early = Some(ValidityError::NotYetValid(at(3_001)));
        // The validity of the loaded certificate and of the offered one, and the error at second 3000.
        for (old, new, refused) in [
            (None, (1_000, 4_000), None),
            (None, (1_000, 2_000), None),
            (None, (3_001, 4_000), None),
            (Some((1_000, 4_000)), (1_000, 2_000), expired),
            (Some((1_000, 4_000)), (3_001, 4_000), early),
            (Some((1_000, 4_000)), (2_000, 5_000), None),
            // The ends of a validity belong to it (RFC 5280, section 4.1.2.5).
            (Some((1_000, 4_000)), (3_000, 5_000), None),
            (Some((1_000, 4_000)), (1_000, 3_000), None),
            (Some((1_000, 3_000)), (1_000, 2_000), expired),
            (Some((1_000, 2_999)), (1_000, 2_000), None),
            (Some((1_000, 2_999)), (3_001, 4_000), None),
            (Some((3_001, 4_000)), (1_000, 2_000), None),
            (Some((1_000, 2_999)), (2_000, 5_000), None),
        ] {
            let certificate = Certificate::default();
            let replace = |now, (from, to)| {
                let (chain, key) = pair(from, to);
                certificate.replace_at(at(now), chain.as_bytes(), key.as_bytes())
            };
            if let Some(old) = old {
                replace(2_500, old).unwrap();
            }
            let refusal = match replace(3_000, new) {
                Ok(()) => None,
                Err(CertificateError::Validity(error)) => Some(error),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(refusal, refused, "{old:?} {new:?}");
            let (from, to) = if refused.is_none() { new } else { old.unwrap() };
            let expected: (i64, i64) = (from.try_into().unwrap(), to.try_into().unwrap());
            assert_eq!(loaded(&certificate), Some(expected), "{old:?} {new:?}");
        }
    }

    #[test]
    fn the_messages_name_the_time_and_the_remedy() {
        let expired = ValidityError::Expired(at(2_000)).to_string();
        assert!(expired.contains("its notAfter is Jan  1 00:33:20 1970 +00:00. Renew the certificate"), "{expired}");
        let early = ValidityError::NotYetValid(at(2_000)).to_string();
        assert!(early.contains("its notBefore is Jan  1 00:33:20 1970 +00:00."), "{early}");
        assert!(early.ends_with("or correct the clock of this machine"), "{early}");
    }

    #[test]
    fn the_loaded_certificate_is_checked_against_the_clock() {
        let certificate = Certificate::default();
        assert_eq!((certificate.is_loaded(), certificate.validity_error()), (false, None));
        let (chain, key) = pair(1_000, 2_000);
        certificate.replace(chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(certificate.validity_error(), Some(ValidityError::Expired(at(2_000))));
        // Until the year 2106.
        let (chain, key) = pair(1_000, u64::from(u32::MAX));
        certificate.replace(chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!((certificate.is_loaded(), certificate.validity_error()), (true, None));
    }

    #[test]
    fn a_file_without_a_certificate_is_refused() {
        let (chain, key) = pair(1_000, u64::from(u32::MAX));
        let (_, other) = pair(1_000, 2_000);
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (chain, key, expected) in [
            ("", key.as_str(), "holds no certificate"),
            (garbage, key.as_str(), "not a valid X.509 certificate"),
            (chain.as_str(), "no key", "the private key is not valid PEM"),
            (chain.as_str(), other.as_str(), "do not work together"),
        ] {
            let certificate = Certificate::default();
            let error = certificate.replace(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected) && !certificate.is_loaded(), "{error}");
        }
    }
}
