//! Where one run keeps its files and logs: `target/e2e/<name>/`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folder of one run. It outlives the run, so that the logs can be read; the next run of the same name starts anew.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held for as long as the folder is in use: two runs of one name would write over each other.
    _lock: std::fs::File,
}

impl Folder {
    /// Empties or makes the folder of this name.
    ///
    /// # Errors
    /// If another process uses it, or the file system refuses.
    pub fn new(name: &str) -> Result<Self> {
        let root = target_folder()?.join("e2e");
        std::fs::create_dir_all(&root)?;
        let lock = std::fs::File::create(root.join(format!(".{name}.lock")))?;
        lock.try_lock().with_context(|| format!("another run uses {}", root.join(name).display()))?;
        let path = root.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path).with_context(|| format!("emptying {}", path.display()))?;
        }
        let logs = path.join("logs");
        std::fs::create_dir_all(&logs)?;
        // The test runner shows this when the test fails.
        eprintln!("logs of what runs here: {}", logs.display());
        Ok(Self { path, _lock: lock })
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

/// Cargo's target folder: the one above this program that Cargo has marked.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    folder.map(Path::to_owned).with_context(|| format!("{} is not in Cargo's target folder", program.display()))
}
