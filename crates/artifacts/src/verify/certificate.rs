//! Signatures with a configured certificate, which count while the certificate is valid.

use std::fmt;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use sigstore_verify::VerificationPolicy;
use sigstore_verify::crypto::parse_certificate_info;
use sigstore_verify::types::DerCertificate;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::key::{KeyError, PublicKey};
use super::root::TrustRoot;
use super::signature::Signature;
use crate::digest::Digest;

/// The OID id-kp-codeSigning, 1.3.6.1.5.5.7.3.3.
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// A configured certificate of a signer, and the conditions for its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningCertificate {
    certificate: CertificateDer<'static>,
    key: PublicKey,
    valid: (Timestamp, Timestamp),
    /// The chain of the certificate. Its last item is the trusted CA; if it is empty, the certificate itself is trusted.
    chain: Vec<CertificateDer<'static>>,
    /// True if a transparency log must prove the time of the signature. Otherwise the certificate must be valid now.
    pub(super) require_log: bool,
}

impl SigningCertificate {
    /// Parses a certificate and its chain in PEM. The last item of the chain is the trusted CA.
    ///
    /// # Errors
    /// Returns an error if one of them is not a certificate, or if the key type of the certificate is not supported.
    pub fn from_pem(certificate: &str, chain: &[String], require_log: bool) -> Result<Self, KeyError> {
        let chain: Vec<&[u8]> = chain.iter().map(String::as_bytes).collect();
        Self::parse(certificate.as_bytes(), &chain, require_log)
    }

    /// Parses a certificate and its chain in PEM or DER. The last item of the chain is the trusted CA.
    ///
    /// # Errors
    /// Returns the errors of [`SigningCertificate::from_pem`].
    pub fn parse(certificate: &[u8], chain: &[&[u8]], require_log: bool) -> Result<Self, KeyError> {
        let certificate = read(certificate)?;
        let chain = chain.iter().map(|one| read(one)).collect::<Result<Vec<_>, _>>()?;
        let info = parse_certificate_info(&DerCertificate::from_bytes(&certificate)).map_err(KeyError::of)?;
        let key = PublicKey::from_der(info.public_key)?;
        Ok(Self { certificate, key, valid: (info.not_before, info.not_after), chain, require_log })
    }

    pub(super) fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Returns true if the key of this certificate made the signature while the certificate was valid.
    pub(super) fn has_signed(&self, signature: &Signature<'_>, root: Option<&TrustRoot>) -> bool {
        let times = if self.require_log { self.logged_times(signature, root) } else { Some(vec![Timestamp::now()]) };
        signature.is_signed_with(&self.key)
            && times.is_some_and(|times| !times.is_empty() && times.iter().all(|time| self.is_valid(*time)))
    }

    /// Returns the times at which trusted logs recorded the signature; `None` if no trusted log has an entry.
    fn logged_times(&self, signature: &Signature<'_>, root: Option<&TrustRoot>) -> Option<Vec<Timestamp>> {
        // `is_valid` checks the chain of this certificate. The CAs of the trusted root do not apply.
        let policy = VerificationPolicy::any_identity().skip_certificate_chain();
        let verifier = &root?.verifier;
        let result = match signature {
            Signature::Legacy(legacy) => {
                let bundle = legacy.to_bundle(std::slice::from_ref(&self.certificate)).ok()?;
                verifier.verify(legacy.payload, &bundle, &policy).ok()?
            }
            Signature::Bundle(bundle) => {
                let has_this_certificate =
                    bundle.bundle.signing_certificate().map(DerCertificate::as_bytes) == Some(&self.certificate);
                verifier.verify(bundle.artifact(), &bundle.bundle, &policy).ok().filter(|_| has_this_certificate)?
            }
        };
        result.tlog_verified().then(|| result.verified_timestamps().to_vec())
    }

    fn is_valid(&self, time: Timestamp) -> bool {
        let (from, to) = self.valid;
        (from..=to).contains(&time) && self.has_valid_chain(time).unwrap_or_default()
    }

    /// Returns whether the chain is valid at `time`; `None` if a certificate or the time cannot be used.
    fn has_valid_chain(&self, time: Timestamp) -> Option<bool> {
        let Some((authority, between)) = self.chain.split_last() else { return Some(true) };
        let seconds = u64::try_from(time.as_second()).ok()?;
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let anchors = [anchor_from_trusted_cert(authority).ok()?];
        let certificate = EndEntityCert::try_from(&self.certificate).ok()?;
        let usage = KeyUsage::required_if_present(CODE_SIGNING);
        let path =
            certificate.verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &anchors, between, time, usage, None, None);
        Some(path.is_ok())
    }
}

fn read(bytes: &[u8]) -> Result<CertificateDer<'static>, KeyError> {
    if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
        CertificateDer::from_pem_slice(bytes).map_err(KeyError::of)
    } else {
        // The parse detects bytes that are not a certificate.
        parse_certificate_info(&DerCertificate::from_bytes(bytes)).map_err(KeyError::of)?;
        Ok(CertificateDer::from(bytes.to_vec()))
    }
}

impl fmt::Display for SigningCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Digest::of(&self.certificate).to_string())
    }
}
