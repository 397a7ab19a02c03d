//! The cgroups of a node: one in each hierarchy of cgroup v1, or one of cgroup v2. They are the only thing of a node
//! that the kernel does not take back by itself; a small process does, however this program ends.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::process::Invocation;

/// `$1` are cgroups; what follows is run in them. `0` stands for the process that writes it.
const JOIN: &str = r#"for group in $1; do echo 0 >"$group/cgroup.procs"; done; shift; exec "$@""#;
const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

#[derive(Debug)]
pub(super) struct Cgroups {
    folders: Vec<PathBuf>,
    unified: bool,
    sweeper: Child,
}

impl Cgroups {
    /// Makes them, named after the folder of the run.
    pub fn new(run: &Path) -> Result<Self> {
        let name = format!("proviso-e2e{}", run.to_string_lossy().replace(['/', ' '], "-"));
        let unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let folders = if unified { vec![Path::new(ROOT).join(name)] } else { hierarchies(&name)? };
        let log = run.join("logs/sweep.log");
        // What a run of the same name may have left, had even its sweeper been killed.
        let swept = sweep(&folders, &log)?.stdin(Stdio::null()).status()?;
        ensure!(swept.success(), "processes of an earlier run go on: {}", fs::read_to_string(log)?);
        // First, so that it removes also what the rest of this leaves unfinished.
        let sweeper = sweep(&folders, &log)?.stdin(Stdio::piped()).spawn()?;
        let cgroups = Self { folders, unified, sweeper };
        if unified {
            enable_controllers()?;
        }
        for folder in &cgroups.folders {
            fs::create_dir_all(folder).with_context(|| format!("making the cgroup {}", folder.display()))?;
            if !unified {
                inherit_cpuset(folder)?;
            }
        }
        Ok(cgroups)
    }

    /// Runs something as the first process of these cgroups, which may then make a cgroup namespace.
    pub fn found(&self, invocation: Invocation) -> Invocation {
        join(&self.folders, invocation)
    }

    /// Runs something beside that.
    pub fn enter(&self, invocation: Invocation) -> Invocation {
        // init.sh made this leaf of cgroup v2. A process cannot move into it from within the namespace.
        let leaf = if self.unified { "init" } else { "" };
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.join(leaf)).collect();
        join(&folders, invocation)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // The end of its stdin is what it waits for.
        drop(self.sweeper.stdin.take());
        let swept = self.sweeper.wait();
        if !swept.is_ok_and(|status| status.success()) {
            crate::say(&format!("cgroups are left over: {}", self.folders[0].display()));
        }
    }
}

/// What removes these cgroups at the end of its stdin.
fn sweep(folders: &[PathBuf], log: &Path) -> Result<Command> {
    let mut command = Command::new("sh");
    command
        .args(["-c", include_str!("sweep.sh"), "sweep"])
        .args(folders)
        .stdout(Stdio::null())
        .stderr(fs::File::create(log)?)
        // Ctrl-C in a terminal is for the group of this program, not for it.
        .process_group(0);
    Ok(command)
}

fn join(folders: &[PathBuf], invocation: Invocation) -> Invocation {
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    invocation.through(Invocation::new("sh").arguments(["-c", JOIN, "join", &folders.join(" ")]))
}

/// In every hierarchy of cgroup v1 a group below the one that this program is in, so that its limits go on to hold.
fn hierarchies(name: &str) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        // number:controllers:path
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let mount = Path::new(ROOT).join(controllers.trim_start_matches("name="));
        if number != "0" && mount.exists() {
            let own = mount.join(path.trim_start_matches('/'));
            // In a container the path may be the host's; then what is mounted is the container's own.
            folders.push(if own.exists() { own } else { mount }.join(name));
        }
    }
    Ok(folders)
}

/// A new group of v1's cpuset may run nowhere until it is told where.
fn inherit_cpuset(folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        // Other hierarchies have no such file.
        if let Some(inherited) = folder.parent().and_then(|parent| fs::read(parent.join(file)).ok()) {
            fs::write(folder.join(file), inherited)?;
        }
    }
    Ok(())
}

/// Lets groups at the root of cgroup v2 have the controllers that kubelet knows.
///
/// Not below the group of this program: a group that has processes cannot give controllers to its children. The root
/// can, unless it is that of a container; then its processes move into a leaf, as Docker in Docker does it.
fn enable_controllers() -> Result<()> {
    let root = Path::new(ROOT);
    let Err(error) = try_controllers(root) else { return Ok(()) };
    // Only the root of the whole machine has no type.
    if !root.join("cgroup.type").exists() {
        return Err(error);
    }
    let leaf = root.join("proviso-e2e-leaf");
    fs::create_dir_all(&leaf)?;
    for process in fs::read_to_string(root.join("cgroup.procs"))?.lines() {
        // Some end while we look.
        let _ = fs::write(leaf.join("cgroup.procs"), process);
    }
    try_controllers(root)
}

fn try_controllers(root: &Path) -> Result<()> {
    let available = fs::read_to_string(root.join("cgroup.controllers"))?;
    for controller in available.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
        let control = root.join("cgroup.subtree_control");
        let context = || format!("enabling {controller} in {}: is this container privileged?", control.display());
        fs::write(&control, format!("+{controller}")).with_context(context)?;
    }
    Ok(())
}
