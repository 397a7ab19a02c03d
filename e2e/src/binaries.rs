//! Finds the programs of Kubernetes in a folder that the user names, or in the cache. Missing programs are built into the cache.
//!
//! - `KUBEBUILDER_ASSETS`: a folder with `etcd` and `kube-apiserver`, as for envtest. Without a
//!   `kube-controller-manager` in it, namespaces are not emptied and there are no default service accounts.
//! - `PROVISO_E2E_CACHE`: the folder of the cache; default `$XDG_CACHE_HOME/proviso-e2e`, else `~/.cache/proviso-e2e`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};

use crate::print_message;

/// A group of programs that are built together, for one kind of test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// `etcd`, `kube-apiserver`, `kube-controller-manager`, `kubectl`
    ControlPlane,
    /// `registry`, the OCI registry of the distribution project
    Registry,
    /// `kubelet`, `kube-proxy`, `kube-scheduler`, `helm`, `coredns`, and `pod`, the program in pods of tests
    Node,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::ControlPlane, Self::Registry, Self::Node];

    /// Returns the name of the tier for `go/build.sh`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Registry => "registry",
            Self::Node => "node",
        }
    }

    /// Returns the projects of the tier, each with the Go module that has its version.
    fn components(self) -> &'static [(&'static str, &'static str)] {
        const KUBERNETES: (&str, &str) = ("kubernetes", "k8s.io/kubernetes");
        match self {
            Self::ControlPlane => &[KUBERNETES, ("etcd", "go.etcd.io/etcd/server/v3")],
            Self::Registry => &[("distribution", "github.com/distribution/distribution/v3")],
            Self::Node => &[KUBERNETES, ("helm", "helm.sh/helm/v4"), ("coredns", "github.com/coredns/coredns")],
        }
    }

    /// Returns the versions that `go.mod` pins, such as `kubernetes v1.36.3, etcd v3.6.16`.
    fn versions(self) -> Result<String> {
        let versions = self.components().iter().map(|(name, module)| Ok(format!("{name} {}", version(module)?)));
        Ok(versions.collect::<Result<Vec<_>>>()?.join(", "))
    }

    /// Returns the folder of the programs. Builds the programs if they are not in the cache.
    ///
    /// # Errors
    /// If Go is missing or too old, or the build fails. The message has a remedy.
    pub fn folder(self) -> Result<PathBuf> {
        static FOLDERS: [OnceLock<PathBuf>; Tier::ALL.len()] = [const { OnceLock::new() }; Tier::ALL.len()];
        let known = &FOLDERS[self as usize];
        if let Some(folder) = known.get() {
            return Ok(folder.clone());
        }
        let folder = build(self)?;
        Ok(known.get_or_init(|| folder).clone())
    }
}

/// Runs `go/build.sh`, prints its progress, and returns the folder.
fn build(tier: Tier) -> Result<PathBuf> {
    let mut child = Command::new(source().join("build.sh"))
        .arg(tier.name())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("e2e/go/build.sh")?;
    let mut messages = Vec::new();
    for line in BufReader::new(child.stderr.take().context("its stderr")?).lines() {
        messages.push(line?);
        messages.last().into_iter().for_each(|line| print_message(line));
    }
    let mut folder = String::new();
    child.stdout.take().context("its stdout")?.read_to_string(&mut folder)?;
    let status = child.wait()?;
    ensure!(status.success(), "the programs of the {} are missing ({status}):\n{}", tier.name(), messages.join("\n"));
    Ok(folder.trim_end().into())
}

/// Returns the folder of the Go module.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("go")
}

/// Returns the version of a module that `go.mod` pins, such as `v1.36.3`.
fn version(module: &str) -> Result<String> {
    let path = source().join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let required = words.windows(2).find(|pair| pair[0] == module && pair[1].starts_with('v'));
    let version = required.map(|pair| pair[1].to_owned());
    version.with_context(|| format!("{} does not require {module}", path.display()))
}

/// The programs of a control plane.
#[derive(Debug, Clone)]
pub struct Programs {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    /// The controller manager; `None` if `KUBEBUILDER_ASSETS` does not have it, as with envtest.
    pub kube_controller_manager: Option<PathBuf>,
}

impl Programs {
    /// Returns the folder of `KUBEBUILDER_ASSETS`; `None` if the variable is not set.
    pub(crate) fn assets() -> Option<PathBuf> {
        std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Finds the programs in the cache, or builds them.
    ///
    /// # Errors
    /// The errors of [`Tier::folder`].
    pub(crate) fn build() -> Result<Self> {
        let folder = Tier::ControlPlane.folder()?;
        Ok(Self {
            etcd: folder.join("etcd"),
            kube_apiserver: folder.join("kube-apiserver"),
            kube_controller_manager: Some(folder.join("kube-controller-manager")),
        })
    }

    /// Finds the programs in `KUBEBUILDER_ASSETS`. Without this variable, finds them in the cache, or builds them.
    ///
    /// # Errors
    /// If a program is missing in `KUBEBUILDER_ASSETS`, or the programs cannot be built.
    pub fn find() -> Result<Self> {
        let Some(assets) = Self::assets() else {
            return Self::build();
        };
        for program in ["etcd", "kube-apiserver"] {
            ensure!(assets.join(program).exists(), "KUBEBUILDER_ASSETS: there is no {program} in {}", assets.display());
        }
        let manager = assets.join("kube-controller-manager");
        Ok(Self {
            etcd: assets.join("etcd"),
            kube_apiserver: assets.join("kube-apiserver"),
            kube_controller_manager: manager.exists().then_some(manager),
        })
    }
}

/// Builds missing programs, and prints a table of the tiers. `control_plane` limits the table to the tiers for control planes
/// and the registry.
///
/// # Errors
/// The errors of [`Tier::folder`].
pub fn show(control_plane: bool) -> Result<()> {
    let assets = Programs::assets().filter(|_| control_plane);
    let tiers = if control_plane { &[Tier::ControlPlane, Tier::Registry][..] } else { &Tier::ALL };
    let mut table = std::io::stdout().lock();
    writeln!(table, "{:<15}{:<50}FOLDER", "TIER", "VERSIONS")?;
    for tier in tiers {
        let (versions, folder) = match assets.as_ref().filter(|_| *tier == Tier::ControlPlane) {
            Some(assets) => ("?".to_owned(), assets.clone()),
            None => (tier.versions()?, tier.folder()?),
        };
        writeln!(table, "{:<15}{versions:<50}{}", tier.name(), folder.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_versions_are_those_of_the_documentation() -> Result<()> {
        let pinned: Vec<_> = Tier::ALL.into_iter().flat_map(Tier::components).collect();
        for (component, promised) in
            [("kubernetes", "v1.36."), ("etcd", "v3.6."), ("helm", "v4."), ("coredns", "v1."), ("distribution", "v3.")]
        {
            let (_, module) = pinned.iter().find(|(name, _)| *name == component).context(component)?;
            let version = version(module)?;
            assert!(version.starts_with(promised), "{component} is {version}");
        }
        Ok(())
    }
}
