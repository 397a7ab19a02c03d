//! The serving certificate of a server, which is replaced when it is due or has a flaw. Pure except for random keys.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::certificate::{self, CertificateError, Pair};
use super::rotation::renew_at;
use super::secret::text;
use crate::objects::RESYNC;

/// The serving certificate of a server after a check.
pub(crate) struct ServingCertificate {
    pub pair: Pair,
    pub expires_at: Timestamp,
    pub next_check: Timestamp,
    /// True if the certificate differs from the stored one.
    pub is_new: bool,
}

impl ServingCertificate {
    /// Returns the certificate `found`, or a new one if that is missing, due or has a flaw.
    pub fn current(
        found: Option<Pair>,
        ca: &Pair,
        names: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let ca_expires_at = certificate::expires_at(&ca.certificate)?;
        if let Some(pair) = found {
            match certificate::check_server(&pair, &ca.certificate, names, now) {
                // A new certificate would not outlive the CA either.
                Ok(expires_at) if now < renew_at(expires_at, lifetime) || expires_at >= ca_expires_at => {
                    let next_check = next_check(expires_at, lifetime, now);
                    return Ok(Self { pair, expires_at, next_check, is_new: false });
                }
                Ok(expires_at) => {
                    tracing::info!(name = names.first(), %expires_at, "renewing a certificate");
                }
                // This is no warning, because each rotation of the CA causes the flaw `WrongIssuer`.
                Err(flaw) => tracing::info!(name = names.first(), %flaw, "replacing a certificate with a flaw"),
            }
        }
        let pair = certificate::issue_server_certificate(ca, names, now, lifetime)?;
        let expires_at = certificate::expires_at(&pair.certificate)?;
        Ok(Self { pair, expires_at, next_check: next_check(expires_at, lifetime, now), is_new: true })
    }

    /// Reads the certificate and key of a TLS Secret.
    pub fn read(secret: &Secret) -> Pair {
        Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key") }
    }

    /// Returns the data of the TLS Secret, with the CA certificate.
    pub fn data(&self, ca: &Pair) -> BTreeMap<String, ByteString> {
        let texts = [("tls.crt", &self.pair.certificate), ("tls.key", &self.pair.key), ("ca.crt", &ca.certificate)];
        texts.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).collect()
    }
}

fn next_check(expires_at: Timestamp, lifetime: Duration, now: Timestamp) -> Timestamp {
    let due = renew_at(expires_at, lifetime);
    if due > now { due } else { now + RESYNC }
}

#[cfg(test)]
mod tests {
    use super::super::secret::CaSecret;
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn at(hour: u32) -> Timestamp {
        "2026-11-21T18:00:00Z".parse::<Timestamp>().unwrap() + hour * HOUR
    }

    #[test]
    fn a_certificate_is_replaced_in_its_last_third_or_if_it_has_a_flaw() {
        let names = ["a.n.svc", "*.a.n.svc"].map(str::to_owned);
        let first = CaSecret::generate(Vec::new(), at(0), 300 * HOUR).unwrap();
        let second = CaSecret::generate(Vec::new(), at(0), 300 * HOUR).unwrap();
        let current = |found: Option<&Secret>, ca: &CaSecret, names: &[String], hour: u32| {
            ServingCertificate::current(found.map(ServingCertificate::read), &ca.signing, names, 30 * HOUR, at(hour))
                .unwrap()
        };
        let made = current(None, &first, &names, 0);
        assert_eq!((made.is_new, made.expires_at, made.next_check), (true, at(30), at(20)));
        let secret = |certificate: &str, key: &str| Secret {
            data: Some(
                [("tls.crt", certificate), ("tls.key", key)]
                    .map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())))
                    .into(),
            ),
            ..Secret::default()
        };
        let found = secret(&made.pair.certificate, &made.pair.key);
        let unchanged = current(Some(&found), &first, &names, 19);
        assert!(!unchanged.is_new && unchanged.pair == made.pair && unchanged.next_check == at(20));
        for (found, ca, names, hour) in [
            (&found, &first, &names[..], 20),
            (&found, &first, &names[..], 200),
            (&found, &second, &names[..], 1),
            (&found, &first, &names[..1], 1),
            (&secret(&made.pair.certificate, &second.signing.key), &first, &names[..], 1),
            (&secret("", ""), &first, &names[..], 1),
            (&Secret::default(), &first, &names[..], 1),
        ] {
            let renewed = current(Some(found), ca, names, hour);
            assert!(renewed.is_new && renewed.pair != made.pair, "at {hour} for {names:?}");
        }
        // A certificate does not outlive its CA, and is not renewed in a loop.
        let last = current(None, &first, &names, 290);
        assert_eq!((last.expires_at, last.next_check), (at(300), at(290) + RESYNC));
        let found = secret(&last.pair.certificate, &last.pair.key);
        assert!(!current(Some(&found), &first, &names, 291).is_new);
        assert!(
            ServingCertificate::current(
                Some(ServingCertificate::read(&found)),
                &first.signing,
                &names,
                30 * HOUR,
                at(300)
            )
            .is_err()
        );
    }
}
