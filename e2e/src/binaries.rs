//! Where the programs of Kubernetes come from: folders that the user names, or the cache, built into it when missing.
//!
//! - `KUBEBUILDER_ASSETS`: a folder with `etcd` and `kube-apiserver`, as envtest knows it. Without a
//!   `kube-controller-manager` in it, namespaces are not emptied and there are no default service accounts.
//! - `PROVISO_E2E_CACHE`: the folder of the cache; default `$XDG_CACHE_HOME/proviso-e2e`, else `~/.cache/proviso-e2e`.

mod build;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

/// A Go module of `e2e/go/` and what comes out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// `etcd`
    Etcd,
    /// `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kube-proxy`, `kubelet`, `kubectl`
    Kubernetes,
    /// `helm`
    Helm,
    /// `coredns`
    CoreDns,
    /// `registry`, the OCI registry of the distribution project
    Registry,
    /// `pod`, our own: what runs in pods where it does not matter what runs there
    Pod,
}

impl Component {
    pub const ALL: [Self; 6] = [Self::Etcd, Self::Kubernetes, Self::Helm, Self::CoreDns, Self::Registry, Self::Pod];

    /// Its folder in `e2e/go/`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
            Self::Helm => "helm",
            Self::CoreDns => "coredns",
            Self::Registry => "registry",
            Self::Pod => "pod",
        }
    }

    /// The module whose version is the component's; none if it is our own.
    fn module(self) -> Option<&'static str> {
        match self {
            Self::Etcd => Some("go.etcd.io/etcd/server/v3"),
            Self::Kubernetes => Some("k8s.io/kubernetes"),
            Self::Helm => Some("helm.sh/helm/v4"),
            Self::CoreDns => Some("github.com/coredns/coredns"),
            Self::Registry => Some("github.com/distribution/distribution/v3"),
            Self::Pod => None,
        }
    }

    /// The files that it provides, the one that is built first.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Kubernetes => &[
                "kubernetes",
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kube-proxy",
                "kubelet",
                "kubectl",
            ],
            Self::Etcd => &["etcd"],
            Self::Helm => &["helm"],
            Self::CoreDns => &["coredns"],
            Self::Registry => &["registry"],
            Self::Pod => &["pod"],
        }
    }

    fn source(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("go").join(self.name())
    }

    /// The version that `go.mod` pins, such as `v1.36.3`; this crate's if the component is our own.
    ///
    /// # Errors
    /// If `go.mod` is missing or does not require the module.
    pub fn version(self) -> Result<String> {
        let Some(module) = self.module() else { return Ok(format!("v{}", env!("CARGO_PKG_VERSION"))) };
        let path = self.source().join("go.mod");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let required = words.windows(2).find(|pair| pair[0] == module && pair[1].starts_with('v'));
        let version = required.map(|pair| pair[1].to_owned());
        version.with_context(|| format!("{} does not require {module}", path.display()))
    }

    /// The folder of the component's programs; builds them if they are not in the cache.
    ///
    /// # Errors
    /// If Go is missing or too old, or the build fails: the message says what to do.
    pub fn folder(self) -> Result<PathBuf> {
        let folder = cache()?.join(format!("{}-{}-{}", self.name(), self.version()?, self.digest()?));
        if !folder.exists() {
            build::build(self, &folder)?;
        }
        Ok(folder)
    }

    /// What the programs depend on: the sources here, which pin all others, and the way of building.
    fn digest(self) -> Result<String> {
        let mut hash = Sha256::new();
        for file in ["go.mod", "go.sum", "main.go"] {
            let path = self.source().join(file);
            // Not all have a program of their own.
            if path.exists() {
                let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
                hash.update((content.len() as u64).to_be_bytes());
                hash.update(content);
            }
        }
        hash.update(include_str!("binaries/build.rs"));
        hash.update(std::env::consts::ARCH);
        Ok(crate::hexadecimal(&hash.finalize()[..6]))
    }
}

/// What a control plane consists of.
#[derive(Debug, Clone)]
pub struct Programs {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    /// Not among the assets of envtest.
    pub kube_controller_manager: Option<PathBuf>,
}

impl Programs {
    pub(crate) fn assets() -> Option<PathBuf> {
        std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Finds or builds them.
    ///
    /// # Errors
    /// If they are not there and cannot be built.
    pub fn find() -> Result<Self> {
        let Some(assets) = Self::assets() else {
            let kubernetes = Component::Kubernetes.folder()?;
            return Ok(Self {
                etcd: Component::Etcd.folder()?.join("etcd"),
                kube_apiserver: kubernetes.join("kube-apiserver"),
                kube_controller_manager: Some(kubernetes.join("kube-controller-manager")),
            });
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

/// Builds what is missing and prints a table of what there is: all, or what control planes need, and the registry that stands
/// beside them.
///
/// # Errors
/// As [`Component::folder`].
pub fn show(control_plane: bool) -> Result<()> {
    let assets = Programs::assets().filter(|_| control_plane);
    let beside = [Component::Etcd, Component::Kubernetes, Component::Registry];
    let components = if control_plane { &beside[..] } else { &Component::ALL };
    let mut table = std::io::stdout().lock();
    writeln!(table, "{:<12}{:<10}FOLDER", "COMPONENT", "VERSION")?;
    for component in components {
        let (version, folder) = match assets.as_ref().filter(|_| *component != Component::Registry) {
            Some(assets) => ("?".to_owned(), assets.clone()),
            None => (component.version()?, component.folder()?),
        };
        writeln!(table, "{:<12}{version:<10}{}", component.name(), folder.display())?;
    }
    Ok(())
}

fn cache() -> Result<PathBuf> {
    let named = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("PROVISO_E2E_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("proviso-e2e")))
        .or_else(|| Some(named("HOME")?.join(".cache/proviso-e2e")))
        .context("set PROVISO_E2E_CACHE to a folder for the binaries of Kubernetes: there is no HOME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_the_documentation_promises() -> Result<()> {
        for (component, promised) in [
            (Component::Kubernetes, "v1.36."),
            (Component::Etcd, "v3.6."),
            (Component::Helm, "v4."),
            (Component::CoreDns, "v1."),
            (Component::Registry, "v3."),
            (Component::Pod, "v0."),
        ] {
            let version = component.version()?;
            assert!(version.starts_with(promised), "{component:?} is {version}");
        }
        Ok(())
    }
}
