//! The exports of a module, which are resolved when the module is loaded and called in its instances.

use wasmtime::{
    AsContextMut, ExternType, FuncType, Instance, ModuleExport, TypedFunc, ValType, WasmParams, WasmResults,
};

use crate::CompileError;

/// Finds the export `name` and checks its type.
pub(super) fn export(
    module: &wasmtime::Module,
    name: &str,
    is_right: impl Fn(&ExternType) -> bool,
) -> Result<ModuleExport, CompileError> {
    match (module.get_export_index(name), module.get_export(name)) {
        (Some(index), Some(kind)) if is_right(&kind) => Ok(index),
        (Some(_), _) => Err(CompileError::Invalid(format!("the module's export `{name}` is of the wrong type"))),
        (None, _) => Err(CompileError::Invalid(format!(
            "the module does not export `{name}`: a policy module exports `memory` and `__guest_call` (waPC), `_start` \
             (WASI) or the functions of `opa build -t wasm`"
        ))),
    }
}

/// Returns true if an export is a function with this number of parameters and results, all of type `i32`.
pub(super) fn is_function(kind: &ExternType, parameters: usize, results: usize) -> bool {
    let ExternType::Func(function) = kind else { return false };
    let all_i32 =
        |function: &FuncType| function.params().chain(function.results()).all(|value| matches!(value, ValType::I32));
    function.params().len() == parameters && function.results().len() == results && all_i32(function)
}

/// Returns the exported function of an instance.
pub(super) fn function<P: WasmParams, R: WasmResults>(
    mut store: impl AsContextMut,
    instance: Instance,
    export: ModuleExport,
) -> wasmtime::Result<TypedFunc<P, R>> {
    let function = instance.get_module_export(&mut store, &export).and_then(wasmtime::Extern::into_func);
    function.ok_or_else(|| wasmtime::Error::msg("an export is not a function"))?.typed(&store)
}
