//! Asks compiled Rego which builtins it needs: only the module itself can tell.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::Val;

use super::guest::Guest;
use crate::wasm::abi::{Abi, Exports};
use crate::wasm::call::new_store;
use crate::wasm::engine::Engine;
use crate::wasm::facts::Facts;
use crate::wasm::module::Module;
use crate::wasm::payload::Payload;
use crate::{CompileError, Deadline, NoHost};

/// How long the answer may take.
const BUDGET: Duration = Duration::from_secs(2);

/// The names of the builtins, by the numbers that the module calls them by.
pub(in crate::wasm) fn inspect(
    engine: &Engine,
    module: &wasmtime::Module,
) -> Result<BTreeMap<i32, String>, CompileError> {
    let module = Module::link(engine, module, Facts::of(Abi::Opa))?;
    // A thread of its own: the caller may be inside a runtime.
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("wasm-inspection".into());
        match thread.spawn_scoped(scope, || ask(&module)) {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(wasmtime::Error::msg("it panicked"))),
            Err(error) => Err(error.into()),
        }
    });
    outcome.map_err(|error| {
        CompileError::Invalid(format!("the module does not tell which builtins it needs: {}", error.root_cause()))
    })
}

fn ask(module: &Module) -> wasmtime::Result<BTreeMap<i32, String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let deadline = Deadline::after(BUDGET);
        let loaded = module.loaded();
        let _place = loaded.engine.place(deadline).await?;
        let Exports::Opa(exports) = &loaded.exports else {
            return Err(wasmtime::Error::msg("it is no compiled Rego"));
        };
        let mut store = new_store(module, Payload::protocol_version(), Arc::new(NoHost), deadline);
        let mut guest = Guest::new(&mut store, &loaded.instance, exports).await?;
        let version = guest.instance.get_global(&mut *guest.store, "opa_wasm_abi_version");
        match version.map(|version| version.get(&mut *guest.store)) {
            Some(Val::I32(1)) => {}
            Some(version) => {
                return Err(wasmtime::Error::msg(format!("its ABI is {version:?}, not version 1")));
            }
            None => return Err(wasmtime::Error::msg("OPA before 0.27 built it: build it by a newer one")),
        }
        let names = guest.call(exports.builtins, ()).await?;
        let names: BTreeMap<String, i32> = serde_json::from_slice(&guest.dump(names).await?)?;
        Ok(names.into_iter().map(|(name, id)| (id, name)).collect())
    })
}
