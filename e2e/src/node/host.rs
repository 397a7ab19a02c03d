//! The requirements of a node on the machine: root, and programs from packages of the distribution.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The programs of the machine that a node uses.
#[derive(Debug)]
pub(super) struct Host {
    path: OsString,
    /// The folder of the CNI plugins.
    pub cni: PathBuf,
    pub containerd: PathBuf,
    pub ctr: PathBuf,
    pub runc: PathBuf,
}

/// The programs, each with its package in Debian and Ubuntu.
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
/// The CNI plugins of the pod network, and `loopback`, which containerd uses.
const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "loopback"];
/// The folders of CNI plugins in Debian and Ubuntu, upstream, Fedora, openSUSE.
const PLUGIN_FOLDERS: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni/bin"];

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Host {
    pub fn find() -> Result<Self> {
        ensure!(
            is_root(),
            "a full node needs root: try again with sudo env \"PATH=$PATH\" \"HOME=$HOME\" before the command"
        );
        let path = path();
        let missing = missing(&path);
        let (names, packages): (Vec<_>, Vec<_>) = missing.iter().copied().unzip();
        ensure!(names.is_empty(), "missing: {}; on Debian: apt-get install {}", names.join(", "), packages.join(" "));
        let program = |name| find(&path, name).context(name);
        Ok(Self {
            cni: plugins().context(PLUGINS[0])?,
            containerd: program("containerd")?,
            ctr: program("ctr")?,
            runc: program("runc")?,
            path,
        })
    }

    /// Returns the value of PATH with which all programs are found.
    pub fn path(&self) -> &OsString {
        &self.path
    }
}

/// Returns the Debian packages of the missing programs.
pub(super) fn missing_packages() -> Vec<&'static str> {
    missing(&path()).into_iter().map(|(_, package)| package).collect()
}

fn missing(path: &OsString) -> Vec<(&'static str, &'static str)> {
    let mut missing: Vec<_> = PROGRAMS.into_iter().filter(|(name, _)| find(path, name).is_none()).collect();
    if plugins().is_none() {
        missing.push(("CNI plugins", "containernetworking-plugins"));
    }
    missing.dedup_by_key(|(_, package)| *package);
    missing
}

/// Returns PATH with the folders `sbin`, which users other than root often do not have in PATH. `sudo` keeps their PATH.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

fn find(path: &OsString, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|path| path.exists())
}

fn plugins() -> Option<PathBuf> {
    let mut folders = PLUGIN_FOLDERS.iter().map(Path::new);
    folders.find(|folder| PLUGINS.iter().all(|plugin| folder.join(plugin).exists())).map(Path::to_owned)
}
