//! What experiments are (AIP-236), whoever runs them.

pub mod rollout;

use sha2::{Digest as _, Sha256};

/// What every line about a preview starts with: searching for it isolates the previews (AIP-236, `log_prefix`).
pub const LOG_PREFIX: &str = "PolicyPreviewLog";
/// The most experiments of one policy (AIP-236: "may be capped").
pub const MAX_EXPERIMENTS: usize = 10;

/// The etag of one generation of a policy or an experiment, with its quotes: strong (AIP-154), and another one for
/// another object of the same name.
#[must_use]
pub fn etag(uid: &str, generation: impl std::fmt::Display) -> String {
    let digest = Sha256::digest(format!("{uid}/{generation}"));
    digest[..8].iter().fold(String::from("\""), |text, byte| format!("{text}{byte:02x}")) + "\""
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_etag_is_of_one_generation_of_one_object() {
        let etag = super::etag("u", 1);
        assert_eq!(etag, "\"4f435f2f803c2159\"");
        assert_ne!(etag, super::etag("u", 2));
        assert_ne!(etag, super::etag("v", 1));
    }
}
