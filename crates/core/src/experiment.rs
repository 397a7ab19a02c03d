//! Experiments (AIP-236): definitions that the operator and the policy server share.

pub mod preview;
pub mod rollout;

use sha2::{Digest as _, Sha256};

/// The prefix of all log lines about previews: a search for it finds only previews (AIP-236, `log_prefix`).
pub const LOG_PREFIX: &str = "PolicyPreviewLog";
/// The maximum number of experiments of one policy (AIP-236: "may be capped").
pub const MAX_EXPERIMENTS: usize = 10;

/// Returns the strong etag (AIP-154) of one generation of a policy or an experiment, with its quotes. An object that was
/// deleted and created again has another UID, and so another etag.
#[must_use]
pub fn etag(uid: &str, generation: impl std::fmt::Display) -> String {
    let digest = Sha256::digest(format!("{uid}/{generation}"));
    digest[..8].iter().fold(String::from("\""), |text, byte| format!("{text}{byte:02x}")) + "\""
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_etag_identifies_one_generation_of_one_object() {
        let etag = super::etag("u", 1);
        assert_eq!(etag, "\"4f435f2f803c2159\"");
        assert_ne!(etag, super::etag("u", 2));
        assert_ne!(etag, super::etag("v", 1));
    }
}
