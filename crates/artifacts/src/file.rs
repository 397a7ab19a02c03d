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

/// Replaces the content of an existing file atomically if it is still `expected`, and keeps the permissions of the file. Returns
/// false, and changes nothing, if another program has changed or removed the file.
///
/// # Errors
/// Returns the errors of [`write_atomically`], and an error if the file cannot be read.
pub fn rewrite_if_unchanged(path: &Path, expected: &[u8], content: &[u8]) -> io::Result<bool> {
    let permissions = match std::fs::metadata(path) {
        Ok(metadata) => metadata.permissions(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let file = temporary(path, content, 0o666)?;
    file.as_file().set_permissions(permissions)?;
    // The sync is slow, so the comparison follows it: only the rename comes after the comparison.
    file.as_file().sync_all()?;
    if !has_content(path, expected)? {
        return Ok(false);
    }
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(path)?;
    Ok(true)
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

/// Removes a file durably if its content is still `expected`. Returns false, and changes nothing, if another program has changed or
/// removed the file.
///
/// # Errors
/// Returns the errors of [`remove_durably`], and an error if the file cannot be read.
pub fn remove_if_unchanged(path: &Path, expected: &[u8]) -> io::Result<bool> {
    if !has_content(path, expected)? {
        return Ok(false);
    }
    remove_durably(path)?;
    Ok(true)
}

/// Returns true if the file has this content; false also if it does not exist.
fn has_content(path: &Path, expected: &[u8]) -> io::Result<bool> {
    match std::fs::read(path) {
        Ok(content) => Ok(content == expected),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_program_has_changed_is_neither_replaced_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        std::fs::write(&path, "one").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(rewrite_if_unchanged(&path, b"one", b"two").unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(!rewrite_if_unchanged(&path, b"one", b"three").unwrap());
        assert!(!remove_if_unchanged(&path, b"one").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert!(remove_if_unchanged(&path, b"two").unwrap());
        assert!(!rewrite_if_unchanged(&path, b"two", b"three").unwrap());
        assert!(!remove_if_unchanged(&path, b"two").unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no temporary file is left");
    }
}
