//! What a node needs of the machine: root, and programs that distributions package.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Programs of the machine. Users other than root often have no `sbin` in their PATH, and `sudo` keeps that.
#[derive(Debug)]
pub(super) struct Host {
    path: OsString,
    /// The folder of the CNI plugins.
    pub cni: PathBuf,
    pub containerd: PathBuf,
    pub ctr: PathBuf,
    pub runc: PathBuf,
}

/// Each with the package of Debian and Ubuntu that has it.
const PROGRAMS: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];
/// Those that we use, and the one that containerd does.
const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "loopback"];
/// Debian and Ubuntu, upstream, Fedora, openSUSE.
const PLUGIN_FOLDERS: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni/bin"];

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Host {
    pub fn find() -> Result<Self> {
        ensure!(is_root(), "a full node needs root: run it with `sudo --preserve-env=PATH,HOME`");
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
        let find = |name: &str| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
        let has_plugins = |folder: &&&str| PLUGINS.iter().all(|plugin| Path::new(folder).join(plugin).exists());
        let cni = PLUGIN_FOLDERS.iter().find(has_plugins).map(PathBuf::from);
        let mut missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| find(name).is_none()).copied().collect();
        if cni.is_none() {
            missing.push(("CNI plugins", "containernetworking-plugins"));
        }
        let (names, mut packages): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
        packages.dedup();
        let remedy = format!("missing: {}; on Debian: apt-get install {}", names.join(", "), packages.join(" "));
        ensure!(names.is_empty(), remedy);
        let program = |name| find(name).context(remedy.clone());
        Ok(Self {
            cni: cni.context(remedy.clone())?,
            containerd: program("containerd")?,
            ctr: program("ctr")?,
            runc: program("runc")?,
            path,
        })
    }

    /// The PATH with which all of them are found.
    pub fn path(&self) -> &OsString {
        &self.path
    }
}
