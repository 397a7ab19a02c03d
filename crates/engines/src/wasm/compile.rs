//! Compiles modules, and loads compiled ones.

use std::fmt;

use super::abi::Abi;
use super::engine::Engine;
use super::facts::Facts;
use super::metadata::Metadata;
use super::module::Module;
use super::{opa, snapshot};
use crate::CompileError;

/// The largest module that is compiled, in bytes. Go policies have 3 to 20 MiB.
const MODULE_LIMIT: usize = 64 << 20;

/// Bytes of [`Engine::precompile`] that nobody else can have changed: loading them runs them as native code.
pub struct VerifiedCode(Vec<u8>);

impl VerifiedCode {
    /// The trust boundary. Whoever calls this vouches that these very bytes (not a file that may change
    /// after the check) came from [`Engine::precompile`]: compiled in this process, or signed by one that is
    /// trusted and the signature checked. Other bytes run with the rights of the server.
    #[must_use]
    pub fn assume_verified(code: Vec<u8>) -> Self {
        Self(code)
    }
}

impl Engine {
    /// Compiles a module, with a snapshot of its initialised state where it has one. Takes seconds of all CPUs for a
    /// large one, and runs its initialisation: call it where blocking is allowed.
    ///
    /// # Errors
    /// When the bytes are no module, or one that this engine does not run.
    pub fn precompile(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        check_preamble(wasm)?;
        let mut facts = Facts::of(Abi::of(wasm));
        let module = match facts.abi {
            Abi::Wapc => snapshot::take(self, wasm).map_or_else(|| self.compile(wasm), Ok)?,
            Abi::Opa => {
                let module = self.compile(&opa::with_own_memory(wasm)?)?;
                facts.builtins = opa::inspect(self, &module)?;
                module
            }
            Abi::Wasi => self.compile(wasm)?,
        };
        facts.mode = Metadata::read(wasm)?.map(|metadata| metadata.execution_mode);
        Module::link(self, &module, facts.clone())?;
        let mut code = module
            .serialize()
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be written: {error:#}")))?;
        facts.append(&mut code)?;
        Ok(code)
    }

    fn compile(&self, wasm: &[u8]) -> Result<wasmtime::Module, CompileError> {
        wasmtime::Module::from_binary(self.wasmtime(), wasm)
            .map_err(|error| CompileError::Invalid(format!("the module does not compile: {error:#}")))
    }

    /// Loads what [`Self::precompile`] made.
    ///
    /// # Errors
    /// When the code comes from an engine with another [`Self::key`], or is damaged in an obvious way.
    pub fn load(&self, code: &VerifiedCode) -> Result<Module, CompileError> {
        let damaged = || CompileError::Invalid("the compiled module cannot be loaded: it is not whole".into());
        let (code, facts) = Facts::split(&code.0).ok_or_else(damaged)?;
        // SAFETY: deserializing trusts the bytes to be the output of a wasmtime compiler. `VerifiedCode` exists
        // only where someone vouched for that (see `VerifiedCode::assume_verified`); it owns the bytes, so that they
        // are the ones that were checked.
        #[allow(unsafe_code)]
        let module = unsafe { wasmtime::Module::deserialize(self.wasmtime(), code) };
        let module = module
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be loaded: {error:#}")))?;
        Module::link(self, &module, facts)
    }
}

impl fmt::Debug for VerifiedCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "VerifiedCode({} bytes)", self.0.len())
    }
}

/// Says what is wrong with bytes that cannot be a module, in words for the person who uploaded them.
fn check_preamble(wasm: &[u8]) -> Result<(), CompileError> {
    if wasm.len() > MODULE_LIMIT {
        let (size, limit) = (wasm.len(), MODULE_LIMIT >> 20);
        return Err(CompileError::Invalid(format!("the module has {size} bytes: more than {limit} MiB")));
    }
    match wasm.get(..8) {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => Ok(()),
        Some([0, b'a', b's', b'm', _, _, 1, 0]) => Err(CompileError::Unsupported(
            "this is a WebAssembly component; policies are core modules (for Rust: target wasm32-wasip1)".into(),
        )),
        Some([0, b'a', b's', b'm', ..]) => {
            Err(CompileError::Unsupported("this is WebAssembly of an unknown version, not version 1".into()))
        }
        _ => Err(CompileError::Invalid("these bytes are no WebAssembly module: they do not start with \\0asm".into())),
    }
}
