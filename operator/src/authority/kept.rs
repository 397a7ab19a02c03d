//! What the Secret `proviso-ca` holds: who signs, who will or who did, and the bundle of all who are to be trusted.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::names::ROTATION_SINCE;

use super::certificate::{self, Pair};
use super::rotation::{Phase, Standing, Step, renew_at};

/// An authority, and what there is of the one after or before it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub signing: Pair,
    other: Other,
    since: Timestamp,
}

#[derive(Clone, PartialEq, Eq)]
enum Other {
    None,
    Next(Pair),
    /// Certificates without keys: nobody signs with these any more.
    Previous(Vec<String>),
}

/// What a rotation has to look at beside the authority itself.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    /// The certificates of all servers that are parts of Proviso.
    pub servers: Vec<String>,
    /// The bundles of all webhooks.
    pub bundles: Vec<String>,
}

impl Kept {
    /// A new authority, beside those that were trusted so far.
    pub fn begin(trusted: Vec<String>, now: Timestamp, lifetime: Duration) -> Result<Self, rcgen::Error> {
        let other = if trusted.is_empty() { Other::None } else { Other::Previous(trusted) };
        Ok(Self { signing: certificate::authority(now, lifetime)?, other, since: now })
    }

    /// What a Secret holds; without a pair that can sign, the certificates that were trusted.
    pub fn read(secret: &Secret, now: Timestamp) -> Result<Self, Vec<String>> {
        let text = |key: &str| self::text(secret, key);
        let pair = |name: &str| Pair { certificate: text(&format!("{name}.crt")), key: text(&format!("{name}.key")) };
        let (signing, next, previous) = (pair("ca"), pair("next"), certificate::each(&text("previous.crt")));
        if certificate::check_authority(&signing).is_err() {
            let texts = [text("ca.crt"), text("next.crt"), text("previous.crt")];
            return Err(texts.iter().flat_map(|text| certificate::each(text)).collect());
        }
        let other = if !previous.is_empty() {
            Other::Previous(previous)
        } else if certificate::check_authority(&next).is_ok() {
            Other::Next(next)
        } else {
            Other::None
        };
        let since = secret.annotations().get(ROTATION_SINCE).and_then(|since| since.parse::<Timestamp>().ok());
        Ok(Self { signing, other, since: since.unwrap_or(now).min(now) })
    }

    /// The contents of the Secret.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = vec![("ca.crt", self.signing.certificate.clone()), ("ca.key", self.signing.key.clone())];
        match &self.other {
            Other::None => {}
            Other::Next(next) => {
                data.extend([("next.crt", next.certificate.clone()), ("next.key", next.key.clone())]);
            }
            Other::Previous(previous) => data.push(("previous.crt", previous.concat())),
        }
        data.push(("bundle.crt", self.bundle()));
        data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
    }

    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// All who are to be trusted, in an order that does not change when another begins to sign.
    pub fn bundle(&self) -> String {
        let others = match &self.other {
            Other::None => Vec::new(),
            Other::Next(next) => vec![next.certificate.as_str()],
            Other::Previous(previous) => previous.iter().map(String::as_str).collect(),
        };
        let mut all: Vec<_> = std::iter::once(self.signing.certificate.as_str()).chain(others).collect();
        all.sort_unstable();
        all.dedup();
        all.concat()
    }

    /// Where its rotation stands.
    pub fn standing(&self, around: &Surroundings, lifetime: Duration) -> Result<Standing, certificate::Flaw> {
        let expires_at = certificate::expires_at(&self.signing.certificate)?;
        let (phase, since, is_settled) = match &self.other {
            Other::None => (Phase::Steady, self.since, true),
            Other::Next(next) => {
                let is_published = around.bundles.iter().all(|bundle| bundle.contains(next.certificate.trim_end()));
                (Phase::Announced, self.since, is_published)
            }
            Other::Previous(_) => {
                let by_us = |server: &String| certificate::is_signed_by(server, &self.signing.certificate);
                let moved = around.servers.iter().all(|server| by_us(server).unwrap_or_default());
                let last = around.servers.iter().filter_map(|server| certificate::issued_at(server).ok()).max();
                (Phase::Retiring, last.map_or(self.since, |last| last.max(self.since)), moved)
            }
        };
        Ok(Standing { phase, since, renew_at: renew_at(expires_at, lifetime), expires_at, is_settled })
    }

    /// What there is after this step; nothing if it changes nothing.
    pub fn after(&self, step: Step, now: Timestamp, lifetime: Duration) -> Result<Option<Self>, rcgen::Error> {
        let (signing, other) = match (step, &self.other) {
            (Step::Announce, _) => (self.signing.clone(), Other::Next(certificate::authority(now, lifetime)?)),
            (Step::Promote, Other::Next(next)) => {
                (next.clone(), Other::Previous(vec![self.signing.certificate.clone()]))
            }
            (Step::Retire, _) => (self.signing.clone(), Other::None),
            (Step::Promote | Step::Wait | Step::WaitUntil(_), _) => return Ok(None),
        };
        Ok(Some(Self { signing, other, since: now }))
    }
}

