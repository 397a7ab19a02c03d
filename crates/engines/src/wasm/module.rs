//! A loaded module. Its imports and exports are resolved once, for all of its instances.

use std::fmt;
use std::sync::Arc;

use wasmtime::{ExternType, InstancePre, ModuleExport, UnknownImportError};

use super::abi::{Abi, Exports};
use super::engine::Engine;
use super::export::export;
use super::metadata::ExecutionMode;
use super::module_info::ModuleInfo;
use super::snapshot_mode::Snapshot;
use super::state::State;
use super::{opa, wapc, wasi};
use crate::CompileError;

/// A module that is ready to be instantiated. Clones share all state.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// The parts of a loaded module, with the resolved exports that the host uses.
pub(super) struct Loaded {
    pub(super) engine: Engine,
    pub(super) instance: InstancePre<State>,
    pub(super) memory: ModuleExport,
    pub(super) exports: Exports,
    info: ModuleInfo,
}

impl Module {
    /// Resolves the imports and exports of a module.
    pub(super) fn link(engine: &Engine, module: &wasmtime::Module, info: ModuleInfo) -> Result<Self, CompileError> {
        let abi = info.abi;
        let instance = engine.imports(abi).instantiate_pre(module).map_err(|error| import_error(abi, &error))?;
        let memory = export(module, "memory", |kind| matches!(kind, ExternType::Memory(_)))?;
        let exports = match abi {
            Abi::Wapc => Exports::Wapc(wapc::Exports::of(module)?),
            Abi::Opa => Exports::Opa(Arc::new(opa::Exports::of(module, &info.builtins)?)),
            Abi::Wasi => Exports::Wasi(wasi::Exports::of(module)?),
        };
        let loaded = Loaded { engine: engine.clone(), instance, memory, exports, info };
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// Returns the execution mode of the module: the mode in its metadata, or else `declared`, or else the only mode that its
    /// calling convention has.
    ///
    /// # Errors
    /// Returns [`CompileError::Invalid`] if the metadata and `declared` contradict each other or the module's calling
    /// convention, or if the module is compiled Rego and neither of the two names a mode.
    pub fn mode(&self, declared: Option<ExecutionMode>) -> Result<ExecutionMode, CompileError> {
        let ModuleInfo { abi, mode: annotated, .. } = self.loaded.info;
        if let (Some(annotated), Some(declared)) = (annotated, declared)
            && annotated != declared
        {
            return Err(CompileError::Invalid(format!(
                "the module's metadata says that its execution mode is {annotated}, not {declared}: remove `mode`"
            )));
        }
        let Some(mode) = annotated.or(declared).or(self.only_mode()) else {
            return Err(CompileError::Invalid(
                "the module is compiled Rego, and its metadata does not name an execution mode: set `mode` to opa if the \
                 policy answers with an AdmissionReview, or to gatekeeper if it answers with violations"
                    .into(),
            ));
        };
        let expected = match mode {
            ExecutionMode::KubewardenWapc => Abi::Wapc,
            ExecutionMode::Opa | ExecutionMode::Gatekeeper => Abi::Opa,
            ExecutionMode::Wasi => Abi::Wasi,
        };
        if expected == abi {
            return Ok(mode);
        }
        let source = if annotated.is_some() { "the module's metadata says" } else { "`mode` says" };
        let (expected, actual) = (expected.noun(), abi.noun());
        Err(CompileError::Invalid(format!("{source} {mode}, which is for {expected}, but the module is {actual}")))
    }

    /// Returns the result of the attempt to record the initialised state of the module.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.loaded.info.snapshot
    }

    /// Returns the only execution mode of the module's calling convention; `None` if the convention has several modes.
    pub(super) fn only_mode(&self) -> Option<ExecutionMode> {
        match self.loaded.info.abi {
            Abi::Wapc => Some(ExecutionMode::KubewardenWapc),
            Abi::Wasi => Some(ExecutionMode::Wasi),
            Abi::Opa => None,
        }
    }

    pub(super) fn loaded(&self) -> &Loaded {
        &self.loaded
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Module").field("name", &self.loaded.instance.module().name()).finish_non_exhaustive()
    }
}

fn import_error(abi: Abi, error: &wasmtime::Error) -> CompileError {
    let Some(unknown) = error.downcast_ref::<UnknownImportError>() else {
        return CompileError::Unsupported(format!("an import of the module has the wrong type: {error:#}"));
    };
    let (module, name) = (unknown.module(), unknown.name());
    let (noun, provides) = (abi.noun(), abi.provides());
    CompileError::Unsupported(format!(
        "the module imports {module}.{name}, which is not provided to {noun}: {provides}"
    ))
}
