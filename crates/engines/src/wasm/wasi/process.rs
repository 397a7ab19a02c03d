//! The process of a guest: its arguments, its standard input and output, and their limits.

/// The maximum length of an answer, and of unread standard input, in bytes.
pub(super) const PIPE_LIMIT: usize = 16 << 20;
/// The maximum number of bytes of standard error that a failure quotes.
pub(super) const ERROR_LIMIT: usize = 512;

/// The process of a guest. waPC guests have no arguments, read nothing and write to the log.
#[derive(Default)]
pub(in crate::wasm) struct Process {
    pub(super) arguments: Vec<&'static str>,
    pub(super) stdin: Vec<u8>,
    /// The number of bytes of `stdin` that the guest has read.
    pub(super) stdin_offset: usize,
    /// The output of a command; `None` if the guest's standard output goes to the log.
    pub(super) stdout: Option<Vec<u8>>,
    /// The beginning of a command's standard error.
    pub(in crate::wasm) stderr: Vec<u8>,
}
