//! The limits of the container of this server, as its cgroups set them, and those of the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory and the CPUs that this server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// The memory in bytes; `None` if it is unknown.
    pub memory: Option<u64>,
    /// The number of CPUs, at least 1. A CPU limit of the container is rounded down.
    pub cpus: usize,
}

impl Container {
    /// Reads the limits of this process.
    #[must_use]
    pub fn read() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory =
            cgroup_memory(Path::new("/sys/fs/cgroup"), &groups).into_iter().chain(total_memory(&machine)).min();
        Self { memory, cpus: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// Returns the smallest memory limit of the cgroups of a process, of version 2 or 1, below the folder where they are mounted.
/// `groups` is the content of its file `/proc/<pid>/cgroup`.
fn cgroup_memory(mount: &Path, groups: &str) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        // The format of a line is number:controllers:path.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|it| it == "memory") => (mount.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container, the path may be that of the host. Then only the mount itself, which is the cgroup of the container,
        // exists.
        let own: PathBuf = root.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
        limits.extend(
            folders.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()),
        );
    }
    limits.into_iter().min()
}

/// Returns the memory of the machine in bytes, from the content of `/proc/meminfo`.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_of_the_cgroups_counts() {
        let mount = tempfile::tempdir().unwrap();
        let write = |path: &str, limit: &str| {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{limit}\n")).unwrap();
        };
        write("pod/memory.max", "2000");
        write("pod/container/memory.max", "max");
        write("memory/memory.limit_in_bytes", "9223372036854771712");
        write("memory/job/memory.limit_in_bytes", "1000");
        let memory = |groups: &str| cgroup_memory(mount.path(), groups);
        assert_eq!(memory("0::/pod/container\n"), Some(2000));
        assert_eq!(memory("0::/elsewhere\n"), None);
        assert_eq!(memory("5:cpu,cpuacct:/job\n4:memory:/job\n"), Some(1000));
        // The path of the host, seen from the container.
        assert_eq!(memory("4:memory:/kubepods/pod1/job\n"), Some(9_223_372_036_854_771_712));
        assert_eq!(memory(""), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_memory("MemTotal:       16384 kB\nMemFree:        1 kB\n"), Some(16 << 20));
        assert_eq!(total_memory(""), None);
        assert!(Container::read().cpus > 0);
    }
}
