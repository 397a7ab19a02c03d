//! Access to the files of a cache folder that other programs may change at any time: a shared volume may have a writer with bad
//! intentions.
//!
//! Each path is opened component by component, relative to the folder of the cache and without following a symlink. A file is opened
//! once: its type and size are those of the opened file, and the size is checked before the file is read.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use aws_lc_rs::rand;
use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::CacheError;
use crate::file::TEMPORARY;

/// The number of attempts to find an unused name for a temporary file.
const MAX_NAMES: usize = 16;

/// A path below the folder of the cache.
#[derive(Clone, Copy)]
pub(super) struct Location<'a> {
    /// The folder of the cache. An administrator names it, so symlinks in its own path are followed.
    root: &'a Path,
    path: &'a Path,
}

impl<'a> Location<'a> {
    /// `path` must be below `root`.
    pub(super) fn new(root: &'a Path, path: &'a Path) -> Self {
        Self { root, path }
    }

    /// Returns the content of the file; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns [`CacheError::Forged`] for anything but a regular file, [`CacheError::TooLarge`] for a file of more than `max` bytes,
    /// and [`CacheError::Io`] if the file cannot be read.
    pub(super) fn read(self, max: u64) -> Result<Option<Bytes>, CacheError> {
        let Some((file, size)) = self.open(max)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        // The file may grow meanwhile.
        file.take(size).read_to_end(&mut bytes).map_err(|error| self.io(error))?;
        Ok(Some(bytes.into()))
    }

    /// Returns the size of the file in bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub(super) fn size(self, max: u64) -> Result<Option<u64>, CacheError> {
        Ok(self.open(max)?.map(|(_, size)| size))
    }

    /// Replaces the file atomically: a crash leaves the old or the new content. Creates missing folders. Only the owner can read the
    /// file.
    ///
    /// # Errors
    /// Returns [`CacheError::Forged`] if something else is in place of a folder, and [`CacheError::Io`] if the file cannot be written.
    pub(super) fn write(self, content: &[u8]) -> Result<(), CacheError> {
        let written = || -> io::Result<()> {
            std::fs::create_dir_all(self.root)?;
            let (folder, name) = self.folder(Missing::Create)?;
            let temporary = Temporary::create(&folder)?;
            let mut file = File::from(temporary.file);
            let replaced = file
                .write_all(content)
                .and_then(|()| file.sync_all())
                .and_then(|()| Ok(renameat(&folder, &temporary.name, &folder, name)?));
            if replaced.is_err() {
                // A file that remains is removed by the garbage collection.
                let _ = unlinkat(&folder, &temporary.name, AtFlags::empty());
            }
            replaced?;
            File::from(folder).sync_all()
        };
        written().map_err(|error| self.error(error))
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// Returns the errors of [`Self::write`].
    pub(super) fn remove(self) -> Result<(), CacheError> {
        let removed = self.folder(Missing::Refuse).and_then(|(folder, name)| {
            unlinkat(folder, name, AtFlags::empty())?;
            Ok(())
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.error(error)),
            _ => Ok(()),
        }
    }

    /// Opens the file. Returns it with its size in bytes; `None` if it does not exist.
    fn open(self, max: u64) -> Result<Option<(File, u64)>, CacheError> {
        // A named pipe would block an open until another program writes to it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = self.folder(Missing::Refuse).and_then(|(folder, name)| {
            let file = openat(folder, name, flags, Mode::empty())?;
            Ok((fstat(&file)?, file))
        });
        let (stat, file) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error(error)),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(CacheError::Forged(self.path.to_owned()));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if size > max {
            return Err(CacheError::TooLarge { path: self.path.to_owned(), size, max });
        }
        Ok(Some((file.into(), size)))
    }

    /// Opens the folder of the file. Returns it with the name of the file.
    fn folder(self, missing: Missing) -> io::Result<(OwnedFd, &'a OsStr)> {
        const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let (root, path) = (self.root, self.path);
        let outside = || io::Error::other("the path is not below the folder of the cache");
        let relative = path.strip_prefix(root).map_err(|_| outside())?;
        let (Some(folders), Some(name)) = (relative.parent(), relative.file_name()) else { return Err(outside()) };
        let mut folder = open(root, FOLDER, Mode::empty())?;
        for component in folders.components() {
            let Component::Normal(name) = component else { return Err(outside()) };
            let next = || openat(&folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
            let opened = match (next(), missing) {
                (Err(Errno::NOENT), Missing::Create) => {
                    match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                        // Another replica may have created the folder.
                        Ok(()) | Err(Errno::EXIST) => next(),
                        Err(error) => Err(error),
                    }
                }
                (opened, _) => opened,
            };
            folder = opened?;
        }
        Ok((folder, name))
    }

    fn io(self, error: io::Error) -> CacheError {
        CacheError::Io { path: self.path.to_owned(), error }
    }

    fn error(self, error: io::Error) -> CacheError {
        // A symlink in place of the file or of a folder, or a file in place of a folder. A wrong folder of the cache itself is a
        // mistake of an administrator.
        let is_forged = matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NOTDIR)) && self.root.is_dir();
        if is_forged { CacheError::Forged(self.path.to_owned()) } else { self.io(error) }
    }
}

/// The treatment of a missing folder.
#[derive(Clone, Copy)]
enum Missing {
    Create,
    Refuse,
}

/// A new file with a name that no other file has.
struct Temporary {
    name: String,
    file: OwnedFd,
}

impl Temporary {
    fn create(folder: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let attempt = || {
            let mut number = [0; 8];
            rand::fill(&mut number).map_err(|_| io::Error::other("the random number generator failed"))?;
            let name = format!("{TEMPORARY}{:016x}", u64::from_ne_bytes(number));
            let file = openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR)?;
            Ok::<_, io::Error>(Self { name, file })
        };
        let mut last = attempt();
        for _ in 1..MAX_NAMES {
            match last {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = attempt(),
                other => return other,
            }
        }
        last
    }
}

#[cfg(test)]
mod tests;
