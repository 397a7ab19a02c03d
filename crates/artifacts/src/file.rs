//! Files that are either the old ones or the new ones, never something between.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// How the names of files that are not finished begin.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Writes a file so that a crash at any moment leaves the old content or the new: to a temporary file, synced,
/// renamed over `path`, and its folder synced. Readable by the owner alone.
///
/// # Errors
/// When the folder is missing or not writable, or the disk is full; `path` is then as it was.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no folder"))?;
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}
