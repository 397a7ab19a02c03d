//! Limits of one call of a builtin.

/// The longest text that one call may make, in bytes: ten times the largest request.
pub(super) const MAX_TEXT: usize = 16 * 1024 * 1024;
/// The most values that one call may make, or be given by what would make as many.
pub(super) const MAX_ELEMENTS: usize = 1_000_000;
/// The most pairs that one call may compare.
pub(super) const MAX_PAIRS: usize = 10_000_000;
