//! The folder of one component: `event`, `items/<policy id>`, `previous/<policy id>`, and the record of its deliveries. Each file is
//! replaced atomically, and the event is written last: a reader that sees a new event can read all policies.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proviso_core::configuration::{EVENT_KEY, ITEM_PREFIX, PREVIOUS_PREFIX, Part, Place, StoredParts};

/// The folders of bodies, with the prefixes of their keys. A previous body is written before the current one replaces it.
const FOLDERS: [(&str, &str); 2] = [("previous", PREVIOUS_PREFIX), ("items", ITEM_PREFIX)];
/// The file of the record.
pub const RECORD: &str = "record.json";
/// The name of a file before it is complete. One task at a time writes to a folder.
const TEMPORARY: &str = ".new";
/// The maximum size of a stored body that is read, in bytes. It is larger than every body, so that a larger file is found as changed.
const MAX_FILE: u64 = 1024 * 1024;
/// The permissions of files: readable by the component, which may run as another user.
const READABLE: u32 = 0o644;
/// The permissions of confidential files.
const CONFIDENTIAL: u32 = 0o600;

/// The error of a folder of a component.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: is not a folder: remove it", path = .0.display())]
    NotFolder(PathBuf),
    #[error(
        "{path}: the file system does not keep the permissions of files ({mode:o} in place of {wanted:o}): use another one for --deliver-to",
        path = path.display()
    )]
    Permissions { path: PathBuf, mode: u32, wanted: u32 },
    #[error("{path}: the component belongs to no subscription any more", path = .0.display())]
    Closed(PathBuf),
    #[error("the write stopped: {0}")]
    Stopped(String),
}

/// The folder of a component.
#[derive(Debug)]
pub struct ComponentFolder {
    path: PathBuf,
    /// True after [`Self::close`]. A write that was begun before ends before the folder is closed.
    is_closed: Mutex<bool>,
}

/// A stored body.
struct StoredFile {
    key: String,
    place: Place,
    path: PathBuf,
    /// False for a link or another file that the server has not written.
    is_regular: bool,
}

impl ComponentFolder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, is_closed: Mutex::default() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends all writes: each later one fails. Returns when a write that was begun has ended.
    pub fn close(&self) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Runs a write, unless the folder is closed.
    fn write<T>(&self, write: impl FnOnce() -> Result<T, FolderError>) -> Result<T, FolderError> {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_closed { Err(FolderError::Closed(self.path.clone())) } else { write() }
    }

    /// Reads the record as JSON. `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn record(&self) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.path.join(RECORD);
        match std::fs::read(&path) {
            Ok(json) => Ok(Some(json)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FolderError::Io { path, error }),
        }
    }

    /// Replaces the record, and creates the folder if it is missing.
    ///
    /// # Errors
    /// Returns an error if the folder or the file cannot be written.
    pub fn write_record(&self, json: &[u8]) -> Result<(), FolderError> {
        self.write(|| {
            create_folder(&self.path)?;
            replace(&self.path, RECORD, json, CONFIDENTIAL)?;
            sync(&self.path)
        })
    }

    /// Reads the stored policies. All bodies of one kind are one part: files have no common limit of their size.
    ///
    /// # Errors
    /// Returns an error if a folder or a file cannot be read.
    pub fn read(&self) -> Result<StoredParts, FolderError> {
        let mut parts: BTreeMap<Place, BTreeMap<String, Arc<str>>> = BTreeMap::new();
        let event = self.path.join(EVENT_KEY);
        if let Some(text) = event_text(&event)? {
            parts.entry(Place::ConfigMap).or_default().insert(EVENT_KEY.to_owned(), text);
        }
        for StoredFile { key, place, path, is_regular } in self.files()? {
            // A link may lead anywhere: it counts as an empty body, and is replaced.
            let text = if is_regular { text(&path)? } else { Some("".into()) };
            parts.entry(place).or_default().extend(text.map(|text| (key, text)));
        }
        Ok(StoredParts::read(parts.into_iter().map(|(place, data)| Part { place, index: 0, data })))
    }

    /// Writes the parts: the previous bodies, the current bodies, and the event. Before the event, removes the bodies that the parts
    /// replace, and those of the stale parts.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. Another call completes the write.
    pub fn write_parts(&self, parts: &[&Part], stale: &[(Place, usize)]) -> Result<(), FolderError> {
        self.write(|| self.write_parts_now(parts, stale))
    }

    fn write_parts_now(&self, parts: &[&Part], stale: &[(Place, usize)]) -> Result<(), FolderError> {
        create_folder(&self.path)?;
        let files = self.files()?;
        let wanted: BTreeMap<&str, (Place, &Arc<str>)> = parts
            .iter()
            .flat_map(|part| part.data.iter().map(|(key, text)| (key.as_str(), (part.place, text))))
            .collect();
        for (name, prefix) in FOLDERS {
            let folder = self.path.join(name);
            create_folder(&folder)?;
            for (key, (place, body)) in wanted.range(prefix..) {
                let Some(id) = key.strip_prefix(prefix) else { break };
                let stored = files.iter().find(|file| file.key == *key);
                let is_stored = stored.is_some_and(|file| file.is_regular && file.place == *place);
                if is_stored && text(&folder.join(id))?.as_ref() == Some(*body) {
                    continue;
                }
                let mode = if *place == Place::Secret { CONFIDENTIAL } else { READABLE };
                replace(&folder, id, body.as_bytes(), mode)?;
            }
            sync(&folder)?;
        }
        // `read` has put all files of one kind into the part 0.
        let is_replaced =
            |place| parts.iter().any(|part| (part.place, part.index) == (place, 0)) || stale.contains(&(place, 0));
        for file in files.iter().filter(|file| is_replaced(file.place) && !wanted.contains_key(file.key.as_str())) {
            remove(&file.path)?;
        }
        for (name, _) in FOLDERS {
            sync(&self.path.join(name))?;
        }
        match wanted.get(EVENT_KEY) {
            Some((_, event)) => {
                replace(&self.path, EVENT_KEY, event.as_bytes(), READABLE)?;
                sync(&self.path)
            }
            None => Ok(()),
        }
    }

    /// Removes the files that the server has written, the record as the last one, and then the folder, if it is empty.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub fn remove(&self) -> Result<(), FolderError> {
        for file in self.files()? {
            remove(&file.path)?;
        }
        for (name, _) in FOLDERS {
            remove(&self.path.join(name).join(TEMPORARY))?;
            remove_folder(&self.path.join(name))?;
        }
        for name in [EVENT_KEY, TEMPORARY, RECORD] {
            remove(&self.path.join(name))?;
        }
        remove_folder(&self.path)
    }

    /// Returns the files in the folders of bodies. A file whose permissions other users have is not confidential.
    fn files(&self) -> Result<Vec<StoredFile>, FolderError> {
        let mut files = Vec::new();
        for (name, prefix) in FOLDERS {
            let folder = self.path.join(name);
            let io = |error| FolderError::Io { path: folder.clone(), error };
            match std::fs::symlink_metadata(&folder) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => return Err(FolderError::NotFolder(folder)),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io(error)),
            }
            for entry in std::fs::read_dir(&folder).map_err(io)? {
                let entry = entry.map_err(io)?;
                let metadata = match entry.metadata() {
                    Ok(metadata) if !metadata.is_dir() => metadata,
                    Ok(_) => continue,
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(io(error)),
                };
                let is_shared = metadata.permissions().mode() & 0o077 != 0;
                files.push(StoredFile {
                    key: format!("{prefix}{}", entry.file_name().to_string_lossy()),
                    place: if is_shared { Place::ConfigMap } else { Place::Secret },
                    path: entry.path(),
                    is_regular: metadata.is_file(),
                });
            }
        }
        Ok(files)
    }
}

