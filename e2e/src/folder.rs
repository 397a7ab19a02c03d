//! The folder with the files and logs of a run: `target/e2e/<name>/`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folder of one run. The folder is kept after the run, so that its logs can be read. The next run with this name empties it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The lock that prevents a second run with this name from using the folder.
    _lock: File,
}

impl Folder {
    /// Creates the folder with this name, or empties it.
    ///
    /// # Errors
    /// If another process uses the folder, or a file operation fails.
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
            eprintln!("logs: {}", logs.display());
        }
        Ok(Self { path, _lock: lock })
    }

    /// Returns the number of the process that uses the folder with this name; `None` if no process does.
    ///
    /// # Errors
    /// If a file operation fails, or the process has locked the folder and not written its number yet.
    pub fn user(name: &str) -> Result<Option<u32>> {
        let mut lock = lock(name)?;
        if lock.try_lock().is_ok() {
            return Ok(None);
        }
        let mut process = String::new();
        lock.read_to_string(&mut process)?;
        // The file is empty between the lock and the write of the number.
        process.trim().parse().map(Some).with_context(|| format!("another run is taking the folder {name}"))
    }

    /// Returns the folder of all runs, `target/e2e/`.
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

    /// Returns the path of the log of a process.
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

/// Returns Cargo's target folder: the parent folder of this program that has a mark of Cargo. Cargo writes `CACHEDIR.TAG` only
/// into a folder that it has created, and `.rustc_info.json` into every target folder.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let is_marked = |folder: &Path| ["CACHEDIR.TAG", ".rustc_info.json"].iter().any(|mark| folder.join(mark).exists());
    let folder = program.ancestors().find(|folder| is_marked(folder));
    folder.map(Path::to_owned).with_context(|| format!("{} is not in Cargo's target folder", program.display()))
}
