//! Runs kubectl as users and pipelines do.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::binaries::Tier;
use crate::until;

/// The time limit for the API server to observe a new permission.
const PERMISSION_TIMEOUT: Duration = Duration::from_mins(1);

/// kubectl for one cluster and one user.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    user: Vec<String>,
}

impl Kubectl {
    /// Returns kubectl for the user of this kubeconfig file.
    ///
    /// # Errors
    /// If kubectl is missing and cannot be built.
    pub fn new(kubeconfig: &Path) -> Result<Self> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|folder| PathBuf::from(folder).join("kubectl"));
        let program = match assets.filter(|program| program.exists()) {
            Some(program) => program,
            None => Tier::ControlPlane.folder()?.join("kubectl"),
        };
        Ok(Self { program, kubeconfig: kubeconfig.to_owned(), user: Vec::new() })
    }

    /// Returns kubectl for another user, by impersonation.
    #[must_use]
    pub fn by(&self, user: &str, groups: &[&str]) -> Self {
        let mut arguments = vec![format!("--as={user}")];
        arguments.extend(groups.iter().map(|group| format!("--as-group={group}")));
        Self { user: arguments, ..self.clone() }
    }

    /// Returns the path of the program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs kubectl with these arguments. Returns the text of its standard output.
    ///
    /// # Errors
    /// If kubectl fails, with the text of its standard error.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(&self.user)
            .args(arguments)
            // Each cluster has its own discovery cache, because another cluster may have the same address later.
            .env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Waits until the API server has observed a new permission of the user: `verb` on `resource` in the namespace.
    ///
    /// # Errors
    /// If the user does not get the permission in time.
    pub async fn until_permitted(&self, verb: &str, resource: &str, namespace: &str) -> Result<()> {
        until(&format!("the permission to {verb} {resource}"), PERMISSION_TIMEOUT, async || {
            self.run(&["auth", "can-i", verb, resource, "-n", namespace]).await.map(drop)
        })
        .await
    }
}
