//! The content of the Secret `proviso-ca`: the CA that signs, the next or the previous CAs, and the bundle of all CA
//! certificates to trust.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::names::ROTATION_SINCE;

use super::certificate::{self, Pair};
use super::rotation::{Phase, RotationState, Step, renew_at};

/// The signing CA, and the CA after or the CAs before it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CaSecret {
    pub signing: Pair,
    other: OtherCa,
    since: Timestamp,
}

#[derive(Clone, PartialEq, Eq)]
enum OtherCa {
    None,
    Next(Pair),
    /// Certificates without keys: these CAs no longer sign.
    Previous(Vec<String>),
}

/// The certificates and CA bundles in use, which a rotation waits for.
#[derive(Debug, Default)]
pub(crate) struct CaUsage {
    /// The serving certificates of all of Proviso's servers, in PEM.
    pub servers: Vec<String>,
    /// The CA bundles of all webhooks of policies, in PEM.
    pub bundles: Vec<String>,
}

impl CaSecret {
    /// Generates a new CA. The certificates in `trusted` stay trusted.
    pub fn generate(trusted: Vec<String>, now: Timestamp, lifetime: Duration) -> Result<Self, rcgen::Error> {
        let other = if trusted.is_empty() { OtherCa::None } else { OtherCa::Previous(trusted) };
        Ok(Self { signing: certificate::generate_ca(now, lifetime)?, other, since: now })
    }

    /// Reads the content of a Secret. If the Secret has no CA that can sign, returns the certificates that it
    /// trusted.
    pub fn read(secret: &Secret, now: Timestamp) -> Result<Self, Vec<String>> {
        let text = |key: &str| self::text(secret, key);
        let pair = |name: &str| Pair { certificate: text(&format!("{name}.crt")), key: text(&format!("{name}.key")) };
        let (signing, next, previous) = (pair("ca"), pair("next"), certificate::split_pem(&text("previous.crt")));
        if certificate::check_ca(&signing).is_err() {
            let texts = [text("ca.crt"), text("next.crt"), text("previous.crt")];
            return Err(texts.iter().flat_map(|text| certificate::split_pem(text)).collect());
        }
        let other = if !previous.is_empty() {
            OtherCa::Previous(previous)
        } else if certificate::check_ca(&next).is_ok() {
            OtherCa::Next(next)
        } else {
            OtherCa::None
        };
        let since = secret.annotations().get(ROTATION_SINCE).and_then(|since| since.parse::<Timestamp>().ok());
        Ok(Self { signing, other, since: since.unwrap_or(now).min(now) })
    }

    /// Returns the data of the Secret.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = vec![("ca.crt", self.signing.certificate.clone()), ("ca.key", self.signing.key.clone())];
        match &self.other {
            OtherCa::None => {}
            OtherCa::Next(next) => {
                data.extend([("next.crt", next.certificate.clone()), ("next.key", next.key.clone())]);
            }
            OtherCa::Previous(previous) => data.push(("previous.crt", previous.concat())),
        }
        data.push(("bundle.crt", self.bundle()));
        data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
    }

    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns the CA certificates to trust, in PEM. The order does not change when another CA begins to sign.
    pub fn bundle(&self) -> String {
        let others = match &self.other {
            OtherCa::None => Vec::new(),
            OtherCa::Next(next) => vec![next.certificate.as_str()],
            OtherCa::Previous(previous) => previous.iter().map(String::as_str).collect(),
        };
        let mut all: Vec<_> = std::iter::once(self.signing.certificate.as_str()).chain(others).collect();
        all.sort_unstable();
        all.dedup();
        all.concat()
    }

    /// Returns the state of the rotation.
    pub fn rotation_state(&self, usage: &CaUsage, lifetime: Duration) -> Result<RotationState, certificate::Flaw> {
        let expires_at = certificate::expires_at(&self.signing.certificate)?;
        let (phase, since, is_settled) = match &self.other {
            OtherCa::None => (Phase::Steady, self.since, true),
            OtherCa::Next(next) => {
                let is_published = usage.bundles.iter().all(|bundle| bundle.contains(next.certificate.trim_end()));
                (Phase::Announced, self.since, is_published)
            }
            OtherCa::Previous(_) => {
                let by_us = |server: &String| certificate::is_signed_by(server, &self.signing.certificate);
                let moved = usage.servers.iter().all(|server| by_us(server).unwrap_or_default());
                let last = usage.servers.iter().filter_map(|server| certificate::issued_at(server).ok()).max();
                (Phase::Retiring, last.map_or(self.since, |last| last.max(self.since)), moved)
            }
        };
        Ok(RotationState { phase, since, renew_at: renew_at(expires_at, lifetime), expires_at, is_settled })
    }

    /// Returns the content after this step; `None` if the step changes nothing.
    pub fn after(&self, step: Step, now: Timestamp, lifetime: Duration) -> Result<Option<Self>, rcgen::Error> {
        let (signing, other) = match (step, &self.other) {
            (Step::Announce, _) => (self.signing.clone(), OtherCa::Next(certificate::generate_ca(now, lifetime)?)),
            (Step::Promote, OtherCa::Next(next)) => {
                (next.clone(), OtherCa::Previous(vec![self.signing.certificate.clone()]))
            }
            (Step::Retire, _) => (self.signing.clone(), OtherCa::None),
            (Step::Promote | Step::Wait | Step::WaitUntil(_), _) => return Ok(None),
        };
        Ok(Some(Self { signing, other, since: now }))
    }
}

