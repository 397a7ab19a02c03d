//! A guest's process: its arguments, its standard input and output, and their limits.

/// The longest answer, and the most standard input that is not read yet, in bytes.
pub(super) const PIPE_LIMIT: usize = 16 << 20;
/// Bytes of standard error that a failure quotes.
pub(super) const ERROR_LIMIT: usize = 512;

/// The process of a guest. waPC guests have no arguments, read nothing and write to the log.
#[derive(Default)]
pub(in crate::wasm) struct Process {
    pub(super) arguments: Vec<&'static str>,
    pub(super) stdin: Vec<u8>,
    /// The number of bytes of `stdin` that the guest has read.
    pub(super) read: usize,
    /// The output of a command; `None` if standard output is a log.
    pub(super) stdout: Option<Vec<u8>>,
    /// The beginning of a command's standard error.
    pub(in crate::wasm) stderr: Vec<u8>,
}
