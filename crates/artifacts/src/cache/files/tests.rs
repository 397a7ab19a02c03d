use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;

use rustix::fs::{CWD, makedev, mknodat};

use super::*;

const MAX: u64 = 1 << 20;

/// A cache folder, and the path of a file in it whose folders exist.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b/file");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    (root, path)
}

fn read(root: &Path, path: &Path) -> Result<Option<Bytes>, CacheError> {
    Location::new(root, path).read(MAX)
}

#[test]
fn files_and_their_folders_are_created_replaced_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("volume");
    let path = root.join("a/b/file");
    assert_eq!(read(&root, &path).unwrap(), None);
    for content in ["one", "another one"] {
        Location::new(&root, &path).write(content.as_bytes()).unwrap();
        assert_eq!(read(&root, &path).unwrap().unwrap(), content);
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    for _ in 0..2 {
        Location::new(&root, &path).remove().unwrap();
    }
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "no temporary file is left");
    assert!(read(&root, &root.join("../other")).is_err() && read(&root, Path::new("/etc/passwd")).is_err());
}

#[test]
fn a_huge_file_is_refused_without_reading_it() {
    let (root, path) = folder();
    // A sparse file of 100 GB. Reading it would fail this test by its memory.
    fs::File::create(&path).unwrap().set_len(100 << 30).unwrap();
    let error = read(root.path(), &path).unwrap_err();
    assert!(matches!(error, CacheError::TooLarge { size, max: MAX, .. } if size == 100 << 30), "{error}");
    fs::File::create(&path).unwrap().set_len(MAX).unwrap();
    assert_eq!(read(root.path(), &path).unwrap().unwrap().len() as u64, MAX);
}

#[test]
fn symlinks_are_not_followed_in_any_component() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("b")).unwrap();
    for link in ["a", "a/b", "a/b/file"] {
        let (root, path) = folder();
        let replaced = root.path().join(link);
        if replaced.is_dir() {
            fs::remove_dir_all(&replaced).unwrap();
        }
        let target = match link {
            "a" => outside.path().to_owned(),
            "a/b" => outside.path().join("b"),
            _ => outside.path().join("b/file"),
        };
        fs::write(outside.path().join("b/file"), "secret").unwrap();
        symlink(target, &replaced).unwrap();
        assert!(matches!(read(root.path(), &path), Err(CacheError::Forged(_))), "{link}");
        let written = Location::new(root.path(), &path).write(b"new");
        let is_file = link == "a/b/file";
        // A write replaces the link itself, not its target.
        assert_eq!((written.is_ok(), path.is_symlink()), (is_file, false), "{link}");
        assert_eq!(fs::read(outside.path().join("b/file")).unwrap(), b"secret", "{link}");
        assert!(is_file || Location::new(root.path(), &path).remove().is_err(), "{link}");
    }
    // An administrator may name the cache by a symlink.
    let (root, path) = folder();
    fs::write(path, "content").unwrap();
    let link = outside.path().join("cache");
    symlink(root.path(), &link).unwrap();
    assert_eq!(read(&link, &link.join("a/b/file")).unwrap().unwrap(), "content");
}

#[test]
fn only_regular_files_are_read_and_a_named_pipe_blocks_nobody() {
    for kind in ["folder", "pipe", "socket", "device"] {
        let (root, path) = folder();
        match kind {
            "folder" => fs::create_dir(&path).unwrap(),
            "pipe" => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
            "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            _ => {
                // /dev/zero. Only root can create a device.
                if mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(1, 5)).is_err() {
                    continue;
                }
            }
        }
        let error = read(root.path(), &path).unwrap_err();
        // A socket, and a device on a volume without devices, cannot even be opened.
        let is_refused = matches!(error, CacheError::Forged(_))
            || ["socket", "device"].contains(&kind) && matches!(error, CacheError::Io { .. });
        assert!(is_refused, "{kind}: {error}");
    }
}

#[test]
fn a_file_in_place_of_a_folder_is_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "no folder").unwrap();
    let path = root.path().join("a/b/file");
    assert!(matches!(read(root.path(), &path), Err(CacheError::Forged(_))));
    assert!(matches!(Location::new(root.path(), &path).write(b"new"), Err(CacheError::Forged(_))));
}

#[test]
fn a_write_does_not_change_the_other_name_of_a_hard_link() {
    let (root, path) = folder();
    let other = root.path().join("other");
    fs::write(&other, "other").unwrap();
    fs::hard_link(&other, &path).unwrap();
    Location::new(root.path(), &path).write(b"new").unwrap();
    assert_eq!((fs::read(&other).unwrap(), fs::read(&path).unwrap()), (b"other".to_vec(), b"new".to_vec()));
}
