//! The Secrets of a policy server: the certificate of its replicas, and the keys that sign modules. Both are renewed in
//! time; pods read them again by themselves.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::PolicyServer;

use super::signing::Keys;
use super::{Context, Error, build};
use crate::authority::certificate::{self, Pair};
use crate::authority::kept::{Kept, text};
use crate::authority::rotation::renew_at;
use crate::config::Lifetimes;
use crate::objects::{self, RESYNC, RETRY};

const NO_AUTHORITY: &str = "there is no authority to sign it: see the operator's log about Secret proviso-ca";

/// The Secrets, as they were found.
pub(super) struct Found {
    pub authority: Option<Secret>,
    pub tls: Option<Secret>,
    pub signing: Option<Secret>,
}

/// What became of them.
#[derive(Debug)]
pub(super) struct Renewed {
    /// When the certificate ends, or why there is none.
    pub certificate: Result<Timestamp, String>,
    /// Whether it is a new one.
    pub is_new: bool,
    pub look_again: Timestamp,
}

/// Renews what is due, and puts right what is wrong.
pub(super) async fn renew(server: &PolicyServer, found: &Found, context: &Context) -> Result<Renewed, Error> {
    let (now, lifetimes) = (Timestamp::now(), &context.lifetimes);
    let own = server.name_any();
    let (keys, keys_due) = Keys::current(found.signing.as_ref(), lifetimes, now)?;
    let secrets = context.secrets();
    let mut signing = secret(server, &build::signing_name(&own), "Opaque")?;
    (signing.data, signing.metadata.annotations) = (Some(keys.data()), Some(keys.annotations()));
    objects::write_secret(&secrets, found.signing.as_ref(), signing).await?;

    let mut renewed = Renewed { certificate: Err(NO_AUTHORITY.to_owned()), is_new: false, look_again: now + RETRY };
    let kept = found.authority.as_ref().and_then(|secret| Kept::read(secret, now).ok());
    let Some(kept) = kept else { return Ok(renewed) };
    let names = build::certificate_names(&own, &context.place.namespace);
    let certificate = match Certificate::current(found.tls.as_ref(), &kept.signing, &names, lifetimes, now) {
        Ok(certificate) => certificate,
        Err(error) => {
            renewed.certificate = Err(error.to_string());
            return Ok(renewed);
        }
    };
    let mut tls = secret(server, &build::tls_name(&own), "kubernetes.io/tls")?;
    let data = [
        ("tls.crt", certificate.pair.certificate),
        ("tls.key", certificate.pair.key),
        ("ca.crt", kept.signing.certificate),
    ];
    tls.data = Some(data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect());
    objects::write_secret(&secrets, found.tls.as_ref(), tls).await?;
    Ok(Renewed {
        certificate: Ok(certificate.expires_at),
        is_new: certificate.is_new,
        look_again: keys_due.min(certificate.renew_at),
    })
}

fn secret(server: &PolicyServer, name: &str, type_: &str) -> Result<Secret, Error> {
    let metadata = serde_json::from_value(build::metadata(server, name))?;
    Ok(Secret { metadata, type_: Some(type_.to_owned()), ..Secret::default() })
}

/// The certificate of the replicas.
struct Certificate {
    pair: Pair,
    expires_at: Timestamp,
    renew_at: Timestamp,
    is_new: bool,
}

impl Certificate {
    /// The one that was found, unless it is due or has a flaw.
    fn current(
        found: Option<&Secret>,
        authority: &Pair,
        names: &[String],
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> Result<Self, certificate::CertificateError> {
        let lifetime = lifetimes.certificate;
        let authority_expires_at = certificate::expires_at(&authority.certificate)?;
        let found = found.map(|secret| Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key") });
        if let Some(pair) = found {
            match certificate::check_server(&pair, &authority.certificate, names, now) {
                // One that ends with its authority cannot be outlived by another.
                Ok(expires_at) if now < renew_at(expires_at, lifetime) || expires_at >= authority_expires_at => {
                    return Ok(Self { pair, expires_at, renew_at: due(expires_at, lifetime, now), is_new: false });
                }
                Ok(expires_at) => tracing::info!(%expires_at, "a certificate is renewed"),
                // As it happens when the authority is replaced.
                Err(flaw) => tracing::info!(%flaw, "a certificate is replaced"),
            }
        }
        let pair = certificate::server(authority, names, now, lifetime)?;
        let expires_at = certificate::expires_at(&pair.certificate)?;
        Ok(Self { pair, expires_at, renew_at: due(expires_at, lifetime, now), is_new: true })
    }
}

/// When to look at a certificate again.
fn due(expires_at: Timestamp, lifetime: Duration, now: Timestamp) -> Timestamp {
    let due = renew_at(expires_at, lifetime);
    if due > now { due } else { now + RESYNC }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn at(hour: u32) -> Timestamp {
        "2026-11-21T18:00:00Z".parse::<Timestamp>().unwrap() + hour * HOUR
    }

    #[test]
    fn a_certificate_is_kept_until_its_last_third_or_a_flaw() {
        let lifetimes = Lifetimes {
            authority: 300 * HOUR,
            certificate: 30 * HOUR,
            signing_key: 30 * HOUR,
            announcement: HOUR,
            authority_retirement: HOUR,
            signing_key_retirement: HOUR,
        };
        let names = build::certificate_names("a", "n");
        let first = Kept::begin(Vec::new(), at(0), lifetimes.authority).unwrap();
        let second = Kept::begin(Vec::new(), at(0), lifetimes.authority).unwrap();
        let current = |found: Option<&Secret>, authority: &Kept, names: &[String], hour: u32| {
            Certificate::current(found, &authority.signing, names, &lifetimes, at(hour)).unwrap()
        };
        let made = current(None, &first, &names, 0);
        assert_eq!((made.is_new, made.expires_at, made.renew_at), (true, at(30), at(20)));
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
        assert!(!kept.is_new && kept.pair == made.pair && kept.renew_at == at(20));
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
        assert_eq!((last.expires_at, last.renew_at), (at(300), at(290) + RESYNC));
        let found = secret(&last.pair.certificate, &last.pair.key);
        assert!(!current(Some(&found), &first, &names, 291).is_new);
        assert!(Certificate::current(Some(&found), &first.signing, &names, &lifetimes, at(300)).is_err());
    }
}
