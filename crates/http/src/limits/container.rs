//! The memory limit of the container of this process.

/// The files with the limit: of cgroups version 2 and 1.
const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Returns the memory limit of the container, in bytes; `None` if there is none.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    FILES.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}
