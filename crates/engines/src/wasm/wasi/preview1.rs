//! The names and numbers of WASI preview 1.

/// The name of the module whose functions guests import.
pub(super) const WASI: &str = "wasi_snapshot_preview1";

/// An error number.
pub(super) type Errno = i32;

pub(super) mod errno {
    use super::Errno;

    pub const SUCCESS: Errno = 0;
    pub const BADF: Errno = 8;
    pub const INVAL: Errno = 28;
    pub const NOSYS: Errno = 52;
    pub const SPIPE: Errno = 70;
}
