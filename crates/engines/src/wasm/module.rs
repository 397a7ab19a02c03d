//! A loaded module: what instances of it need is resolved once, here.

use std::fmt;
use std::sync::Arc;

use wasmtime::{ExternType, FuncType, InstancePre, ModuleExport, UnknownImportError, ValType};

use super::engine::Engine;
use super::state::State;
use crate::CompileError;

/// Functions that set a module up, in the order in which they are called: WASI reactors', WASI commands' and waPC's.
pub(super) const INITIALISERS: [&str; 3] = ["_initialize", "_start", "wapc_init"];

/// A module that is ready to be instantiated. Clones share everything.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// The parts of a module, with the places of the exports that its caller uses.
pub(super) struct Loaded {
    pub(super) engine: Engine,
    pub(super) instance: InstancePre<State>,
    pub(super) memory: ModuleExport,
    pub(super) guest_call: ModuleExport,
    pub(super) initialisers: Vec<ModuleExport>,
}

impl Module {
    /// Resolves imports and exports.
    pub(super) fn link(engine: &Engine, module: &wasmtime::Module) -> Result<Self, CompileError> {
        let instance = engine.imports().instantiate_pre(module).map_err(|error| refused_import(&error))?;
        let memory = export(module, "memory", |kind| matches!(kind, ExternType::Memory(_)))?;
        let guest_call = export(module, "__guest_call", |kind| is_function(kind, 2, 1))?;
        let mut initialisers = Vec::new();
        for name in INITIALISERS {
            if module.get_export_index(name).is_some() {
                initialisers.push(export(module, name, |kind| is_function(kind, 0, 0))?);
            }
        }
        let loaded = Loaded { engine: engine.clone(), instance, memory, guest_call, initialisers };
        Ok(Self { loaded: Arc::new(loaded) })
    }

    pub(super) fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Module").field("name", &self.loaded.instance.module().name()).finish_non_exhaustive()
    }
}

fn export(
    module: &wasmtime::Module,
    name: &str,
    is_right: impl Fn(&ExternType) -> bool,
) -> Result<ModuleExport, CompileError> {
    match (module.get_export_index(name), module.get_export(name)) {
        (Some(index), Some(kind)) if is_right(&kind) => Ok(index),
        (Some(_), _) => Err(CompileError::Invalid(format!("the module's export `{name}` is of the wrong type"))),
        (None, _) => Err(CompileError::Invalid(format!(
            "the module does not export `{name}`: it is no Kubewarden policy, which has `memory` and `__guest_call`"
        ))),
    }
}

fn is_function(kind: &ExternType, parameters: usize, results: usize) -> bool {
    let ExternType::Func(function) = kind else { return false };
    let all_i32 =
        |function: &FuncType| function.params().chain(function.results()).all(|value| matches!(value, ValType::I32));
    function.params().len() == parameters && function.results().len() == results && all_i32(function)
}

fn refused_import(error: &wasmtime::Error) -> CompileError {
    let Some(unknown) = error.downcast_ref::<UnknownImportError>() else {
        return CompileError::Unsupported(format!("an import of the module does not fit: {error:#}"));
    };
    let (module, name) = (unknown.module(), unknown.name());
    CompileError::Unsupported(match (module, name) {
        ("env", name) if name == "memory" || name.starts_with("opa_") => format!(
            "this is an OPA module (it imports env.{name}): the execution modes opa and gatekeeper are not supported yet"
        ),
        ("host" | "kubewarden:javy/host", "call") => {
            format!("the module imports {module}.{name}: the execution mode wasi is not supported yet")
        }
        _ => format!(
            "the module imports {module}.{name}, which is not provided: only wapc and wasi_snapshot_preview1 are"
        ),
    })
}
