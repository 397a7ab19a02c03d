//! A server's certificate: kept until it is due or has a flaw. Pure but for the random keys.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::certificate::{self, CertificateError, Pair};
use super::kept::text;
use super::rotation::renew_at;
use crate::objects::RESYNC;

/// A server's certificate, as it should be now.
pub(crate) struct Leaf {
    pub pair: Pair,
    pub expires_at: Timestamp,
    pub look_again: Timestamp,
    /// Whether it is another than the one that was found.
    pub is_new: bool,
}

impl Leaf {
    /// The one that was found, unless it is due or has a flaw.
    pub fn current(
        found: Option<Pair>,
        authority: &Pair,
        names: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let authority_expires_at = certificate::expires_at(&authority.certificate)?;
        if let Some(pair) = found {
            match certificate::check_server(&pair, &authority.certificate, names, now) {
                // One that ends with its authority cannot be outlived by another.
                Ok(expires_at) if now < renew_at(expires_at, lifetime) || expires_at >= authority_expires_at => {
                    let look_again = look_again(expires_at, lifetime, now);
                    return Ok(Self { pair, expires_at, look_again, is_new: false });
                }
                Ok(expires_at) => tracing::info!(name = names.first(), %expires_at, "a certificate is renewed"),
                // As it happens when the authority is replaced.
                Err(flaw) => tracing::info!(name = names.first(), %flaw, "a certificate is replaced"),
            }
        }
        let pair = certificate::server(authority, names, now, lifetime)?;
        let expires_at = certificate::expires_at(&pair.certificate)?;
        Ok(Self { pair, expires_at, look_again: look_again(expires_at, lifetime, now), is_new: true })
    }

    /// What a Secret holds of one.
    pub fn found(secret: &Secret) -> Pair {
        Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key") }
    }

    /// The contents of its Secret, with the authority that signed it.
    pub fn data(&self, authority: &Pair) -> BTreeMap<String, ByteString> {
        let texts =
            [("tls.crt", &self.pair.certificate), ("tls.key", &self.pair.key), ("ca.crt", &authority.certificate)];
        texts.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).collect()
    }
}

fn look_again(expires_at: Timestamp, lifetime: Duration, now: Timestamp) -> Timestamp {
    let due = renew_at(expires_at, lifetime);
    if due > now { due } else { now + RESYNC }
}

#[cfg(test)]
mod tests {
    use super::super::kept::Kept;
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn at(hour: u32) -> Timestamp {
        "2026-11-21T18:00:00Z".parse::<Timestamp>().unwrap() + hour * HOUR
    }

    #[test]
    fn a_certificate_is_kept_until_its_last_third_or_a_flaw() {
        let names = ["a.n.svc", "*.a.n.svc"].map(str::to_owned);
        let first = Kept::begin(Vec::new(), at(0), 300 * HOUR).unwrap();
        let second = Kept::begin(Vec::new(), at(0), 300 * HOUR).unwrap();
        let current = |found: Option<&Secret>, authority: &Kept, names: &[String], hour: u32| {
            Leaf::current(found.map(Leaf::found), &authority.signing, names, 30 * HOUR, at(hour)).unwrap()
        };
        let made = current(None, &first, &names, 0);
        assert_eq!((made.is_new, made.expires_at, made.look_again), (true, at(30), at(20)));
        let secret = |certificate: &str, key: &str| Secret {
            data: Some(
                [("tls.crt", certificate), ("tls.key", key)]
                    .map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())))
                    .into(),
            ),
            ..Secret::default()
        };
        let found = secret(&made.pair.certificate, &made.pair.key);
        let kept = current(Some(&found), &first, &names, 19);
        assert!(!kept.is_new && kept.pair == made.pair && kept.look_again == at(20));
        for (found, authority, names, hour) in [
            (&found, &first, &names[..], 20),
            (&found, &first, &names[..], 200),
            (&found, &second, &names[..], 1),
            (&found, &first, &names[..1], 1),
            (&secret(&made.pair.certificate, &second.signing.key), &first, &names[..], 1),
            (&secret("", ""), &first, &names[..], 1),
            (&Secret::default(), &first, &names[..], 1),
        ] {
            let renewed = current(Some(found), authority, names, hour);
            assert!(renewed.is_new && renewed.pair != made.pair, "at {hour} for {names:?}");
        }
        // Nothing outlives its authority, and nobody tries again and again.
        let last = current(None, &first, &names, 290);
        assert_eq!((last.expires_at, last.look_again), (at(300), at(290) + RESYNC));
        let found = secret(&last.pair.certificate, &last.pair.key);
        assert!(!current(Some(&found), &first, &names, 291).is_new);
        assert!(Leaf::current(Some(Leaf::found(&found)), &first.signing, &names, 30 * HOUR, at(300)).is_err());
    }
}