/// Returns a value of a Secret as text; empty if the Secret lacks the key.
pub(crate) fn text(secret: &Secret, key: &str) -> String {
    let found = secret.data.as_ref().and_then(|data| data.get(key));
    found.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::rotation::{Times, step};
    use super::*;

    const LIFETIME: Duration = Duration::from_hours(30);
    const TIMES: Times = Times { announcement: Duration::from_hours(1), retirement: Duration::from_hours(1) };

    fn at(hour: u64) -> Timestamp {
        "2026-11-21T18:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_hours(hour)
    }

    fn secret(ca_secret: &CaSecret) -> Secret {
        let mut secret = Secret { data: Some(ca_secret.data()), ..Secret::default() };
        secret.annotations_mut().insert(ROTATION_SINCE.to_owned(), ca_secret.since().to_string());
        secret
    }

    fn next(ca_secret: &CaSecret, usage: &CaUsage, hour: u64) -> Step {
        step(&ca_secret.rotation_state(usage, LIFETIME).unwrap(), &TIMES, at(hour))
    }

    fn server(ca_secret: &CaSecret, hour: u64) -> String {
        let names = ["a".to_owned()];
        certificate::issue_server_certificate(&ca_secret.signing, &names, at(hour), LIFETIME).unwrap().certificate
    }

    /// Follows a CA through a whole rotation, from one Secret to the next.
    #[test]
    fn a_new_ca_is_trusted_before_it_signs_and_the_old_ca_until_it_is_unused() {
        let first = CaSecret::generate(Vec::new(), at(0), LIFETIME).unwrap();
        let old = server(&first, 0);
        let mut usage = CaUsage { servers: vec![old.clone()], bundles: vec![first.bundle()] };
        assert_eq!(next(&first, &usage, 19), Step::WaitUntil(at(20)));
        assert_eq!(next(&first, &usage, 20), Step::Announce);
        let announced = first.after(Step::Announce, at(20), LIFETIME).unwrap().unwrap();
        assert!(announced.signing == first.signing && announced.bundle().contains(&first.signing.certificate));
        assert_eq!(certificate::split_pem(&announced.bundle()).len(), 2);
        // A webhook with an old bundle delays the promotion, until the old CA expires.
        assert_eq!(next(&announced, &usage, 22), Step::Wait);
        assert_eq!(next(&announced, &usage, 30), Step::Promote);
        usage.bundles = vec![announced.bundle()];
        assert_eq!(next(&announced, &usage, 21), Step::Promote);
        let promoted = announced.after(Step::Promote, at(21), LIFETIME).unwrap().unwrap();
        assert!(promoted.signing != first.signing && promoted.bundle() == announced.bundle());
        // A server delays the retirement of the old CA while it has its old certificate, and for an hour after that.
        assert_eq!(next(&promoted, &usage, 25), Step::Wait);
        usage.servers = vec![server(&promoted, 25)];
        assert_eq!(next(&promoted, &usage, 25), Step::WaitUntil(at(26)));
        assert_eq!(next(&promoted, &usage, 26), Step::Retire);
        let retired = promoted.after(Step::Retire, at(26), LIFETIME).unwrap().unwrap();
        assert!(retired.bundle() == retired.signing.certificate && !retired.bundle().contains(&old));
        assert_eq!(next(&retired, &usage, 26), Step::WaitUntil(at(40)));
        for ca_secret in [first, announced, promoted, retired] {
            assert!(
                CaSecret::read(&secret(&ca_secret), at(50)).is_ok_and(|read| read == ca_secret),
                "read() returns what data() has written"
            );
        }
    }

    #[test]
    fn trusted_certificates_survive_a_damaged_secret() {
        let first = CaSecret::generate(Vec::new(), at(0), LIFETIME).unwrap();
        let mut damaged = secret(&first);
        damaged.data.as_mut().unwrap().remove("ca.key");
        let trusted = CaSecret::read(&damaged, at(1)).err().unwrap();
        assert_eq!(trusted.concat(), first.signing.certificate);
        let second = CaSecret::generate(trusted, at(1), LIFETIME).unwrap();
        assert!(second.bundle().contains(&first.signing.certificate) && second.signing != first.signing);
        let usage = CaUsage { servers: vec![server(&first, 0)], bundles: Vec::new() };
        assert_eq!(next(&second, &usage, 9), Step::Wait);
        assert!(CaSecret::read(&Secret::default(), at(1)).is_err_and(|trusted| trusted.is_empty()));
        // A time in the future is read as now.
        let mut future = secret(&first);
        future.annotations_mut().insert(ROTATION_SINCE.to_owned(), at(500).to_string());
        assert!(CaSecret::read(&future, at(1)).is_ok_and(|read| read.since() == at(1)));
    }
}
