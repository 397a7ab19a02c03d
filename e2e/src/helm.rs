//! Runs Helm as users and pipelines do.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::binaries::Tier;

/// Helm for one cluster.
#[derive(Debug, Clone)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Returns Helm for the user of this kubeconfig file.
    ///
    /// # Errors
    /// If Helm is missing and cannot be built.
    pub fn new(kubeconfig: &Path) -> Result<Self> {
        Ok(Self { program: Tier::Node.folder()?.join("helm"), kubeconfig: kubeconfig.to_owned() })
    }

    /// Returns the path of the program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs Helm with these arguments. Returns the text of its standard output.
    ///
    /// # Errors
    /// If Helm fails, with the text of its standard error.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let home = self.kubeconfig.with_extension("helm");
        let output = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            // The caches and settings of the user that runs the tests are not used or changed.
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
