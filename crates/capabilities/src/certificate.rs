//! The capability `crypto/v1/is_certificate_trusted`: verifies that a certificate chains up to a trusted root.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use serde_json::json;
use webpki::{EndEntityCert, Error, ExtendedKeyUsageValidator, KeyPurposeIdIter};

use crate::error::HostCallError;
use crate::requests::{self, Certificate, CertificateTrustRequest, Encoding};

/// The maximum number of certificates in a chain.
const MAX_CHAIN: usize = 16;

pub(crate) async fn answer(call: &str, payload: &[u8]) -> Result<Vec<u8>, HostCallError> {
    let request: CertificateTrustRequest = requests::read(call, payload)?;
    // Signature checks are CPU-bound.
    let checking = tokio::task::spawn_blocking(move || untrusted_reason(&request));
    let checked =
        checking.await.map_err(|stopped| HostCallError::Certificate(format!("the check was aborted: {stopped}")))?;
    let reason = checked?;
    let (trusted, reason) = (reason.is_none(), reason.unwrap_or_default());
    Ok(json!({"trusted": trusted, "reason": reason}).to_string().into_bytes())
}

/// Returns the reason why the certificate is not trusted; `None` if it is trusted. The last certificate of the chain is the
/// root, and the others are intermediates. Without a chain, Mozilla's roots are trusted. All certificates must be valid at the
/// time `not_after`; `None` means now.
fn untrusted_reason(request: &CertificateTrustRequest) -> Result<Option<String>, HostCallError> {
    let leaf = der("cert", &request.cert)?;
    let leaf = EndEntityCert::try_from(&leaf)
        .map_err(|error| HostCallError::Certificate(format!("cert: is not a usable certificate: {error}")))?;
    let chain = request.cert_chain.as_deref().unwrap_or_default();
    if chain.len() > MAX_CHAIN {
        return Err(HostCallError::Certificate(format!("cert_chain: has more than {MAX_CHAIN} certificates")));
    }
    let name = |index: usize| format!("cert_chain[{index}]");
    let chain = chain.iter().enumerate().map(|(index, it)| der(&name(index), it)).collect::<Result<Vec<_>, _>>()?;
    let (roots, intermediates) = match chain.split_last() {
        Some((root, intermediates)) => (vec![anchor(&name(intermediates.len()), root)?], intermediates),
        // A root that webpki cannot parse is skipped.
        None => (
            webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().filter_map(|root| anchor("", root).ok()).collect(),
            &[][..],
        ),
    };
    let time = time(request.not_after.as_deref())?;
    let checked =
        leaf.verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &roots, intermediates, time, AnyUsage, None, None);
    Ok(checked.err().map(|error| match error {
        Error::CertExpired { .. } => "a certificate of the chain has expired".to_owned(),
        Error::CertNotValidYet { .. } => "a certificate of the chain is not valid yet".to_owned(),
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => {
            "the chain does not lead from the certificate to its root".to_owned()
        }
        error => error.to_string(),
    }))
}

/// Accepts a certificate with any extended key usage: the capability checks only the chain.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        Ok(())
    }
}

fn anchor<'a>(name: &str, root: &'a CertificateDer<'a>) -> Result<TrustAnchor<'a>, HostCallError> {
    webpki::anchor_from_trusted_cert(root)
        .map_err(|error| HostCallError::Certificate(format!("{name}: is not a CA certificate: {error}")))
}

fn der<'a>(name: &str, certificate: &'a Certificate) -> Result<CertificateDer<'a>, HostCallError> {
    match certificate.encoding {
        Encoding::Der => Ok(CertificateDer::from_slice(&certificate.data)),
        Encoding::Pem => CertificateDer::from_pem_slice(&certificate.data)
            .map_err(|error| HostCallError::Certificate(format!("{name}: is not a PEM certificate: {error}"))),
    }
}

fn time(text: Option<&str>) -> Result<UnixTime, HostCallError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(UnixTime::now()) };
    let error = || HostCallError::Certificate(format!("not_after: {text:?} is not an RFC 3339 time"));
    let time: jiff::Timestamp = text.parse().map_err(|_| error())?;
    let seconds = u64::try_from(time.as_second()).map_err(|_| error())?;
    Ok(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use serde_json::Value;

    struct Chain {
        leaf: String,
        intermediate: String,
        root: String,
    }

    /// Returns a root (valid from 2020 to 2040), an intermediate (2022 to 2032) and a leaf (2024 to 2027).
    fn chain() -> Chain {
        let parameters = |name: &str, from: i32, to: i32, is_ca: bool| {
            let mut parameters = CertificateParams::new([format!("{name}.example.com")]).unwrap();
            parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
            parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(to, 1, 1);
            if is_ca {
                parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            parameters
        };
        let key = || KeyPair::generate().unwrap();
        let root = CertifiedIssuer::self_signed(parameters("root", 2020, 2040, true), key()).unwrap();
        let intermediate =
            CertifiedIssuer::signed_by(parameters("intermediate", 2022, 2032, true), key(), &root).unwrap();
        let leaf = parameters("leaf", 2024, 2027, false).signed_by(&key(), &intermediate).unwrap();
        Chain { leaf: leaf.pem(), intermediate: intermediate.pem(), root: root.pem() }
    }

    async fn ask(leaf: &str, chain: Option<&[&str]>, not_after: Option<&str>) -> Result<(bool, String), HostCallError> {
        let pem = |text: &str| json!({"encoding": "Pem", "data": text.as_bytes()});
        let chain = chain.map(|chain| chain.iter().map(|it| pem(it)).collect::<Vec<_>>());
        let request = json!({"cert": pem(leaf), "cert_chain": chain, "not_after": not_after});
        let answer = answer("crypto/v1/is_certificate_trusted", request.to_string().as_bytes()).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        Ok((answer["trusted"].as_bool().unwrap(), answer["reason"].as_str().unwrap().to_owned()))
    }

    #[tokio::test]
    async fn a_certificate_is_trusted_if_its_chain_leads_to_the_root() {
        let (own, other) = (chain(), chain());
        let at = Some("2026-06-01T00:00:00Z");
        let full_chain = [own.intermediate.as_str(), own.root.as_str()];
        for (chain, time, wanted) in [
            (Some(&full_chain[..]), at, ""),
            (Some(&full_chain[..1]), at, ""),
            (Some(&full_chain[..]), Some("2028-01-01T00:00:00+02:00"), "expired"),
            (Some(&full_chain[..]), Some("2023-01-01T00:00:00Z"), "not valid yet"),
            (Some(&full_chain[1..]), at, "does not lead"),
            // The root has the same name, but another key.
            (Some(&[own.intermediate.as_str(), other.root.as_str()]), at, "does not lead"),
            (None, at, "does not lead"),
            (Some(&[]), at, "does not lead"),
        ] {
            let (is_trusted, reason) = ask(&own.leaf, chain, time).await.unwrap();
            let is_as_expected = if wanted.is_empty() { is_trusted } else { !is_trusted && reason.contains(wanted) };
            assert!(is_as_expected, "{time:?} {wanted:?}: {is_trusted} {reason}");
        }
    }

    #[tokio::test]
    async fn a_malformed_certificate_or_time_is_an_error() {
        let own = chain();
        for (leaf, chain, time, wanted) in [
            ("nothing", &own.root, None, "cert: "),
            (&*own.leaf, &"nothing".to_owned(), None, "cert_chain[0]: "),
            (&*own.leaf, &own.root, Some("soon"), "not_after: "),
        ] {
            let error = ask(leaf, Some(&[chain]), time).await.unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
