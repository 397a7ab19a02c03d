//! Files that are either the old ones or the new ones, never something between.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// How the names of files that are not finished begin.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Writes a file so that a crash at any moment leaves the old content or the new: to a temporary file, synced,
/// renamed over `path`, and its folder synced. Readable by the owner alone.
///
/// # Errors
/// When the folder is missing or not writable, or the disk is full; `path` is then as it was.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, temporary(path, content, 0o600)?)
}

/// The same for a file that is not ours alone: it keeps its permissions.
///
/// # Errors
/// As [`write_atomically`], and where the file is not there.
pub fn rewrite_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let permissions = std::fs::metadata(path)?.permissions();
    let file = temporary(path, content, 0o666)?;
    file.as_file().set_permissions(permissions)?;
    replace(path, file)
}

/// The same for a file that is not there yet, with the permissions that the process gives to new files.
///
/// # Errors
/// As [`write_atomically`], and where there is such a file.
pub fn create_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = temporary(path, content, 0o666)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_folder(path)
}

/// Removes a file for good: not even a crash right after brings it back.
///
/// # Errors
/// When the file cannot be removed.
pub fn remove_for_good(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    sync_folder(path)
}

/// A file beside this one, as far as the process lets files have these permissions.
fn temporary(path: &Path, content: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no folder"))?;
    let permissions = Permissions::from_mode(mode);
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).permissions(permissions).tempfile_in(folder)?;
    file.write_all(content)?;
    Ok(file)
}

fn replace(path: &Path, file: NamedTempFile) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
