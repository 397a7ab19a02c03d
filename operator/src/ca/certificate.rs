//! X.509 certificates: issues, parses and checks them. Pure except for random keys.

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

/// The time by which certificates are backdated, because clocks differ.
const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// A certificate and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The reason why a certificate cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the private key cannot be read")]
    UnreadableKey,
    #[error("the private key does not match the certificate")]
    KeyMismatch,
    #[error("it is not a CA certificate")]
    NotCa,
    #[error("it is not signed by the current CA")]
    WrongIssuer,
    #[error("it is for other DNS names")]
    NameMismatch,
    #[error("it has expired")]
    Expired,
}

/// Generates a self-signed CA.
pub(crate) fn generate_ca(now: Timestamp, lifetime: Duration) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    // The time in the name distinguishes the CAs of successive rotations.
    let mut params = certificate_params(now, now + lifetime, &format!("proviso {now:.0}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// Issues a serving certificate for these DNS names. The certificate expires no later than the CA.
pub(crate) fn issue_server_certificate(
    ca: &Pair,
    names: &[String],
    now: Timestamp,
    lifetime: Duration,
) -> Result<Pair, CertificateError> {
    let issuer = Issuer::new(issuer_params(&ca.certificate)?, KeyPair::from_pem(&ca.key)?);
    let expires_at = (now + lifetime).min(expires_at(&ca.certificate)?);
    if expires_at <= now {
        return Err(Flaw::Expired.into());
    }
    let key = KeyPair::generate()?;
    let mut params = certificate_params(now, expires_at, "policy server");
    params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    // A CA that another tool created may encode its name differently, and then verification fails.
    if !is_signed_by(&certificate, &ca.certificate)? {
        return Err(Flaw::WrongIssuer.into());
    }
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// Returns the issuer of certificates of this CA: the name and the key identifier of the CA.
fn issuer_params(ca: &str) -> Result<CertificateParams, Flaw> {
    let der = der(ca)?;
    let ca = parse(&der)?;
    let name = ca.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.ok_or(Flaw::NotCa)?);
    let key = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    });
    params.key_identifier_method = key.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified);
    Ok(params)
}

/// The reason why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot issue a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("CA certificate: {0}")]
    Ca(#[from] Flaw),
}

fn certificate_params(from: Timestamp, to: Timestamp, name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let since_epoch = |time: Timestamp| Duration::from_secs(time.as_second().try_into().unwrap_or_default());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch(from - CLOCK_SKEW);
    params.not_after = epoch + since_epoch(to);
    params
}

/// Returns the expiry of a certificate.
pub(crate) fn expires_at(certificate: &str) -> Result<Timestamp, Flaw> {
    let der = der(certificate)?;
    expiry(&parse(&der)?)
}

/// Returns the time at which a certificate was issued.
pub(crate) fn issued_at(certificate: &str) -> Result<Timestamp, Flaw> {
    let der = der(certificate)?;
    let made = parse(&der)?.validity().not_before.timestamp();
    Timestamp::from_second(made).map(|made| made + CLOCK_SKEW).map_err(|_| Flaw::Unreadable)
}

/// Checks that a CA can sign. Returns its expiry, which may have passed.
pub(crate) fn check_ca(pair: &Pair) -> Result<Timestamp, Flaw> {
    let der = der(&pair.certificate)?;
    let certificate = parse(&der)?;
    check_key(&certificate, &pair.key)?;
    if certificate.is_ca() { expiry(&certificate) } else { Err(Flaw::NotCa) }
}

/// Checks a serving certificate. Returns its expiry.
pub(crate) fn check_server(pair: &Pair, ca: &str, names: &[String], now: Timestamp) -> Result<Timestamp, Flaw> {
    let der = der(&pair.certificate)?;
    let certificate = parse(&der)?;
    check_key(&certificate, &pair.key)?;
    if !is_signed_by(&pair.certificate, ca)? {
        return Err(Flaw::WrongIssuer);
    }
    let found = certificate.subject_alternative_name().ok().flatten().map(|it| &it.value.general_names);
    let found: Vec<_> = found.into_iter().flatten().filter_map(dns_name).collect();
    if found != names {
        return Err(Flaw::NameMismatch);
    }
    let expiry = expiry(&certificate)?;
    if now < expiry { Ok(expiry) } else { Err(Flaw::Expired) }
}

