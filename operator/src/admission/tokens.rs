//! The tokens by which the operator recognises the API server: the path of its webhook contains one. Each token is derived from the
//! key of the CA, which all replicas read, and from the current period. So all replicas know the same tokens without another
//! Secret, and a token is replaced by itself.

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use jiff::Timestamp;

use crate::ca::certificate::Pair;

/// The time for which the registration has the same token, in seconds: 30 days. The tokens of the period before and of the next one
/// are accepted too, because API servers learn of another token at different times.
const PERIOD: i64 = 30 * 24 * 3600;
/// The number of CA keys whose tokens are accepted: of the CA that signs, and of the one before it.
const MAX_KEYS: usize = 2;

/// The keys whose tokens this replica accepts, the newest first.
#[derive(Default)]
pub(crate) struct Tokens(ArcSwap<Vec<TokenKey>>);

#[derive(Clone)]
struct TokenKey {
    /// The private key of the CA, in PEM.
    source: Arc<str>,
    key: hmac::Key,
}

impl TokenKey {
    fn new(source: &str) -> Self {
        Self { source: source.into(), key: hmac::Key::new(hmac::HMAC_SHA256, source.as_bytes()) }
    }

    /// Returns the token of a period, in hexadecimal digits: a segment of a webhook's path must be a DNS-1123 subdomain.
    fn token(&self, period: i64) -> String {
        use std::fmt::Write as _;
        let signed = hmac::sign(&self.key, format!("proviso operator webhook, period {period}").as_bytes());
        signed.as_ref().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

fn period(now: Timestamp) -> i64 {
    now.as_second().div_euclid(PERIOD)
}

/// Returns the token that the registration sends now.
pub(super) fn current(ca: &Pair, now: Timestamp) -> String {
    TokenKey::new(&ca.key).token(period(now))
}

impl Tokens {
    /// Accepts the tokens of this CA, and still those of the CA before it.
    pub(super) fn learn(&self, ca: &Pair) {
        let known = self.0.load();
        if known.first().is_none_or(|newest| *newest.source != *ca.key) {
            let others = known.iter().filter(|other| *other.source != *ca.key).cloned();
            let keys = std::iter::once(TokenKey::new(&ca.key)).chain(others).take(MAX_KEYS).collect();
            self.0.store(Arc::new(keys));
        }
    }

    /// Returns true if the token is one that the registration sends or has sent.
    pub(super) fn accept(&self, token: &str, now: Timestamp) -> bool {
        let period = period(now);
        let periods = [period, period - 1, period + 1];
        self.0.load().iter().any(|key| {
            let is_equal = |period| verify_slices_are_equal(key.token(period).as_bytes(), token.as_bytes()).is_ok();
            periods.into_iter().any(is_equal)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca(key: &str) -> Pair {
        Pair { certificate: String::new(), key: key.to_owned() }
    }

    fn day(day: i64) -> Timestamp {
        Timestamp::from_second(day * 24 * 3600).unwrap()
    }

    #[test]
    fn a_token_is_accepted_in_its_period_and_the_next_and_replaced_by_itself() {
        let tokens = Tokens::default();
        let token = current(&ca("a"), day(100));
        assert!(!tokens.accept(&token, day(100)), "the CA is not known yet");
        tokens.learn(&ca("a"));
        for (now, accepted) in [(59, false), (60, true), (90, true), (100, true), (149, true), (150, false)] {
            assert_eq!(tokens.accept(&token, day(now)), accepted, "day {now}");
        }
        assert_ne!(current(&ca("a"), day(120)), token);
        for wrong in ["", "a", &token[1..], &token.to_uppercase(), &current(&ca("b"), day(100))] {
            assert!(!tokens.accept(wrong, day(100)), "{wrong}");
        }
        let is_segment = token.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        assert!(is_segment && token.len() == 64, "{token}");
    }

    #[test]
    fn the_token_of_the_previous_ca_is_still_accepted() {
        let tokens = Tokens::default();
        for key in ["a", "b", "b", "c"] {
            tokens.learn(&ca(key));
        }
        let accepted = ["a", "b", "c"].map(|key| tokens.accept(&current(&ca(key), day(1)), day(1)));
        assert_eq!(accepted, [false, true, true]);
    }
}
