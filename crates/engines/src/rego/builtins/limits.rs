//! Limits for one call of a builtin.

/// The longest string that one call may return, in bytes: ten times the largest request.
pub(super) const MAX_TEXT: usize = 16 * 1024 * 1024;
/// The largest number of values that one call may return, or that it may receive if it copies them.
pub(super) const MAX_ELEMENTS: usize = 1_000_000;
/// The largest number of pairs that one call may compare.
pub(super) const MAX_PAIRS: usize = 10_000_000;
