//! The state of one evaluation of compiled Rego.

use std::collections::BTreeMap;
use std::sync::Arc;

use regorus::Value;

use super::exports::Exports;

/// The state of the builtins in one evaluation.
#[derive(Default)]
pub(in crate::wasm) struct Evaluation {
    /// The exports of the guest; `None` if the guest is not compiled Rego.
    pub(super) exports: Option<Arc<Exports>>,
    /// True while the guest is in a call of a builtin.
    pub(super) is_in_builtin: bool,
    /// The results of the builtins that return the same value throughout an evaluation, by number and arguments.
    pub(super) constants: BTreeMap<(i32, Vec<Value>), Value>,
}
