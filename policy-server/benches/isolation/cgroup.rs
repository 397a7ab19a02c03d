//! A cgroup with a memory limit, as a container has it. Creating one needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A shell script that joins the cgroup in `$1`, and then runs the other arguments as a command.
const JOIN: &str = r#"echo 0 >"$1/cgroup.procs" && shift && exec "$@""#;
const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup of version 1 or 2. Dropping the value removes the cgroup, which must have no processes then.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup with a memory limit in bytes.
    pub fn new(limit: u64) -> io::Result<Self> {
        let name = format!("proviso-bench-{}", std::process::id());
        let root = Path::new(ROOT);
        let (folder, file) = if root.join("cgroup.controllers").exists() {
            // Only the root may have both processes and cgroups with limits below it.
            (root.join(name), "memory.max")
        } else {
            (own_v1(&root.join("memory"))?.join(name), "memory.limit_in_bytes")
        };
        fs::create_dir(&folder)?;
        let group = Self(folder);
        fs::write(group.0.join(file), limit.to_string())?;
        Ok(group)
    }

    /// Returns a command that runs the program in this cgroup.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", JOIN, "join"]).arg(&self.0).arg(program);
        command
    }

    /// Returns the number of processes that the kernel has ended because of the limit.
    pub fn oom_kills(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let text = files.iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok()).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).expect("the number of OOM kills")
    }

    /// Returns the highest memory usage so far, in bytes.
    pub fn peak(&self) -> u64 {
        let files = ["memory.peak", "memory.max_usage_in_bytes"];
        let text = files.iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok()).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the memory cgroup of this process in the hierarchy of version 1.
fn own_v1(mount: &Path) -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
    let own = mount.join(path.trim_start_matches('/'));
    // In a container the path may be that of the host; then the mount is the cgroup of the container.
    Ok(if own.exists() { own } else { mount.to_owned() })
}
