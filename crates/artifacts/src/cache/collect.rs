//! Garbage collection: removes modules that no policy uses, and files that a crash left unfinished.

use std::collections::HashSet;
use std::fs::{DirEntry, Metadata};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Cache, CacheError};
use crate::digest::Digest;
use crate::file::TEMPORARY;

impl Cache {
    /// Removes the modules that are not in `used`, their compiled forms of all engines, and unfinished files. Returns the
    /// number of removed files.
    ///
    /// Files younger than `older_than` stay, because another replica may be writing them.
    ///
    /// # Errors
    /// Returns the first error if a folder cannot be read or a file cannot be removed. The other files are still removed.
    pub fn retain(&self, used: &HashSet<Digest>, older_than: Duration) -> Result<usize, CacheError> {
        let Some(before) = SystemTime::now().checked_sub(older_than) else { return Ok(0) };
        let mut sweep = Sweep { before, removed: 0, failed: None };
        let unused = |name: &str| format!("sha256:{name}").parse().is_ok_and(|digest: Digest| !used.contains(&digest));
        sweep.folder(&self.folder.join("modules"), |sweep, entry, name, metadata| {
            if metadata.is_file()
                && [".wasm", ".verified"].iter().any(|kind| name.strip_suffix(kind).is_some_and(unused))
            {
                sweep.remove(entry, metadata);
            }
        });
        sweep.folder(&self.folder.join("compiled"), |sweep, entry, name, metadata| {
            if !metadata.is_dir() {
                return;
            }
            let is_unused = unused(name);
            sweep.folder(&entry.path(), |sweep, entry, name, metadata| {
                let is_cache_file = [".cwasm", ".sig"].iter().any(|kind| name.strip_suffix(kind).is_some());
                if is_unused && is_cache_file && metadata.is_file() {
                    sweep.remove(entry, metadata);
                }
            });
            if is_unused {
                // The call fails, and the folder stays, while the folder has entries.
                let _ = std::fs::remove_dir(entry.path());
            }
        });
        match sweep.failed {
            Some(error) => Err(error),
            None => Ok(sweep.removed),
        }
    }
}

/// The state of one garbage collection.
struct Sweep {
    /// Files that were modified at this time or later stay.
    before: SystemTime,
    removed: usize,
    /// The first error.
    failed: Option<CacheError>,
}

impl Sweep {
    /// Removes the unfinished files of a folder and calls `visit` with each other entry.
    fn folder(&mut self, path: &Path, visit: impl Fn(&mut Self, &DirEntry, &str, &Metadata)) {
        if path.is_symlink() {
            self.failed.get_or_insert(CacheError::Forged(path.to_owned()));
            return;
        }
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            // Nothing was written yet, or another replica removed the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.fail(path, error),
        };
        for entry in entries {
            // `DirEntry::metadata` does not follow symlinks: their targets do not matter.
            let entry = entry.and_then(|entry| Ok((entry.metadata()?, entry)));
            match entry {
                Ok((metadata, entry)) => {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    if name.starts_with(TEMPORARY) && metadata.is_file() {
                        self.remove(&entry, &metadata);
                    } else {
                        visit(self, &entry, &name, &metadata);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.fail(path, error),
            }
        }
    }

    fn remove(&mut self, entry: &DirEntry, metadata: &Metadata) {
        // A file whose modification time cannot be read stays.
        if !metadata.modified().is_ok_and(|modified| modified < self.before) {
            return;
        }
        match std::fs::remove_file(entry.path()) {
            Ok(()) => self.removed += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.fail(&entry.path(), error),
        }
    }

    fn fail(&mut self, path: &Path, error: io::Error) {
        self.failed.get_or_insert(CacheError::Io { path: path.to_owned(), error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::VerificationRecord;

    const AGE: Duration = Duration::from_hours(1);

    /// Returns a cache with two modules, each compiled by two engines and with an unfinished file.
    fn cache() -> (tempfile::TempDir, Cache, Digest, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let [used, unused] = [b"used", b"none"].map(|module| {
            let digest = Digest::of(module);
            cache.put_module(&digest, module).unwrap();
            cache.put_verified(&digest, VerificationRecord { manifest: digest, against: digest }).unwrap();
            for engine in ["1", "2"] {
                cache.put_compiled(&digest, engine, b"native code").unwrap();
            }
            std::fs::write(folder.path().join("compiled").join(digest.hex()).join(".tmpAbC"), "half").unwrap();
            digest
        });
        (folder, cache, used, unused)
    }

    fn make_old(folder: &Path) {
        let long_ago = SystemTime::now() - AGE * 2;
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.metadata().unwrap().is_dir() {
                make_old(&entry.path());
            } else {
                std::fs::File::open(entry.path()).unwrap().set_modified(long_ago).unwrap();
            }
        }
    }

    #[test]
    fn unused_modules_are_removed_and_used_modules_stay() {
        let (folder, cache, used, unused) = cache();
        make_old(folder.path());
        // Two unfinished files, a module and its verification record, two compiled modules and their signatures.
        assert_eq!(cache.retain(&[used].into(), AGE).unwrap(), 2 + 2 + 4);
        assert!(cache.module(&used).unwrap().is_some() && cache.compiled(&used, "2").unwrap().is_some());
        assert!(cache.verified(&used).unwrap().is_some() && cache.verified(&unused).unwrap().is_none());
        assert!(cache.module(&unused).unwrap().is_none() && cache.compiled(&unused, "1").unwrap().is_none());
        assert!(!folder.path().join("compiled").join(unused.hex()).exists());
        assert!(folder.path().join("signing.key").exists());
        assert_eq!(cache.retain(&[used].into(), AGE).unwrap(), 0);
    }

    #[test]
    fn files_younger_than_the_limit_stay() {
        let (_folder, cache, _, unused) = cache();
        assert_eq!(cache.retain(&HashSet::new(), AGE).unwrap(), 0);
        assert!(cache.module(&unused).unwrap().is_some() && cache.compiled(&unused, "1").unwrap().is_some());
    }

    #[test]
    fn files_behind_a_symlink_stay() {
        let (folder, cache, _, unused) = cache();
        let outside = tempfile::tempdir().unwrap();
        let modules = outside.path().join("modules");
        std::fs::rename(folder.path().join("modules"), &modules).unwrap();
        std::os::unix::fs::symlink(&modules, folder.path().join("modules")).unwrap();
        make_old(&modules);
        assert!(matches!(cache.retain(&HashSet::new(), AGE), Err(CacheError::Forged(_))));
        assert!(modules.join(format!("{}.wasm", unused.hex())).exists());
    }

    #[test]
    fn files_of_other_programs_stay() {
        let (folder, cache, _, _) = cache();
        for name in ["modules/notes.txt", "modules/abc.wasm", "compiled/readme"] {
            std::fs::write(folder.path().join(name), "mine").unwrap();
        }
        std::fs::create_dir(folder.path().join("compiled/lost+found")).unwrap();
        std::fs::write(folder.path().join("compiled/lost+found/a.cwasm"), "mine").unwrap();
        make_old(folder.path());
        cache.retain(&HashSet::new(), AGE).unwrap();
        for name in ["modules/notes.txt", "modules/abc.wasm", "compiled/readme", "compiled/lost+found/a.cwasm"] {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        let missing = Cache::open(&folder.path().join("new")).unwrap();
        std::fs::remove_dir_all(folder.path().join("new")).unwrap();
        assert_eq!(missing.retain(&HashSet::new(), AGE).unwrap(), 0);
    }
}