/// A text of a Secret; empty if there is none.
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

    fn secret(kept: &Kept) -> Secret {
        let mut secret = Secret { data: Some(kept.data()), ..Secret::default() };
        secret.annotations_mut().insert(ROTATION_SINCE.to_owned(), kept.since().to_string());
        secret
    }

    fn next(kept: &Kept, around: &Surroundings, hour: u64) -> Step {
        step(&kept.standing(around, LIFETIME).unwrap(), &TIMES, at(hour))
    }

    fn server(kept: &Kept, hour: u64) -> String {
        let names = ["a".to_owned()];
        certificate::server(&kept.signing, &names, at(hour), LIFETIME).unwrap().certificate
    }

    /// The whole life of an authority, from one Secret to the next.
    #[test]
    fn everybody_knows_the_new_one_before_it_signs_and_the_old_one_until_nothing_of_it_is_left() {
        let first = Kept::begin(Vec::new(), at(0), LIFETIME).unwrap();
        let old = server(&first, 0);
        let mut around = Surroundings { servers: vec![old.clone()], bundles: vec![first.bundle()] };
        assert_eq!(next(&first, &around, 19), Step::WaitUntil(at(20)));
        assert_eq!(next(&first, &around, 20), Step::Announce);
        let announced = first.after(Step::Announce, at(20), LIFETIME).unwrap().unwrap();
        assert!(announced.signing == first.signing && announced.bundle().contains(&first.signing.certificate));
        assert_eq!(certificate::each(&announced.bundle()).len(), 2);
        // A webhook that nobody updated holds it up, for as long as the old one can wait.
        assert_eq!(next(&announced, &around, 22), Step::Wait);
        assert_eq!(next(&announced, &around, 30), Step::Promote);
        around.bundles = vec![announced.bundle()];
        assert_eq!(next(&announced, &around, 21), Step::Promote);
        let promoted = announced.after(Step::Promote, at(21), LIFETIME).unwrap().unwrap();
        assert!(promoted.signing != first.signing && promoted.bundle() == announced.bundle());
        // A server that has its old certificate, or had it until a moment ago, holds up the end of the old authority.
        assert_eq!(next(&promoted, &around, 25), Step::Wait);
        around.servers = vec![server(&promoted, 25)];
        assert_eq!(next(&promoted, &around, 25), Step::WaitUntil(at(26)));
        assert_eq!(next(&promoted, &around, 26), Step::Retire);
        let retired = promoted.after(Step::Retire, at(26), LIFETIME).unwrap().unwrap();
        assert!(retired.bundle() == retired.signing.certificate && !retired.bundle().contains(&old));
        assert_eq!(next(&retired, &around, 26), Step::WaitUntil(at(40)));
        for kept in [first, announced, promoted, retired] {
            assert!(Kept::read(&secret(&kept), at(50)).is_ok_and(|read| read == kept), "what is written is read");
        }
    }

    #[test]
    fn what_was_trusted_outlives_a_spoilt_secret() {
        let first = Kept::begin(Vec::new(), at(0), LIFETIME).unwrap();
        let mut spoilt = secret(&first);
        spoilt.data.as_mut().unwrap().remove("ca.key");
        let trusted = Kept::read(&spoilt, at(1)).err().unwrap();
        assert_eq!(trusted.concat(), first.signing.certificate);
        let second = Kept::begin(trusted, at(1), LIFETIME).unwrap();
        assert!(second.bundle().contains(&first.signing.certificate) && second.signing != first.signing);
        let around = Surroundings { servers: vec![server(&first, 0)], bundles: Vec::new() };
        assert_eq!(next(&second, &around, 9), Step::Wait);
        assert!(Kept::read(&Secret::default(), at(1)).is_err_and(|trusted| trusted.is_empty()));
        // A time that cannot be is now.
        let mut future = secret(&first);
        future.annotations_mut().insert(ROTATION_SINCE.to_owned(), at(500).to_string());
        assert!(Kept::read(&future, at(1)).is_ok_and(|read| read.since() == at(1)));
    }
}
