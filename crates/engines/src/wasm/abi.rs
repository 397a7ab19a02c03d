//! The calling conventions of modules: detection, linking and calls.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmparser::{Parser, Payload as Section};
use wasmtime::{InstancePre, Linker, Store};

use super::outcome::Outcome;
use super::state::State;
use super::{opa, wapc, wasi};

/// A calling convention between host and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Abi {
    /// waPC: the host calls `__guest_call`, and the guest fetches and answers the message by calling functions of the host.
    Wapc,
    /// Compiled Rego: the host creates values in the guest's heap, and the guest's `eval` evaluates them.
    Opa,
    /// A WASI command: arguments, standard input, standard output, exit code.
    Wasi,
}

impl Abi {
    pub(super) const ALL: [Self; 3] = [Self::Wapc, Self::Opa, Self::Wasi];

    /// Detects the calling convention of a module by its imports and exports. A module without a known convention counts as
    /// waPC, whose errors then name the missing export. The compiler refuses a damaged module later.
    pub(super) fn detect(wasm: &[u8]) -> Self {
        let (mut is_rego, mut is_wapc, mut is_command) = (false, false, false);
        for section in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
            match section {
                Section::ImportSection(imports) => {
                    is_rego |= imports.into_imports().flatten().any(|import| {
                        import.module == opa::IMPORTS && (import.name == "memory" || import.name.starts_with("opa_"))
                    });
                }
                Section::ExportSection(exports) => {
                    for export in exports.into_iter().flatten() {
                        is_wapc |= export.name == wapc::GUEST_CALL;
                        is_command |= export.name == wasi::START;
                    }
                }
                _ => {}
            }
        }
        match (is_wapc, is_rego, is_command) {
            (true, ..) | (false, false, false) => Self::Wapc,
            (false, true, _) => Self::Opa,
            (false, false, true) => Self::Wasi,
        }
    }

    /// Adds the functions that modules of this convention may import to the linker.
    pub(super) fn define(self, linker: &mut Linker<State>) -> wasmtime::Result<()> {
        match self {
            Self::Wapc => {
                wapc::define(linker)?;
                wasi::define(linker)
            }
            Self::Opa => opa::define(linker),
            Self::Wasi => {
                wasi::define(linker)?;
                wasi::define_host(linker)
            }
        }
    }

    /// Returns the name of a module of this convention, for messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Wapc => "a waPC module",
            Self::Opa => "compiled Rego",
            Self::Wasi => "a WASI command",
        }
    }

    /// Returns the end of a message about an unknown import: the imports that this convention provides.
    pub(super) fn provides(self) -> &'static str {
        match self {
            Self::Wapc => "only wapc and wasi_snapshot_preview1 are",
            Self::Opa => "only the memory and the functions of OPA are",
            Self::Wasi => "only wasi_snapshot_preview1 and host.call are",
        }
    }
}

/// The exports of a module that the host uses.
pub(super) enum Exports {
    Wapc(wapc::Exports),
    Opa(Arc<opa::Exports>),
    Wasi(wasi::Exports),
}

impl Exports {
    /// Instantiates the module and returns the instance's answer to the payload of the store.
    pub(super) async fn call(&self, store: &mut Store<State>, module: &InstancePre<State>) -> Outcome {
        match self {
            Self::Wapc(exports) => wapc::call(store, module, exports).await,
            Self::Opa(exports) => opa::call(store, module, exports).await,
            Self::Wasi(exports) => wasi::call(store, module, exports).await,
        }
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "this test uses only the imports of the guests")]
#[path = "../../fuzz/src/hostile.rs"]
mod hostile;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::wasm::call::new_store;
    use crate::wasm::payload::Payload;
    use crate::wasm::{Config, Engine, VerifiedCode};
    use crate::{Deadline, NoHost};

    #[test]
    fn the_guests_of_the_fuzz_targets_import_every_host_function() {
        let engine = Engine::new(Config { memory_limit: 1 << 20, concurrency: 2 }).unwrap();
        for (abi, fuzz_abi) in Abi::ALL.into_iter().zip(hostile::Abi::ALL) {
            let guest = fuzz_abi.guest();
            let code = engine.precompile(&wat::parse_str(guest.wat()).unwrap()).unwrap();
            let module = engine.load(&VerifiedCode::assume_verified(code)).unwrap();
            let deadline = Deadline::after(Duration::from_secs(1));
            let mut store = new_store(&module, Payload::protocol_version(), Arc::new(NoHost), deadline);
            let linker = engine.imports(abi);
            let provided: BTreeSet<(&str, &str)> =
                linker.iter(&mut store).map(|(module, name, _)| (module, name)).collect();
            let imported = guest.imports.iter().map(|import| (import.module, import.name)).collect();
            assert_eq!(provided, imported, "{abi:?}");
        }
    }
}
