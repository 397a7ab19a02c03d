//! The previous version of Proviso, for tests of updates and of replicas of different versions. `previous.sh` builds it from the commit
//! that `previous-version` names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The previous version of Proviso.
#[derive(Clone, Debug)]
pub struct Previous {
    /// The folder with its files, such as `charts/`.
    pub source: PathBuf,
    pub operator: PathBuf,
    pub policy_server: PathBuf,
}

impl Previous {
    /// Finds the previous version in the cache, or builds it: minutes.
    ///
    /// # Errors
    /// If this copy of the repository does not have its commit, or the build fails. The output of the build has the cause.
    pub fn find() -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("previous.sh");
        let mut command = Command::new(&script);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("e2e/previous.sh")?;
        ensure!(output.status.success(), "the previous version is missing ({}): see above", output.status);
        let folder = String::from_utf8(output.stdout)?;
        let folder = Path::new(folder.trim_end());
        let bin = folder.join("bin");
        Ok(Self {
            source: folder.join("source"),
            operator: bin.join("operator"),
            policy_server: bin.join("policy-server"),
        })
    }
}
