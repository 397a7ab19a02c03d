//! The state of one evaluation of compiled Rego.

use std::collections::BTreeMap;
use std::sync::Arc;

use regorus::Value;

use super::exports::Exports;

/// The state of the builtins in one evaluation.
#[derive(Default)]
pub(in crate::wasm) struct Evaluation {
    /// The exports of the guest; `None` if it is no compiled Rego.
    pub(super) exports: Option<Arc<Exports>>,
    /// Whether the guest is inside a builtin.
    pub(super) is_busy: bool,
    /// The answers of builtins that answer the same throughout an evaluation.
    pub(super) remembered: BTreeMap<(i32, Vec<Value>), Value>,
}
