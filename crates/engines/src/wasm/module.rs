//! A loaded module: what instances of it need is resolved once, here.

use std::fmt;
use std::sync::Arc;

use wasmtime::{ExternType, InstancePre, ModuleExport, UnknownImportError};

use super::abi::{Abi, Exports};
use super::engine::Engine;
use super::export::export;
use super::facts::Facts;
use super::metadata::ExecutionMode;
use super::state::State;
use super::{opa, wapc, wasi};
use crate::CompileError;

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
    pub(super) exports: Exports,
    facts: Facts,
}

impl Module {
    /// Resolves imports and exports.
    pub(super) fn link(engine: &Engine, module: &wasmtime::Module, facts: Facts) -> Result<Self, CompileError> {
        let abi = facts.abi;
        let instance = engine.imports(abi).instantiate_pre(module).map_err(|error| refused_import(abi, &error))?;
        let memory = export(module, "memory", |kind| matches!(kind, ExternType::Memory(_)))?;
        let exports = match abi {
            Abi::Wapc => Exports::Wapc(wapc::Exports::of(module)?),
            Abi::Opa => Exports::Opa(Arc::new(opa::Exports::of(module, &facts.builtins)?)),
            Abi::Wasi => Exports::Wasi(wasi::Exports::of(module)?),
        };
        let loaded = Loaded { engine: engine.clone(), instance, memory, exports, facts };
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// How the module is to be asked: as its metadata say, or else as `declared`, or else as the only way that there is.
    ///
    /// # Errors
    /// When these contradict each other or the module itself, or when nobody says which of two ways it is.
    pub fn mode(&self, declared: Option<ExecutionMode>) -> Result<ExecutionMode, CompileError> {
        let Facts { abi, mode: told, .. } = self.loaded.facts;
        if let (Some(told), Some(declared)) = (told, declared)
            && told != declared
        {
            return Err(CompileError::Invalid(format!(
                "the module says of itself that its execution mode is {told}, not {declared}: remove `mode`"
            )));
        }
        let Some(mode) = told.or(declared).or(self.only_mode()) else {
            return Err(CompileError::Invalid(
                "the module is compiled Rego and does not say how it is to be asked: set `mode` to opa, if it answers \
                 with an AdmissionReview, or to gatekeeper, if with violations"
                    .into(),
            ));
        };
        let wanted = match mode {
            ExecutionMode::KubewardenWapc => Abi::Wapc,
            ExecutionMode::Opa | ExecutionMode::Gatekeeper => Abi::Opa,
            ExecutionMode::Wasi => Abi::Wasi,
        };
        if wanted == abi {
            return Ok(mode);
        }
        let source = if told.is_some() { "the module's metadata say" } else { "`mode` says" };
        let (wanted, is) = (wanted.noun(), abi.noun());
        Err(CompileError::Invalid(format!("{source} {mode}, which is for {wanted}, but the module is {is}")))
    }

    /// The mode of a module of which there is but one.
    pub(super) fn only_mode(&self) -> Option<ExecutionMode> {
        match self.loaded.facts.abi {
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

fn refused_import(abi: Abi, error: &wasmtime::Error) -> CompileError {
    let Some(unknown) = error.downcast_ref::<UnknownImportError>() else {
        return CompileError::Unsupported(format!("an import of the module does not fit: {error:#}"));
    };
    let (module, name) = (unknown.module(), unknown.name());
    let (is, provides) = (abi.noun(), abi.provides());
    CompileError::Unsupported(format!("the module imports {module}.{name}, which is not provided to {is}: {provides}"))
}
