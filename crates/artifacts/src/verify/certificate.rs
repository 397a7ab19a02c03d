//! A certificate that is known beforehand: who has its key has signed, while it was valid.

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
use super::signed::Signed;
use crate::digest::Digest;

/// id-kp-codeSigning, 1.3.6.1.5.5.7.3.3.
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// A certificate, and what makes it count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningCertificate {
    certificate: CertificateDer<'static>,
    key: PublicKey,
    valid: (Timestamp, Timestamp),
    /// Up to the authority that is trusted, which is the last. Without any the certificate itself is.
    chain: Vec<CertificateDer<'static>>,
    /// Whether a transparency log must show when it was signed. Else the certificate must be valid now.
    pub(super) require_log: bool,
}

impl SigningCertificate {
    /// Reads a certificate and its chain, each in PEM; the authority that is trusted is the last.
    ///
    /// # Errors
    /// When one of them is no certificate, or its key is of a kind that is not understood.
    pub fn from_pem(certificate: &str, chain: &[String], require_log: bool) -> Result<Self, KeyError> {
        let chain: Vec<&[u8]> = chain.iter().map(String::as_bytes).collect();
        Self::parse(certificate.as_bytes(), &chain, require_log)
    }

    /// The same of certificates in PEM or DER.
    ///
    /// # Errors
    /// As [`SigningCertificate::from_pem`].
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

    pub(super) fn has_signed(&self, signed: &Signed<'_>, root: Option<&TrustRoot>) -> bool {
        let times = if self.require_log { self.logged(signed, root) } else { Some(vec![Timestamp::now()]) };
        signed.is_signed_with(&self.key)
            && times.is_some_and(|times| !times.is_empty() && times.iter().all(|time| self.is_valid(*time)))
    }

    /// When a log saw the signature; none if no log that is trusted did.
    fn logged(&self, signed: &Signed<'_>, root: Option<&TrustRoot>) -> Option<Vec<Timestamp>> {
        // Who vouches for the certificate is checked here, and not by the root's authorities.
        let policy = VerificationPolicy::any_identity().skip_certificate_chain();
        let library = &root?.verifier;
        let verified = match signed {
            Signed::Legacy(legacy) => {
                let bundle = legacy.to_bundle(std::slice::from_ref(&self.certificate)).ok()?;
                library.verify(legacy.payload, &bundle, &policy).ok()?
            }
            Signed::Bundle(bundle) => {
                let is_it =
                    bundle.bundle.signing_certificate().map(DerCertificate::as_bytes) == Some(&self.certificate);
                library.verify(bundle.artifact(), &bundle.bundle, &policy).ok().filter(|_| is_it)?
            }
        };
        verified.tlog_verified().then(|| verified.verified_timestamps().to_vec())
    }

    fn is_valid(&self, time: Timestamp) -> bool {
        let (from, to) = self.valid;
        (from..=to).contains(&time) && self.is_vouched_for(time).unwrap_or_default()
    }

    fn is_vouched_for(&self, time: Timestamp) -> Option<bool> {
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
        // That it is one shows when it is read.
        parse_certificate_info(&DerCertificate::from_bytes(bytes)).map_err(KeyError::of)?;
        Ok(CertificateDer::from(bytes.to_vec()))
    }
}

impl fmt::Display for SigningCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Digest::of(&self.certificate).to_string())
    }
}
