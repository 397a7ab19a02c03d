//! Lists the builtins that compiled Rego needs from its host. The list is the result of a function of the module.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::Val;

use super::guest::Guest;
use crate::wasm::abi::{Abi, Exports};
use crate::wasm::call::new_store;
use crate::wasm::engine::Engine;
use crate::wasm::module::Module;
use crate::wasm::module_info::ModuleInfo;
use crate::wasm::payload::Payload;
use crate::{CompileError, Deadline, NoHost};

/// The maximum time for listing the builtins.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the names of the builtins, by the numbers that the module uses for them.
pub(in crate::wasm) fn list_builtins(
    engine: &Engine,
    module: &wasmtime::Module,
) -> Result<BTreeMap<i32, String>, CompileError> {
    let module = Module::link(engine, module, ModuleInfo::new(Abi::Opa))?;
    // The call needs its own thread, because the caller may be inside an async runtime.
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("wasm-inspection".into());
        match thread.spawn_scoped(scope, || call_builtins(&module)) {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(wasmtime::Error::msg("the call panicked"))),
            Err(error) => Err(error.into()),
        }
    });
    outcome.map_err(|error| {
        CompileError::Invalid(format!("the module does not list the builtins that it needs: {}", error.root_cause()))
    })
}

/// Calls the module's export `builtins`.
fn call_builtins(module: &Module) -> wasmtime::Result<BTreeMap<i32, String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let deadline = Deadline::after(TIMEOUT);
        let loaded = module.loaded();
        let _slot = loaded.engine.acquire_slot(deadline).await?;
        let Exports::Opa(exports) = &loaded.exports else {
            return Err(wasmtime::Error::msg("the module is not compiled Rego"));
        };
        let mut store = new_store(module, Payload::protocol_version(), Arc::new(NoHost), deadline);
        let mut guest = Guest::new(&mut store, &loaded.instance, exports).await?;
        let version = guest.instance.get_global(&mut *guest.store, "opa_wasm_abi_version");
        match version.map(|version| version.get(&mut *guest.store)) {
            Some(Val::I32(1)) => {}
            Some(version) => {
                return Err(wasmtime::Error::msg(format!("its ABI is {version:?}, not version 1")));
            }
            None => return Err(wasmtime::Error::msg("it was built by OPA before 0.27: rebuild it with a newer OPA")),
        }
        let names = guest.call(exports.builtins, ()).await?;
        let names: BTreeMap<String, i32> = serde_json::from_slice(&guest.dump(names).await?)?;
        Ok(names.into_iter().map(|(name, id)| (id, name)).collect())
    })
}
