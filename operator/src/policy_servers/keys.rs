//! The keys of a policy server that are rotated: the keys that sign the modules that it compiles, and the tokens by which it
//! recognises API servers. The first key is in use, all keys are accepted. Pure except for random keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use proviso_core::CallerToken;
use proviso_crds::names::{ROTATION, ROTATION_SINCE};
use rcgen::{KeyPair, PKCS_ED25519};

use super::names;
use crate::ca::rotation::{self, Phase, RotationState, Step, Times};
use crate::ca::secret::text;
use crate::config::Lifetimes;

/// The kind of the keys in a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ed25519 keys in PEM. The first key signs compiled modules, all keys verify them.
    Signing,
    /// Caller tokens, one in each line. Webhooks send the first token, replicas accept all tokens.
    CallerToken,
}

impl Kind {
    /// Returns the key of the Secret's data.
    fn file(self) -> &'static str {
        match self {
            Self::Signing => "signing.key",
            Self::CallerToken => names::CALLER_TOKENS,
        }
    }

    /// Returns the readable keys of a text.
    fn parse(self, text: &str) -> Vec<String> {
        const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
        const END: &str = "-----END PRIVATE KEY-----";
        match self {
            Self::Signing => {
                let keys = text.split(END).filter_map(|key| Some(format!("{}{END}\n", &key[key.find(BEGIN)?..])));
                keys.filter(|key| KeyPair::from_pem_and_sign_algo(key, &PKCS_ED25519).is_ok()).collect()
            }
            Self::CallerToken => {
                let tokens = text.lines().filter_map(|line| CallerToken::parse(line.trim()));
                tokens.map(|token| line(token.expose())).collect()
            }
        }
    }

    fn generate(self) -> Result<String, KeyError> {
        match self {
            Self::Signing => Ok(KeyPair::generate_for(&PKCS_ED25519)?.serialize_pem()),
            Self::CallerToken => {
                let mut random = [0; 32];
                getrandom::fill(&mut random)?;
                Ok(line(CallerToken::from_random(random).expose()))
            }
        }
    }

    fn lifetime(self, lifetimes: &Lifetimes) -> Duration {
        match self {
            Self::Signing => lifetimes.signing_key,
            Self::CallerToken => lifetimes.caller_token,
        }
    }

    fn retirement(self, lifetimes: &Lifetimes) -> Duration {
        match self {
            Self::Signing => lifetimes.signing_key_retirement,
            Self::CallerToken => lifetimes.caller_token_retirement,
        }
    }
}

fn line(token: &str) -> String {
    format!("{token}\n")
}

/// The error of a key that cannot be generated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(transparent)]
    Key(#[from] rcgen::Error),
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// The keys of one kind, and the phase of their rotation.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    kind: Kind,
    /// The keys as the Secret stores them, each with its line end.
    items: Vec<String>,
    phase: Phase,
    since: Timestamp,
}

impl Keys {
    /// Reads the keys of a Secret; `None` if it has no readable key.
    fn read(kind: Kind, secret: &Secret, now: Timestamp) -> Option<Self> {
        let keys = kind.parse(&text(secret, kind.file()));
        let annotation = |name: &str| secret.annotations().get(name).map(String::as_str);
        let phase = match (keys.len(), annotation(ROTATION)) {
            (0, _) => return None,
            (1, _) => Phase::Steady,
            (2, Some("Announced")) => Phase::Announced,
            // Without the annotation, the other keys may be in use.
            _ => Phase::Retiring,
        };
        let since =
            annotation(ROTATION_SINCE).and_then(|since| since.parse::<Timestamp>().ok()).unwrap_or(now).min(now);
        Some(Self { kind, items: keys, phase, since })
    }

    /// Returns keys to start with, if the Secret has none. Keys that are `used` stay accepted, and one of them stays in use: API
    /// servers send the tokens in webhooks, whatever happened to the Secret.
    fn recover(kind: Kind, used: &BTreeSet<String>, now: Timestamp) -> Result<Self, KeyError> {
        let mut keys: Vec<_> = used.iter().flat_map(|key| kind.parse(key)).collect();
        if keys.is_empty() {
            keys.push(kind.generate()?);
        }
        let phase = if keys.len() == 1 { Phase::Steady } else { Phase::Retiring };
        Ok(Self { kind, items: keys, phase, since: now })
    }

