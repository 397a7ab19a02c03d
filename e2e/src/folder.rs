//! Where one run keeps its files and logs: `target/e2e/<name>/`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folder of one run. It outlives the run, so that the logs can be read; the next run of the same name starts anew.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held for as long as the folder is in use: two runs of one name would write over each other.
    _lock: File,
}

impl Folder {
    /// Empties or makes the folder of this name.
    ///
    /// # Errors
    /// If another process uses it, or the file system refuses.
    pub fn new(name: &str) -> Result<Self> {
        let path = Self::root()?.join(name);
        let lock = lock(name)?;
        lock.try_lock().with_context(|| format!("another run uses {}", path.display()))?;
        lock.set_len(0)?;
        writeln!(&lock, "{}", std::process::id())?;
        if path.exists() {
            std::fs::remove_dir_all(&path).with_context(|| format!("emptying {}", path.display()))?;
        }
        let logs = path.join("logs");
        std::fs::create_dir_all(&logs)?;
        // The test runner shows this when the test fails.
        #[allow(clippy::print_stderr, reason = "only what is printed is captured")]
        {
            eprintln!("logs of what runs here: {}", logs.display());
        }
        Ok(Self { path, _lock: lock })
    }

    /// The process that uses the folder of this name, if there is one.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn user(name: &str) -> Result<Option<u32>> {
        let mut lock = lock(name)?;
        if lock.try_lock().is_ok() {
            return Ok(None);
        }
        let mut process = String::new();
        lock.read_to_string(&mut process)?;
        // Empty between the lock and the number in it.
        process.trim().parse().map(Some).with_context(|| format!("another run is taking the folder {name}"))
    }

    /// The folder of all runs, `target/e2e/`.
    ///
    /// # Errors
    /// If this program is not in Cargo's target folder.
    pub fn root() -> Result<PathBuf> {
        let root = target_folder()?.join("e2e");
        std::fs::create_dir_all(&root)?;
        Ok(root)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of one process.
    #[must_use]
    pub fn log(&self, process: &str) -> PathBuf {
        self.path.join("logs").join(format!("{process}.log"))
    }
}

fn lock(name: &str) -> Result<File> {
    let path = Folder::root()?.join(format!(".{name}.lock"));
    let lock = File::options().create(true).read(true).write(true).truncate(false).open(&path);
    lock.with_context(|| path.display().to_string())
}

/// Cargo's target folder: the one above this program that Cargo has marked. The tag it gives only to one that it has made.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let is_marked = |folder: &Path| ["CACHEDIR.TAG", ".rustc_info.json"].iter().any(|mark| folder.join(mark).exists());
    let folder = program.ancestors().find(|folder| is_marked(folder));
    folder.map(Path::to_owned).with_context(|| format!("{} is not in Cargo's target folder", program.display()))
}
