//! Compiles modules and loads compiled modules.

use std::fmt;

use super::abi::Abi;
use super::engine::Engine;
use super::metadata::Metadata;
use super::module::Module;
use super::module_info::ModuleInfo;
use super::snapshot_mode::{Snapshot, SnapshotMode};
use super::{call, opa, snapshot};
use crate::CompileError;

/// The maximum size of a module, in bytes. Go policies have 3 to 20 MiB.
const MODULE_LIMIT: usize = 64 << 20;

/// Output of [`Engine::precompile`] that is known to be unchanged. The engine runs the bytes as native code.
pub struct VerifiedCode(Vec<u8>);

impl VerifiedCode {
    /// Marks bytes as verified. This is the trust boundary.
    ///
    /// The caller guarantees that exactly these bytes (not a file that may change after the check) came from
    /// [`Engine::precompile`]: this process compiled them, or a trusted process signed them and the caller checked the
    /// signature. Other bytes could run any code with the rights of the server.
    #[must_use]
    pub fn assume_verified(code: Vec<u8>) -> Self {
        Self(code)
    }
}

impl Engine {
    /// Compiles a module in [`SnapshotMode::Automatic`].
    ///
    /// # Errors
    /// The errors of [`Self::precompile_with`].
    pub fn precompile(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        self.precompile_with(wasm, SnapshotMode::Automatic)
    }

    /// Compiles a module. For a large module this occupies all CPUs for seconds. An attempt to record a snapshot runs the
    /// module's initialisation and calls the module. Call this function where blocking is allowed.
    ///
    /// # Errors
    /// Returns [`CompileError::Invalid`] if the bytes are not a valid policy module, and [`CompileError::Unsupported`] if this
    /// engine does not run modules of this kind.
    pub fn precompile_with(&self, wasm: &[u8], snapshot: SnapshotMode) -> Result<Vec<u8>, CompileError> {
        check_preamble(wasm)?;
        let mut info = ModuleInfo::new(Abi::detect(wasm));
        let module = match info.abi {
            Abi::Wapc => {
                let (module, snapshot) = self.compile_wapc(wasm, snapshot)?;
                info.snapshot = snapshot;
                module
            }
            Abi::Opa => {
                let module = self.compile(&opa::with_own_memory(wasm)?)?;
                info.builtins = opa::list_builtins(self, &module)?;
                module
            }
            Abi::Wasi => self.compile(wasm)?,
        };
        info.mode = Metadata::read(wasm)?.map(|metadata| metadata.execution_mode);
        Module::link(self, &module, info.clone())?;
        let mut code = module
            .serialize()
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be serialized: {error:#}")))?;
        info.append(&mut code)?;
        Ok(code)
    }

    /// Compiles a waPC module, with its initialised state if `mode` and the module permit it.
    fn compile_wapc(&self, wasm: &[u8], mode: SnapshotMode) -> Result<(wasmtime::Module, Snapshot), CompileError> {
        let recorded = match mode {
            SnapshotMode::Automatic => snapshot::take(self, wasm),
            SnapshotMode::Never => Ok(None),
        };
        let snapshot = match recorded {
            Ok(Some(module)) => return Ok((module, Snapshot::Recorded)),
            Ok(None) => Snapshot::NotTried,
            Err(error) => Snapshot::Refused(call::truncated(format!("{error:#}"))),
        };
        Ok((self.compile(wasm)?, snapshot))
    }

    fn compile(&self, wasm: &[u8]) -> Result<wasmtime::Module, CompileError> {
        wasmtime::Module::from_binary(self.wasmtime(), wasm)
            .map_err(|error| CompileError::Invalid(format!("the module does not compile: {error:#}")))
    }

    /// Loads the output of [`Self::precompile`].
    ///
    /// # Errors
    /// Returns [`CompileError::Invalid`] if the code comes from an engine with another [`Self::key`], or is obviously damaged.
    pub fn load(&self, code: &VerifiedCode) -> Result<Module, CompileError> {
        let damaged =
            || CompileError::Invalid("the compiled module cannot be loaded: it is incomplete or damaged".into());
        let (code, info) = ModuleInfo::split(&code.0).ok_or_else(damaged)?;
        // SAFETY: `deserialize` trusts the bytes to be the output of a wasmtime compiler. The caller that created the
        // `VerifiedCode` guarantees that (see `VerifiedCode::assume_verified`). `VerifiedCode` owns its bytes, so the loaded
        // bytes are the checked bytes.
        #[allow(unsafe_code)]
        let module = unsafe { wasmtime::Module::deserialize(self.wasmtime(), code) };
        let module = module
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be loaded: {error:#}")))?;
        Module::link(self, &module, info)
    }
}

impl fmt::Debug for VerifiedCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "VerifiedCode({} bytes)", self.0.len())
    }
}

/// Checks the size and the first bytes of a module. The errors are written for the person who uploaded the module.
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
