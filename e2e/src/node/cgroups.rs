//! The cgroups of a node: one in each hierarchy of cgroup v1, or one of cgroup v2. The kernel removes everything of a node but
//! its cgroups. A small process, the sweeper, removes the cgroups, even if this program is killed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::process::Invocation;

/// A shell script that joins the cgroups in `$1`, and then runs the other arguments as a command. `0` means the process that
/// writes it.
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
    /// Creates the cgroups. Their name contains the folder of the run.
    pub fn new(run: &Path) -> Result<Self> {
        let name = format!("proviso-e2e{}", run.to_string_lossy().replace(['/', ' '], "-"));
        let unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let folders = if unified { vec![Path::new(ROOT).join(name)] } else { hierarchies(&name)? };
        let log = run.join("logs/sweep.log");
        // An earlier run with this name may have left cgroups, if its sweeper was killed too.
        let swept = sweep(&folders, &log)?.stdin(Stdio::null()).status()?;
        ensure!(swept.success(), "processes of an earlier run still run: {}", fs::read_to_string(log)?);
        // The sweeper starts first, so that it removes the cgroups if a later step fails.
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

    /// Returns an invocation that runs as the first process of these cgroups, and can then create a cgroup namespace.
    pub fn run_first(&self, invocation: Invocation) -> Invocation {
        join(&self.folders, invocation)
    }

    /// Returns an invocation that runs in these cgroups after the first process.
    pub fn enter(&self, invocation: Invocation) -> Invocation {
        // init.sh has created this leaf of cgroup v2. A process cannot move into the leaf from inside of the cgroup namespace.
        let leaf = if self.unified { "init" } else { "" };
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.join(leaf)).collect();
        join(&folders, invocation)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // The sweeper waits for the end of its stdin.
        drop(self.sweeper.stdin.take());
        let swept = self.sweeper.wait();
        if !swept.is_ok_and(|status| status.success()) {
            crate::print_message(&format!("cgroups are left over: {}", self.folders[0].display()));
        }
    }
}

/// Returns the command of the sweeper, which removes these cgroups at the end of its stdin.
fn sweep(folders: &[PathBuf], log: &Path) -> Result<Command> {
    let mut command = Command::new("sh");
    command
        .args(["-c", include_str!("sweep.sh"), "sweep"])
        .args(folders)
        .stdout(Stdio::null())
        .stderr(fs::File::create(log)?)
        // Its own process group, so that Ctrl-C in a terminal does not end the sweeper.
        .process_group(0);
    Ok(command)
}

fn join(folders: &[PathBuf], invocation: Invocation) -> Invocation {
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    invocation.through(Invocation::new("sh").arguments(["-c", JOIN, "join", &folders.join(" ")]))
}

/// Returns a cgroup for each hierarchy of cgroup v1, below the cgroup of this program, so that its limits still apply.
fn hierarchies(name: &str) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        // The format of a line is number:controllers:path.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let mount = Path::new(ROOT).join(controllers.trim_start_matches("name="));
        if number != "0" && mount.exists() {
            let own = mount.join(path.trim_start_matches('/'));
            // In a container the path may be that of the host; then the mount is the cgroup of the container.
            folders.push(if own.exists() { own } else { mount }.join(name));
        }
    }
    Ok(folders)
}

/// Copies the CPUs and memory nodes of the parent cgroup. A new cgroup of v1's cpuset has none, and can run no process.
fn inherit_cpuset(folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        // The other hierarchies do not have these files.
        if let Some(inherited) = folder.parent().and_then(|parent| fs::read(parent.join(file)).ok()) {
            fs::write(folder.join(file), inherited)?;
        }
    }
    Ok(())
}

/// Enables the controllers that kubelet uses for the children of the root of cgroup v2.
///
/// A cgroup with processes cannot give controllers to its children, so the cgroup of this program cannot be the parent. The
/// root of the machine can be. The root of a container cannot, so its processes move into a leaf first, as Docker in Docker
/// does.
fn enable_controllers() -> Result<()> {
    let root = Path::new(ROOT);
    let Err(error) = try_controllers(root) else { return Ok(()) };
    // The root of the machine has no file `cgroup.type`, so the error has another cause.
    if !root.join("cgroup.type").exists() {
        return Err(error);
    }
    let leaf = root.join("proviso-e2e-leaf");
    fs::create_dir_all(&leaf)?;
    for process in fs::read_to_string(root.join("cgroup.procs"))?.lines() {
        // A process may have ended since.
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
