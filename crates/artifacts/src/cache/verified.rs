//! What was verified: that an artifact with this module was signed as it had to be. Signed as compiled modules are,
//! so that nobody who can write to the folder can say so.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Cache, CacheError, read, write};
use crate::digest::Digest;

/// That a module was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The artifact that was signed.
    pub manifest: Digest,
    /// What it was verified against.
    pub against: Digest,
}

impl Cache {
    /// What the module with this digest was last verified against, if it was.
    ///
    /// # Errors
    /// When the file cannot be read or carries no valid signature.
    pub fn verified(&self, module: &Digest) -> Result<Option<Verified>, CacheError> {
        let path = self.module_path(module).with_extension("verified");
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let verified = std::str::from_utf8(&bytes).ok().and_then(|text| {
            let mut lines = text.lines();
            let verified = Verified { manifest: lines.next()?.parse().ok()?, against: lines.next()?.parse().ok()? };
            let signature = STANDARD.decode(lines.next()?).ok()?;
            self.keys.verify(&statement(module, verified), &signature).then_some(verified)
        });
        verified.map(Some).ok_or(CacheError::Forged(path))
    }

    /// Keeps that a module was verified.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_verified(&self, module: &Digest, verified: Verified) -> Result<(), CacheError> {
        let signature = STANDARD.encode(self.keys.sign(&statement(module, verified)));
        let text = format!("{}\n{}\n{signature}\n", verified.manifest, verified.against);
        write(&self.module_path(module).with_extension("verified"), text.as_bytes())
    }
}

/// What is signed.
fn statement(module: &Digest, Verified { manifest, against }: Verified) -> Vec<u8> {
    format!("proviso verified module v1\n{module}\n{manifest}\n{against}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_verified_survives_a_restart_and_nobody_else_can_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let [module, other, manifest, against] = ["module", "other", "m", "a"].map(|text| Digest::of(text.as_bytes()));
        let verified = Verified { manifest, against };
        let open = || Cache::open(folder.path()).unwrap();
        assert_eq!(open().verified(&module).unwrap(), None);
        open().put_verified(&module, verified).unwrap();
        assert_eq!(open().verified(&module).unwrap(), Some(verified));

        let path = |digest: &Digest| open().module_path(digest).with_extension("verified");
        let text = std::fs::read_to_string(path(&module)).unwrap();
        std::fs::write(path(&other), &text).unwrap();
        assert!(matches!(open().verified(&other), Err(CacheError::Forged(_))), "of another module");
        for forged in
            [text.replace(&against.hex(), &other.hex()), text.replace(&manifest.hex(), &other.hex()), String::new()]
        {
            std::fs::write(path(&module), &forged).unwrap();
            assert!(matches!(open().verified(&module), Err(CacheError::Forged(_))), "{forged}");
        }
        open().put_verified(&module, verified).unwrap();
        std::fs::remove_file(folder.path().join("signing.key")).unwrap();
        assert!(matches!(open().verified(&module), Err(CacheError::Forged(_))), "by another key");
    }
}
