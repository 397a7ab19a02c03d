//! Verification records: the proof that an artifact with this module has the required signatures.
//!
//! Each record is signed like a compiled module, so that write access to the folder is not enough to forge a record.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Cache, CacheError, MAX_SIGNATURE};
use crate::digest::Digest;

/// The record of a successful verification of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationRecord {
    /// The digest of the signed manifest.
    pub manifest: Digest,
    /// The fingerprint of the verification settings and the trusted root.
    pub against: Digest,
}

impl Cache {
    /// Returns the last verification record of the module with this digest; `None` if the cache has no record.
    ///
    /// # Errors
    /// Returns [`CacheError::Io`] if the file cannot be read, and [`CacheError::Forged`] if it has no valid signature.
    pub fn verified(&self, module: &Digest) -> Result<Option<VerificationRecord>, CacheError> {
        let path = self.module_path(module).with_extension("verified");
        let Some(bytes) = self.read(&path, MAX_SIGNATURE)? else { return Ok(None) };
        let verified = std::str::from_utf8(&bytes).ok().and_then(|text| {
            let mut lines = text.lines();
            let verified =
                VerificationRecord { manifest: lines.next()?.parse().ok()?, against: lines.next()?.parse().ok()? };
            let signature = STANDARD.decode(lines.next()?).ok()?;
            self.keys.verify(&statement(module, verified), &signature).then_some(verified)
        });
        verified.map(Some).ok_or(CacheError::Forged(path))
    }

    /// Stores the verification record of a module. Returns false, and stores nothing, if this process may not sign now.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put_verified(&self, module: &Digest, verified: VerificationRecord) -> Result<bool, CacheError> {
        if !self.may_sign() {
            return Ok(false);
        }
        let signature = STANDARD.encode(self.keys.sign(&statement(module, verified)));
        let text = format!("{}\n{}\n{signature}\n", verified.manifest, verified.against);
        self.write(&self.module_path(module).with_extension("verified"), text.as_bytes())?;
        Ok(true)
    }
}

/// Returns the bytes to sign.
fn statement(module: &Digest, VerificationRecord { manifest, against }: VerificationRecord) -> Vec<u8> {
    format!("proviso verified module v1\n{module}\n{manifest}\n{against}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verification_record_survives_a_restart_and_cannot_be_forged() {
        let folder = tempfile::tempdir().unwrap();
        let [module, other, manifest, against] = ["module", "other", "m", "a"].map(|text| Digest::of(text.as_bytes()));
        let verified = VerificationRecord { manifest, against };
        let open = || Cache::open(folder.path()).unwrap();
        assert_eq!(open().verified(&module).unwrap(), None);
        open().put_verified(&module, verified).unwrap();
        assert_eq!(open().verified(&module).unwrap(), Some(verified));

        let path = |digest: &Digest| open().module_path(digest).with_extension("verified");
        let text = std::fs::read_to_string(path(&module)).unwrap();
        std::fs::write(path(&other), &text).unwrap();
        assert!(matches!(open().verified(&other), Err(CacheError::Forged(_))), "the record of another module");
        for forged in
            [text.replace(&against.hex(), &other.hex()), text.replace(&manifest.hex(), &other.hex()), String::new()]
        {
            std::fs::write(path(&module), &forged).unwrap();
            assert!(matches!(open().verified(&module), Err(CacheError::Forged(_))), "{forged}");
        }
        open().put_verified(&module, verified).unwrap();
        std::fs::remove_file(folder.path().join("signing.key")).unwrap();
        assert!(matches!(open().verified(&module), Err(CacheError::Forged(_))), "a record signed with another key");
    }
}
