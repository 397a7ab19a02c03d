//! The exports of compiled Rego, and the builtins that it calls in its host.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasmtime::ModuleExport;

use crate::CompileError;
use crate::rego::builtins::{Function, named};
use crate::wasm::export::{export, is_function};

/// Builtins that are refused even if a later version of the Rego engine has them, because they read external data or wait.
const REFUSED_BUILTINS: &[&str] = &["http.send", "net.lookup_ip_addr", "opa.runtime", "test.sleep"];

/// The exported functions of a module, and the builtins that it calls.
pub(in crate::wasm) struct Exports {
    pub(super) malloc: ModuleExport,
    pub(super) json_parse: ModuleExport,
    pub(super) json_dump: ModuleExport,
    pub(super) value_parse: ModuleExport,
    pub(super) value_dump: ModuleExport,
    pub(super) context_new: ModuleExport,
    pub(super) set_input: ModuleExport,
    pub(super) set_data: ModuleExport,
    pub(super) set_entrypoint: ModuleExport,
    pub(super) eval: ModuleExport,
    pub(super) result: ModuleExport,
    pub(super) builtins: ModuleExport,
    /// The builtins by the numbers that the module uses for them.
    pub(super) host_builtins: BTreeMap<i32, Builtin>,
}

impl Exports {
    pub(in crate::wasm) fn of(
        module: &wasmtime::Module,
        builtins: &BTreeMap<i32, String>,
    ) -> Result<Self, CompileError> {
        let function = |name, parameters, results| export(module, name, |kind| is_function(kind, parameters, results));
        Ok(Self {
            malloc: function("opa_malloc", 1, 1)?,
            json_parse: function("opa_json_parse", 2, 1)?,
            json_dump: function("opa_json_dump", 1, 1)?,
            value_parse: function("opa_value_parse", 2, 1)?,
            value_dump: function("opa_value_dump", 1, 1)?,
            context_new: function("opa_eval_ctx_new", 0, 1)?,
            set_input: function("opa_eval_ctx_set_input", 2, 0)?,
            set_data: function("opa_eval_ctx_set_data", 2, 0)?,
            set_entrypoint: function("opa_eval_ctx_set_entrypoint", 2, 0)?,
            eval: function("eval", 1, 1)?,
            result: function("opa_eval_ctx_get_result", 1, 1)?,
            builtins: function("builtins", 0, 1)?,
            host_builtins: resolve_builtins(builtins)?,
        })
    }
}

/// A builtin of the host.
pub(super) struct Builtin {
    pub(super) name: String,
    pub(super) arity: u8,
    pub(super) function: Arc<Function>,
}

/// Returns the builtins with these names, by the numbers that the module uses for them.
fn resolve_builtins(names: &BTreeMap<i32, String>) -> Result<BTreeMap<i32, Builtin>, CompileError> {
    let (mut resolved, mut missing) = (BTreeMap::new(), Vec::new());
    for (id, name) in names {
        match named(name).filter(|_| !REFUSED_BUILTINS.contains(&name.as_str())) {
            Some((arity, function)) => {
                resolved.insert(*id, Builtin { name: name.clone(), arity, function });
            }
            None => missing.push(name.as_str()),
        }
    }
    if missing.is_empty() {
        return Ok(resolved);
    }
    let missing = missing.join(", ");
    Err(CompileError::Unsupported(format!("the module calls builtins that are not provided: {missing}")))
}