/// Reads a file, at most [`MAX_FILE`] bytes of it. `None` if there is none.
fn text(path: &Path) -> Result<Option<Arc<str>>, FolderError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into())),
        Err(error) if ErrorKind::NotFound == io::Error::kind(&error) => Ok(None),
        Err(error) => Err(FolderError::Io { path: path.to_owned(), error }),
    }
}

/// Reads the event. `None` if there is none. What is no regular file counts as an empty event, and is replaced: a link may lead anywhere,
/// and a pipe would block.
fn event_text(path: &Path) -> Result<Option<Arc<str>>, FolderError> {
    let is_other = std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file());
    if is_other { Ok(Some("".into())) } else { text(path) }
}

/// Creates a folder if it is missing. A link to a folder is refused: nothing outside of the folder of a component is written.
fn create_folder(path: &Path) -> Result<(), FolderError> {
    let io = |error| FolderError::Io { path: path.to_owned(), error };
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let is_folder = std::fs::symlink_metadata(path).map_err(io)?.is_dir();
            if is_folder { Ok(()) } else { Err(FolderError::NotFolder(path.to_owned())) }
        }
        Err(error) => Err(io(error)),
    }
}

/// Replaces a file of a folder atomically.
fn replace(folder: &Path, name: &str, content: &[u8], mode: u32) -> Result<(), FolderError> {
    let (path, temporary) = (folder.join(name), folder.join(TEMPORARY));
    let io = |error| FolderError::Io { path: path.clone(), error };
    remove(&temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(CONFIDENTIAL).open(&temporary).map_err(io)?;
    // The umask does not apply: the permissions show if a body is confidential.
    file.set_permissions(Permissions::from_mode(mode)).map_err(io)?;
    let kept = file.metadata().map_err(io)?.permissions().mode() & 0o777;
    if kept != mode {
        return Err(FolderError::Permissions { path, mode: kept, wanted: mode });
    }
    file.write_all(content).and_then(|()| file.sync_all()).map_err(io)?;
    std::fs::rename(&temporary, &path).map_err(io)
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<(), FolderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FolderError::Io { path: path.to_owned(), error }),
        _ => Ok(()),
    }
}

/// Removes a folder, if it is empty. A folder with other files stays.
fn remove_folder(path: &Path) -> Result<(), FolderError> {
    match std::fs::remove_dir(path) {
        Err(error) if ![ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty].contains(&error.kind()) => {
            Err(FolderError::Io { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<(), FolderError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| FolderError::Io { path: folder.to_owned(), error })
}

#[cfg(test)]
mod tests;
