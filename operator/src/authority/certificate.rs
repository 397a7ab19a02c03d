//! Certificates: made, read, and looked through for flaws. Pure but for the random keys.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, date_time_ymd,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

/// Certificates count from a little before they are made: clocks differ.
const BACKDATED: Duration = Duration::from_mins(5);

/// A certificate and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Why a certificate is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the private key cannot be read")]
    UnreadableKey,
    #[error("the private key is not the certificate's")]
    OtherKey,
    #[error("it is no authority's")]
    NoAuthority,
    #[error("it is not signed by the current authority")]
    OtherAuthority,
    #[error("it is for other names")]
    OtherNames,
    #[error("it has expired")]
    Expired,
}

/// An authority of its own.
pub(crate) fn authority(now: Timestamp, lifetime: Duration) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    // Each has another name, so that nobody takes one for the other.
    let mut params = lasting(now, now + lifetime, &format!("proviso {now:.0}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// A server's certificate for these names, of which the first is its own.
pub(crate) fn server(
    authority: &Pair,
    names: &[String],
    now: Timestamp,
    lifetime: Duration,
) -> Result<Pair, CertificateError> {
    let issuer = Issuer::new(as_issuer(&authority.certificate)?, KeyPair::from_pem(&authority.key)?);
    let expires_at = (now + lifetime).min(expires_at(&authority.certificate)?);
    if expires_at <= now {
        return Err(Flaw::Expired.into());
    }
    let key = KeyPair::generate()?;
    let mut params = lasting(now, expires_at, "policy server");
    params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    // An authority that somebody else made may write its name otherwise.
    if !is_signed_by(&certificate, &authority.certificate)? {
        return Err(Flaw::OtherAuthority.into());
    }
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// What a certificate says about who issued it: the name and the key of an authority.
fn as_issuer(authority: &str) -> Result<CertificateParams, Flaw> {
    let der = der(authority)?;
    let authority = parse(&der)?;
    let name = authority.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.ok_or(Flaw::NoAuthority)?);
    let key = authority.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    });
    params.key_identifier_method = key.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified);
    Ok(params)
}

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the authority's certificate: {0}")]
    Authority(#[from] Flaw),
}

fn lasting(from: Timestamp, to: Timestamp, name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let since_epoch = |time: Timestamp| Duration::from_secs(time.as_second().try_into().unwrap_or_default());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch(from - BACKDATED);
    params.not_after = epoch + since_epoch(to);
    params
}

/// When a certificate stops to count.
pub(crate) fn expires_at(certificate: &str) -> Result<Timestamp, Flaw> {
    let der = der(certificate)?;
    expiry(&parse(&der)?)
}

/// When a certificate was made.
pub(crate) fn issued_at(certificate: &str) -> Result<Timestamp, Flaw> {
    let der = der(certificate)?;
    let made = parse(&der)?.validity().not_before.timestamp();
    Timestamp::from_second(made).map(|made| made + BACKDATED).map_err(|_| Flaw::Unreadable)
}

/// When an authority that can sign stops to count; whether it has is another question.
pub(crate) fn check_authority(pair: &Pair) -> Result<Timestamp, Flaw> {
    let der = der(&pair.certificate)?;
    let certificate = parse(&der)?;
    check_key(&certificate, &pair.key)?;
    if certificate.is_ca() { expiry(&certificate) } else { Err(Flaw::NoAuthority) }
}

/// When a server's certificate stops to count, unless something is wrong with it already.
pub(crate) fn check_server(pair: &Pair, authority: &str, names: &[String], now: Timestamp) -> Result<Timestamp, Flaw> {
    let der = der(&pair.certificate)?;
    let certificate = parse(&der)?;
    check_key(&certificate, &pair.key)?;
    if !is_signed_by(&pair.certificate, authority)? {
        return Err(Flaw::OtherAuthority);
    }
    let found = certificate.subject_alternative_name().ok().flatten().map(|it| &it.value.general_names);
    let found: Vec<_> = found.into_iter().flatten().filter_map(dns_name).collect();
    if found != names {
        return Err(Flaw::OtherNames);
    }
    let expiry = expiry(&certificate)?;
    if now < expiry { Ok(expiry) } else { Err(Flaw::Expired) }
}

