//! The keys that sign the modules that a policy server compiles. The first key signs, all keys verify. Pure except
//! for random keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_crds::names::{ROTATION, ROTATION_SINCE};
use rcgen::{KeyPair, PKCS_ED25519};

use crate::ca::rotation::{self, Phase, RotationState, Step, Times};
use crate::ca::secret::text;
use crate::config::Lifetimes;

/// The key of the Secret's data.
const FILE: &str = "signing.key";

/// The signing keys, and the phase of their rotation.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// The keys in PEM.
    pems: Vec<String>,
    phase: Phase,
    since: Timestamp,
}

impl Keys {
    /// Reads the keys of a Secret; `None` if it has no readable key.
    fn read(secret: &Secret, now: Timestamp) -> Option<Self> {
        const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
        const END: &str = "-----END PRIVATE KEY-----";
        let found = text(secret, FILE);
        let texts = found.split(END).filter_map(|key| Some(format!("{}{END}\n", &key[key.find(BEGIN)?..])));
        let pems: Vec<_> = texts.filter(|key| is_key(key)).collect();
        let annotation = |name: &str| secret.annotations().get(name).map(String::as_str);
        let phase = match (pems.len(), annotation(ROTATION)) {
            (0, _) => return None,
            (1, _) => Phase::Steady,
            (2, Some("Announced")) => Phase::Announced,
            // Without the annotation, the other keys may have signed something.
            _ => Phase::Retiring,
        };
        let since =
            annotation(ROTATION_SINCE).and_then(|since| since.parse::<Timestamp>().ok()).unwrap_or(now).min(now);
        Some(Self { pems, phase, since })
    }

    /// Returns the current keys, and the time of the next check.
    pub fn current(
        found: Option<&Secret>,
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> Result<(Self, Timestamp), rcgen::Error> {
        let found = found.and_then(|secret| Self::read(secret, now));
        let keys = match found {
            Some(keys) => keys,
            None => Self { pems: vec![generate()?], phase: Phase::Steady, since: now },
        };
        let times = Times { announcement: lifetimes.announcement, retirement: lifetimes.signing_key_retirement };
        let keys = match rotation::step(&keys.rotation_state(lifetimes), &times, now) {
            Step::Announce => {
                let announced = keys.pems.iter().cloned().chain([generate()?]).collect();
                Self { pems: announced, phase: Phase::Announced, since: now }
            }
            Step::Promote => {
                let promoted = keys.pems.into_iter().rev().collect();
                Self { pems: promoted, phase: Phase::Retiring, since: now }
            }
            // The age of the remaining key counts from its promotion, so `since` stays.
            Step::Retire => Self { pems: keys.pems[..1].to_vec(), phase: Phase::Steady, since: keys.since },
            Step::Wait | Step::WaitUntil(_) => keys,
        };
        let due = match rotation::step(&keys.rotation_state(lifetimes), &times, now) {
            Step::WaitUntil(due) => due,
            _ => now,
        };
        Ok((keys, due))
    }

    fn rotation_state(&self, lifetimes: &Lifetimes) -> RotationState {
        let expires_at = self.since + lifetimes.signing_key;
        let renew_at = rotation::renew_at(expires_at, lifetimes.signing_key);
        // Keys do not expire, and a new key needs no confirmation by verifiers.
        RotationState { phase: self.phase, since: self.since, renew_at, expires_at: Timestamp::MAX, is_settled: true }
    }

    pub fn data(&self) -> BTreeMap<String, ByteString> {
        [(FILE.to_owned(), ByteString(self.pems.concat().into_bytes()))].into()
    }

    pub fn annotations(&self) -> BTreeMap<String, String> {
        let phase = match self.phase {
            Phase::Steady => "Steady",
            Phase::Announced => "Announced",
            Phase::Retiring => "Retiring",
        };
        [(ROTATION.to_owned(), phase.to_owned()), (ROTATION_SINCE.to_owned(), self.since.to_string())].into()
    }
}

fn generate() -> Result<String, rcgen::Error> {
    Ok(KeyPair::generate_for(&PKCS_ED25519)?.serialize_pem())
}

fn is_key(pem: &str) -> bool {
    KeyPair::from_pem_and_sign_algo(pem, &PKCS_ED25519).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn lifetimes() -> Lifetimes {
        Lifetimes {
            authority: 300 * HOUR,
            certificate: 30 * HOUR,
            signing_key: 30 * HOUR,
            announcement: HOUR,
            authority_retirement: HOUR,
            signing_key_retirement: 24 * HOUR,
        }
    }

    fn at(hour: u32) -> Timestamp {
        "2026-11-21T18:00:00Z".parse::<Timestamp>().unwrap() + hour * HOUR
    }

    fn secret(keys: &Keys) -> Secret {
        let mut secret = Secret { data: Some(keys.data()), ..Secret::default() };
        secret.metadata.annotations = Some(keys.annotations());
        secret
    }

    fn current(found: &Secret, hour: u32) -> (Keys, Timestamp) {
        Keys::current(Some(found), &lifetimes(), at(hour)).unwrap()
    }

    #[test]
    fn a_key_verifies_before_it_signs_and_after_it_signed() {
        let (first, due) = Keys::current(None, &lifetimes(), at(0)).unwrap();
        assert_eq!((first.pems.len(), first.phase, due), (1, Phase::Steady, at(20)));
        let (same, due) = current(&secret(&first), 19);
        assert!(same == first && due == at(20), "nothing is due");
        let (announced, due) = current(&secret(&first), 20);
        assert_eq!((announced.pems.len(), announced.phase, due), (2, Phase::Announced, at(21)));
        assert_eq!(announced.pems[0], first.pems[0]);
        let (promoted, due) = current(&secret(&announced), 21);
        assert_eq!((promoted.phase, due), (Phase::Retiring, at(45)));
        assert_eq!([&promoted.pems[0], &promoted.pems[1]], [&announced.pems[1], &announced.pems[0]]);
        // A late operator skips no step: the age of the new key counts from its first signature.
        let (retired, due) = current(&secret(&promoted), 60);
        assert_eq!((&retired.pems[..], retired.phase, due), (&promoted.pems[..1], Phase::Steady, at(60)));
        let (announced, _) = current(&secret(&retired), 60);
        assert_eq!((announced.pems.len(), announced.since), (2, at(60)));
    }

    #[test]
    fn a_damaged_secret_is_repaired() {
        let (first, _) = Keys::current(None, &lifetimes(), at(0)).unwrap();
        let (second, _) = Keys::current(None, &lifetimes(), at(0)).unwrap();
        for damaged in ["", "what?", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let mut secret = secret(&first);
            secret.data = Some([(FILE.to_owned(), ByteString(damaged.as_bytes().to_vec()))].into());
            let (keys, _) = current(&secret, 5);
            assert!(keys.pems.len() == 1 && keys.pems != first.pems && keys.since == at(5), "{damaged}");
        }
        // One more key without an annotation: the first key signs, the other one is removed in time.
        let mut added = secret(&first);
        added.metadata.annotations = None;
        let both = format!("{}what?\n{}", first.pems[0], second.pems[0]);
        added.data = Some([(FILE.to_owned(), ByteString(both.into_bytes()))].into());
        let (keys, due) = current(&added, 5);
        assert_eq!((keys.pems.concat(), keys.phase), (format!("{}{}", first.pems[0], second.pems[0]), Phase::Retiring));
        assert_eq!(due, at(29));
    }
}