/// Returns whether this CA signed the certificate. The certificate may have expired.
pub(crate) fn is_signed_by(certificate: &str, ca: &str) -> Result<bool, Flaw> {
    let (certificate, ca) = (der(certificate)?, der(ca)?);
    // Verifies at the time of issue, so that expiry does not matter.
    let made = parse(&certificate)?.validity().not_before.timestamp();
    let made = UnixTime::since_unix_epoch(Duration::from_secs(made.try_into().unwrap_or_default()));
    let anchors = [anchor_from_trusted_cert(&ca).map_err(|_| Flaw::Unreadable)?];
    let certificate = EndEntityCert::try_from(&certificate).map_err(|_| Flaw::Unreadable)?;
    let usage = KeyUsage::server_auth();
    let verified = certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], made, usage, None, None);
    Ok(verified.is_ok())
}

/// Splits a text into its certificates. Skips everything that is not a valid certificate.
pub(crate) fn split_pem(certificates: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let texts = certificates.split(END).filter_map(|text| Some(format!("{}{END}\n", &text[text.find(BEGIN)?..])));
    texts.filter(|text| der(text).is_ok_and(|der| parse(&der).is_ok())).collect()
}

fn check_key(certificate: &X509Certificate<'_>, key: &str) -> Result<(), Flaw> {
    let key = KeyPair::from_pem(key).map_err(|_| Flaw::UnreadableKey)?;
    if key.subject_public_key_info() == certificate.public_key().raw { Ok(()) } else { Err(Flaw::KeyMismatch) }
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
    fn a_certificate_expires_no_later_than_its_ca() {
        let ca = generate_ca(now(), 3 * HOUR).unwrap();
        assert_eq!(check_ca(&ca).unwrap().as_second(), (now() + 3 * HOUR).as_second());
        for (lifetime, expected) in [(HOUR, HOUR), (9 * HOUR, 3 * HOUR)] {
            let pair = issue_server_certificate(&ca, &names(), now(), lifetime).unwrap();
            let expiry = check_server(&pair, &ca.certificate, &names(), now()).unwrap();
            assert_eq!(expiry.as_second(), (now() + expected).as_second());
            assert_eq!(check_server(&pair, &ca.certificate, &names(), expiry), Err(Flaw::Expired));
        }
    }

    #[test]
    fn check_server_and_check_ca_find_every_flaw() {
        let (ours, other) = (generate_ca(now(), HOUR).unwrap(), generate_ca(now(), HOUR).unwrap());
        let pair = issue_server_certificate(&ours, &names(), now(), HOUR).unwrap();
        let with = |certificate: &str, key: &str| Pair { certificate: certificate.to_owned(), key: key.to_owned() };
        let check = |pair: &Pair| check_server(pair, &ours.certificate, &names(), now()).unwrap_err();
        assert_eq!(check(&with("", &pair.key)), Flaw::Unreadable);
        assert_eq!(check(&with(&pair.certificate[..200], &pair.key)), Flaw::Unreadable);
        assert_eq!(check(&with(&pair.certificate, "")), Flaw::UnreadableKey);
        assert_eq!(check(&with(&pair.certificate, &other.key)), Flaw::KeyMismatch);
        // Two CAs of the same second have the same name: only their signatures differ.
        assert_eq!(check(&issue_server_certificate(&other, &names(), now(), HOUR).unwrap()), Flaw::WrongIssuer);
        assert_eq!(check(&issue_server_certificate(&ours, &names()[..1], now(), HOUR).unwrap()), Flaw::NameMismatch);
        assert_eq!(check_ca(&pair), Err(Flaw::NotCa));
        assert_eq!(check_ca(&with(&ours.certificate, &other.key)), Err(Flaw::KeyMismatch));
    }

    #[test]
    fn split_pem_returns_each_certificate_and_skips_other_text() {
        let (one, two) = (generate_ca(now(), HOUR).unwrap().certificate, generate_ca(now(), HOUR).unwrap().certificate);
        assert_eq!(split_pem(&format!("{one}{two}")), [one.clone(), two.clone()]);
        assert_eq!(split_pem(&format!("{one}\n{two}\n")), [one.clone(), two]);
        assert_eq!(split_pem(&format!("what?\n{one}")), [one]);
        assert!(
            split_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_empty()
                && split_pem("").is_empty()
        );
    }
}
