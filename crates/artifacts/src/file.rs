//! Atomic writes: after a crash a file has its old or its new content, never a part of it.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// The prefix of the names of unfinished files.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Writes a file atomically: a crash leaves the old or the new content.
///
/// The content goes to a temporary file, which is synced and renamed to `path`; then the folder is synced. Only the owner
/// can read the file.
///
/// # Errors
/// Returns an error if the folder does not exist or is not writable, or if the disk is full. The file is then unchanged.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, temporary(path, content, 0o600)?)
}

/// Replaces the content of an existing file atomically and keeps the permissions of the file.
///
/// # Errors
/// Returns the errors of [`write_atomically`], and an error if the file does not exist.
pub fn rewrite_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let permissions = std::fs::metadata(path)?.permissions();
    let file = temporary(path, content, 0o666)?;
    file.as_file().set_permissions(permissions)?;
    replace(path, file)
}

/// Creates a file atomically, with the permissions that the process gives to new files (mode 0666 and the umask).
///
/// # Errors
/// Returns the errors of [`write_atomically`], and an error if the file exists.
pub fn create_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = temporary(path, content, 0o666)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_folder(path)
}

/// Removes a file durably: the file stays removed after a crash.
///
/// # Errors
/// Returns an error if the file cannot be removed or the folder cannot be synced.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    sync_folder(path)
}

/// Creates a temporary file in the folder of `path`, with the permissions `mode` limited by the umask.
fn temporary(path: &Path, content: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no parent folder"))?;
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
