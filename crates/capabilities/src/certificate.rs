//! The capability `crypto/v1/is_certificate_trusted`: whether a chain of certificates leads from one to its root.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use serde_json::json;
use webpki::{EndEntityCert, Error, ExtendedKeyUsageValidator, KeyPurposeIdIter};

use crate::error::AskError;
use crate::requests::{self, Certificate, CertificateTrust, Encoding};

/// The most certificates of a chain.
const MAX_CHAIN: usize = 16;

pub(crate) async fn answer(call: &str, payload: &[u8]) -> Result<Vec<u8>, AskError> {
    let request: CertificateTrust = requests::read(call, payload)?;
    // Checking signatures is work.
    let checking = tokio::task::spawn_blocking(move || distrust(&request));
    let checked = checking.await.map_err(|stopped| AskError::Certificate(format!("checking stopped: {stopped}")))?;
    let reason = checked?;
    let (trusted, reason) = (reason.is_none(), reason.unwrap_or_default());
    Ok(json!({"trusted": trusted, "reason": reason}).to_string().into_bytes())
}

/// Why a certificate is not trusted; none if it is. The last one of the chain is the root, those before it lead to it; without
/// a chain the roots are Mozilla's. `not_after` is the time at which all must be valid; none is now.
fn distrust(request: &CertificateTrust) -> Result<Option<String>, AskError> {
    let leaf = der("cert", &request.cert)?;
    let leaf = EndEntityCert::try_from(&leaf)
        .map_err(|error| AskError::Certificate(format!("cert: is no certificate that can be used: {error}")))?;
    let chain = request.cert_chain.as_deref().unwrap_or_default();
    if chain.len() > MAX_CHAIN {
        return Err(AskError::Certificate(format!("cert_chain: has more than {MAX_CHAIN} certificates")));
    }
    let name = |index: usize| format!("cert_chain[{index}]");
    let chain = chain.iter().enumerate().map(|(index, it)| der(&name(index), it)).collect::<Result<Vec<_>, _>>()?;
    let (roots, between) = match chain.split_last() {
        Some((root, between)) => (vec![anchor(&name(between.len()), root)?], between),
        // One of them that this library does not read vouches for nothing.
        None => (
            webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().filter_map(|root| anchor("", root).ok()).collect(),
            &[][..],
        ),
    };
    let time = time(request.not_after.as_deref())?;
    let checked = leaf.verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &roots, between, time, AnyUsage, None, None);
    Ok(checked.err().map(|error| match error {
        Error::CertExpired { .. } => "a certificate of the chain has expired".to_owned(),
        Error::CertNotValidYet { .. } => "a certificate of the chain is not valid yet".to_owned(),
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => {
            "the chain does not lead from the certificate to its root".to_owned()
        }
        error => error.to_string(),
    }))
}

/// What the certificate is for is nobody's business here.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        Ok(())
    }
}

fn anchor<'a>(name: &str, root: &'a CertificateDer<'a>) -> Result<TrustAnchor<'a>, AskError> {
    webpki::anchor_from_trusted_cert(root)
        .map_err(|error| AskError::Certificate(format!("{name}: is no certificate of an authority: {error}")))
}

fn der<'a>(name: &str, certificate: &'a Certificate) -> Result<CertificateDer<'a>, AskError> {
    match certificate.encoding {
        Encoding::Der => Ok(CertificateDer::from_slice(&certificate.data)),
        Encoding::Pem => CertificateDer::from_pem_slice(&certificate.data)
            .map_err(|error| AskError::Certificate(format!("{name}: is no certificate in PEM: {error}"))),
    }
}

fn time(text: Option<&str>) -> Result<UnixTime, AskError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(UnixTime::now()) };
    let error = || AskError::Certificate(format!("not_after: {text:?} is no time of RFC 3339"));
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
        between: String,
        root: String,
    }

    /// Root (2020 to 2040), one between (2022 to 2032), leaf (2024 to 2027).
    fn chain() -> Chain {
        let parameters = |name: &str, from: i32, to: i32, is_authority: bool| {
            let mut parameters = CertificateParams::new([format!("{name}.example.com")]).unwrap();
            parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
            parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(to, 1, 1);
            if is_authority {
                parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            parameters
        };
        let key = || KeyPair::generate().unwrap();
        let root = CertifiedIssuer::self_signed(parameters("root", 2020, 2040, true), key()).unwrap();
        let between = CertifiedIssuer::signed_by(parameters("between", 2022, 2032, true), key(), &root).unwrap();
        let leaf = parameters("leaf", 2024, 2027, false).signed_by(&key(), &between).unwrap();
        Chain { leaf: leaf.pem(), between: between.pem(), root: root.pem() }
    }

    async fn ask(leaf: &str, chain: Option<&[&str]>, not_after: Option<&str>) -> Result<(bool, String), AskError> {
        let pem = |text: &str| json!({"encoding": "Pem", "data": text.as_bytes()});
        let chain = chain.map(|chain| chain.iter().map(|it| pem(it)).collect::<Vec<_>>());
        let request = json!({"cert": pem(leaf), "cert_chain": chain, "not_after": not_after});
        let answer = answer("crypto/v1/is_certificate_trusted", request.to_string().as_bytes()).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        Ok((answer["trusted"].as_bool().unwrap(), answer["reason"].as_str().unwrap().to_owned()))
    }

    #[tokio::test]
    async fn a_chain_is_followed_to_its_root() {
        let (own, other) = (chain(), chain());
        let at = Some("2026-06-01T00:00:00Z");
        let whole = [own.between.as_str(), own.root.as_str()];
        for (chain, time, wanted) in [
            (Some(&whole[..]), at, ""),
            (Some(&whole[..1]), at, ""),
            (Some(&whole[..]), Some("2028-01-01T00:00:00+02:00"), "expired"),
            (Some(&whole[..]), Some("2023-01-01T00:00:00Z"), "not valid yet"),
            (Some(&whole[1..]), at, "does not lead"),
            // One name and two keys.
            (Some(&[own.between.as_str(), other.root.as_str()]), at, "does not lead"),
            (None, at, "does not lead"),
            (Some(&[]), at, "does not lead"),
        ] {
            let (is_trusted, reason) = ask(&own.leaf, chain, time).await.unwrap();
            let is_as_wanted = if wanted.is_empty() { is_trusted } else { !is_trusted && reason.contains(wanted) };
            assert!(is_as_wanted, "{time:?} {wanted:?}: {is_trusted} {reason}");
        }
    }

    #[tokio::test]
    async fn what_is_no_certificate_or_time_is_an_error() {
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