/// Whether this authority signed the certificate.
pub(crate) fn is_signed_by(certificate: &str, authority: &str) -> Result<bool, Flaw> {
    let (certificate, authority) = (der(certificate)?, der(authority)?);
    // Of any time at which the certificate counts: whether it does now is another question.
    let made = parse(&certificate)?.validity().not_before.timestamp();
    let made = UnixTime::since_unix_epoch(Duration::from_secs(made.try_into().unwrap_or_default()));
    let anchors = [anchor_from_trusted_cert(&authority).map_err(|_| Flaw::Unreadable)?];
    let certificate = EndEntityCert::try_from(&certificate).map_err(|_| Flaw::Unreadable)?;
    let usage = KeyUsage::server_auth();
    let verified = certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], made, usage, None, None);
    Ok(verified.is_ok())
}

/// Each certificate of a text that can be read, by itself.
pub(crate) fn each(certificates: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let texts = certificates.split(END).filter_map(|text| Some(format!("{}{END}\n", &text[text.find(BEGIN)?..])));
    texts.filter(|text| der(text).is_ok_and(|der| parse(&der).is_ok())).collect()
}

fn check_key(certificate: &X509Certificate<'_>, key: &str) -> Result<(), Flaw> {
    let key = KeyPair::from_pem(key).map_err(|_| Flaw::UnreadableKey)?;
    if key.subject_public_key_info() == certificate.public_key().raw { Ok(()) } else { Err(Flaw::OtherKey) }
}

fn der(certificate: &str) -> Result<CertificateDer<'static>, Flaw> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| Flaw::Unreadable)
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Flaw> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| Flaw::Unreadable)?;
    Ok(certificate)
}

fn expiry(certificate: &X509Certificate<'_>) -> Result<Timestamp, Flaw> {
    Timestamp::from_second(certificate.validity().not_after.timestamp()).map_err(|_| Flaw::Unreadable)
}

fn dns_name<'a>(name: &'a GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::DNSName(name) = name { Some(*name) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn now() -> Timestamp {
        "2026-11-21T18:00:00.5Z".parse().unwrap()
    }

    fn names() -> Vec<String> {
        ["policy-server-a.n.svc", "*.policy-server-a-replicas.n.svc"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_certificate_counts_for_its_time_and_never_longer_than_its_authority() {
        let authority = authority(now(), 3 * HOUR).unwrap();
        assert_eq!(check_authority(&authority).unwrap().as_second(), (now() + 3 * HOUR).as_second());
        for (lifetime, expected) in [(HOUR, HOUR), (9 * HOUR, 3 * HOUR)] {
            let pair = server(&authority, &names(), now(), lifetime).unwrap();
            let expiry = check_server(&pair, &authority.certificate, &names(), now()).unwrap();
            assert_eq!(expiry.as_second(), (now() + expected).as_second());
            assert_eq!(check_server(&pair, &authority.certificate, &names(), expiry), Err(Flaw::Expired));
        }
    }

    #[test]
    fn every_flaw_is_found() {
        let (ours, other) = (authority(now(), HOUR).unwrap(), authority(now(), HOUR).unwrap());
        let pair = server(&ours, &names(), now(), HOUR).unwrap();
        let with = |certificate: &str, key: &str| Pair { certificate: certificate.to_owned(), key: key.to_owned() };
        let check = |pair: &Pair| check_server(pair, &ours.certificate, &names(), now()).unwrap_err();
        assert_eq!(check(&with("", &pair.key)), Flaw::Unreadable);
        assert_eq!(check(&with(&pair.certificate[..200], &pair.key)), Flaw::Unreadable);
        assert_eq!(check(&with(&pair.certificate, "")), Flaw::UnreadableKey);
        assert_eq!(check(&with(&pair.certificate, &other.key)), Flaw::OtherKey);
        // Two authorities of one moment have one name: the signature tells.
        assert_eq!(check(&server(&other, &names(), now(), HOUR).unwrap()), Flaw::OtherAuthority);
        assert_eq!(check(&server(&ours, &names()[..1], now(), HOUR).unwrap()), Flaw::OtherNames);
        assert_eq!(check_authority(&pair), Err(Flaw::NoAuthority));
        assert_eq!(check_authority(&with(&ours.certificate, &other.key)), Err(Flaw::OtherKey));
    }

    #[test]
    fn a_text_is_taken_apart_and_what_is_no_certificate_left_out() {
        let (one, two) = (authority(now(), HOUR).unwrap().certificate, authority(now(), HOUR).unwrap().certificate);
        assert_eq!(each(&format!("{one}{two}")), [one.clone(), two.clone()]);
        assert_eq!(each(&format!("{one}\n{two}\n")), [one.clone(), two]);
        assert_eq!(each(&format!("what?\n{one}")), [one]);
        assert!(
            each("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_empty() && each("").is_empty()
        );
    }
}