    /// Returns the current keys, and the time of the next check. `used` has the keys that somebody uses, as far as the operator
    /// knows: a key among them is not removed. It is empty for signing keys, whose use the operator does not know.
    pub fn current(
        kind: Kind,
        found: Option<&Secret>,
        used: &BTreeSet<String>,
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> Result<(Self, Timestamp), KeyError> {
        let found = found.and_then(|secret| Self::read(kind, secret, now));
        let mut keys = match found {
            Some(keys) => keys,
            None => Self::recover(kind, used, now)?,
        };
        let times = Times { announcement: lifetimes.announcement, retirement: kind.retirement(lifetimes) };
        if !keys.is_settled(used) && now >= keys.since + times.retirement / 4 {
            // The retirement counts from the last use, as far as the checks show it.
            keys.since = now;
        }
        let keys = match rotation::step(&keys.rotation_state(used, lifetimes), &times, now) {
            Step::Announce => {
                let announced = keys.items.iter().cloned().chain([kind.generate()?]).collect();
                Self { items: announced, phase: Phase::Announced, since: now, ..keys }
            }
            Step::Promote => {
                let promoted = keys.items.into_iter().rev().collect();
                Self { kind, items: promoted, phase: Phase::Retiring, since: now }
            }
            // The age of the remaining key counts from its promotion, so `since` stays.
            Step::Retire => Self { items: keys.items[..1].to_vec(), phase: Phase::Steady, ..keys },
            Step::Wait | Step::WaitUntil(_) => keys,
        };
        let due = match rotation::step(&keys.rotation_state(used, lifetimes), &times, now) {
            Step::WaitUntil(due) if keys.is_settled(used) => due,
            Step::WaitUntil(due) => due.min(now + times.retirement / 4),
            _ => now,
        };
        Ok((keys, due))
    }

    /// Returns whether no key that is about to be removed is used.
    fn is_settled(&self, used: &BTreeSet<String>) -> bool {
        self.phase != Phase::Retiring || self.items[1..].iter().all(|key| !used.contains(key.trim_end()))
    }

    fn rotation_state(&self, used: &BTreeSet<String>, lifetimes: &Lifetimes) -> RotationState {
        let lifetime = self.kind.lifetime(lifetimes);
        let renew_at = rotation::renew_at(self.since + lifetime, lifetime);
        let is_settled = self.is_settled(used);
        // Keys do not expire: if no operator runs, they stay in use.
        RotationState { phase: self.phase, since: self.since, renew_at, expires_at: Timestamp::MAX, is_settled }
    }

    pub fn data(&self) -> BTreeMap<String, ByteString> {
        [(self.kind.file().to_owned(), ByteString(self.items.concat().into_bytes()))].into()
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

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn lifetimes() -> Lifetimes {
        Lifetimes {
            authority: 300 * HOUR,
            certificate: 30 * HOUR,
            signing_key: 30 * HOUR,
            caller_token: 30 * HOUR,
            announcement: HOUR,
            authority_retirement: HOUR,
            signing_key_retirement: 24 * HOUR,
            caller_token_retirement: 4 * HOUR,
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

    fn new(kind: Kind) -> (Keys, Timestamp) {
        Keys::current(kind, None, &BTreeSet::new(), &lifetimes(), at(0)).unwrap()
    }

    fn current(found: &Secret, hour: u32) -> (Keys, Timestamp) {
        Keys::current(Kind::Signing, Some(found), &BTreeSet::new(), &lifetimes(), at(hour)).unwrap()
    }

    /// Returns the current tokens while webhooks send these tokens.
    fn tokens(found: Option<&Secret>, used: &[&String], hour: u32) -> (Keys, Timestamp) {
        let used = used.iter().map(|token| token.trim_end().to_owned()).collect();
        Keys::current(Kind::CallerToken, found, &used, &lifetimes(), at(hour)).unwrap()
    }

    #[test]
    fn a_key_verifies_before_it_signs_and_after_it_signed() {
        let (first, due) = new(Kind::Signing);
        assert_eq!((first.items.len(), first.phase, due), (1, Phase::Steady, at(20)));
        let (same, due) = current(&secret(&first), 19);
        assert!(same == first && due == at(20), "nothing is due");
        let (announced, due) = current(&secret(&first), 20);
        assert_eq!((announced.items.len(), announced.phase, due), (2, Phase::Announced, at(21)));
        assert_eq!(announced.items[0], first.items[0]);
        let (promoted, due) = current(&secret(&announced), 21);
        assert_eq!((promoted.phase, due), (Phase::Retiring, at(45)));
        assert_eq!([&promoted.items[0], &promoted.items[1]], [&announced.items[1], &announced.items[0]]);
        // A late operator skips no step: the age of the new key counts from its first signature.
        let (retired, due) = current(&secret(&promoted), 60);
        assert_eq!((&retired.items[..], retired.phase, due), (&promoted.items[..1], Phase::Steady, at(60)));
        let (announced, _) = current(&secret(&retired), 60);
        assert_eq!((announced.items.len(), announced.since), (2, at(60)));
    }

    #[test]
    fn a_damaged_secret_is_repaired() {
        let (first, _) = new(Kind::Signing);
        let (second, _) = new(Kind::Signing);
        for damaged in ["", "what?", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let mut secret = secret(&first);
            secret.data = Some([(Kind::Signing.file().to_owned(), ByteString(damaged.as_bytes().to_vec()))].into());
            let (keys, _) = current(&secret, 5);
            assert!(keys.items.len() == 1 && keys.items != first.items && keys.since == at(5), "{damaged}");
        }
        // One more key without an annotation: the first key signs, the other one is removed in time.
        let mut added = secret(&first);
        added.metadata.annotations = None;
        let both = format!("{}what?\n{}", first.items[0], second.items[0]);
        added.data = Some([(Kind::Signing.file().to_owned(), ByteString(both.into_bytes()))].into());
        let (keys, due) = current(&added, 5);
        assert_eq!(
            (keys.items.concat(), keys.phase),
            (format!("{}{}", first.items[0], second.items[0]), Phase::Retiring)
        );
        assert_eq!(due, at(29));
    }

    #[test]
    fn a_caller_token_is_accepted_before_webhooks_send_it_and_until_no_webhook_sends_it() {
        let (first, due) = new(Kind::CallerToken);
        let old = &first.items[0];
        assert!(CallerToken::parse(old.trim_end()).is_some() && due == at(20));
        let (announced, due) = tokens(Some(&secret(&first)), &[old], 20);
        assert_eq!((&announced.items[0], announced.phase, due), (old, Phase::Announced, at(21)));
        let new = &announced.items[1];
        let (promoted, due) = tokens(Some(&secret(&announced)), &[old], 21);
        // A webhook still sends the old token: the operator looks again soon.
        assert_eq!(
            (&promoted.items[..], promoted.phase, due),
            (&[new.clone(), old.clone()][..], Phase::Retiring, at(22))
        );
        // During break-glass, a webhook sends the old token for a long time.
        let (waiting, due) = tokens(Some(&secret(&promoted)), &[old, new], 40);
        assert_eq!((&waiting.items, waiting.since, due), (&promoted.items, at(40), at(41)));
        // The old token stays accepted for its whole retirement, because API servers learn of the switch at different times.
        let (settled, due) = tokens(Some(&secret(&waiting)), &[new], 41);
        assert!(settled == waiting && due == at(44));
        let (retired, due) = tokens(Some(&secret(&settled)), &[new], 44);
        assert_eq!((&retired.items[..], retired.phase, due), (&[new.clone()][..], Phase::Steady, at(60)));
    }

    #[test]
    fn the_tokens_in_webhooks_survive_the_loss_of_their_secret() {
        let (first, _) = new(Kind::CallerToken);
        let (second, _) = new(Kind::CallerToken);
        assert!(first.items != second.items);
        let (found, due) = tokens(None, &[&first.items[0]], 5);
        assert_eq!((&found.items, found.phase, due), (&first.items, Phase::Steady, at(25)));
        let mut damaged = secret(&first);
        damaged.data = Some([(names::CALLER_TOKENS.to_owned(), ByteString(b"short".to_vec()))].into());
        let (both, _) = tokens(Some(&damaged), &[&first.items[0], &second.items[0]], 5);
        assert!(both.items.len() == 2 && both.phase == Phase::Retiring, "both tokens stay accepted");
    }

    #[test]
    fn an_old_time_in_the_annotation_begins_a_rotation() {
        let (first, _) = new(Kind::CallerToken);
        let mut asked = secret(&first);
        asked.annotations_mut().insert(ROTATION_SINCE.to_owned(), "2000-01-01T00:00:00Z".to_owned());
        let (announced, _) = tokens(Some(&asked), &[&first.items[0]], 1);
        assert_eq!((announced.items.len(), announced.phase, announced.since), (2, Phase::Announced, at(1)));
    }
}
