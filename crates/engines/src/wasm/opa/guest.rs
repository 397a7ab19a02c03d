//! An instance of compiled Rego, for calls by the host.

use std::sync::Arc;

use wasmtime::{Extern, Instance, InstancePre, Memory, ModuleExport, Store, WasmParams, WasmResults};

use super::exports::Exports;
use crate::wasm::export::function;
use crate::wasm::guest_memory;
use crate::wasm::payload::Payload;
use crate::wasm::state::State;

/// The maximum length of a result, in bytes.
const RESULT_LIMIT: usize = 16 << 20;

/// One of the two documents that Rego evaluates.
#[derive(Clone, Copy)]
pub(super) enum Document {
    Data,
    Input,
}

pub(super) struct Guest<'a> {
    pub(super) store: &'a mut Store<State>,
    pub(super) instance: Instance,
    memory: Memory,
    exports: &'a Exports,
}

impl<'a> Guest<'a> {
    /// Creates an instance. Compiled Rego initialises itself when it is instantiated.
    pub(super) async fn new(
        store: &'a mut Store<State>,
        module: &InstancePre<State>,
        exports: &'a Arc<Exports>,
    ) -> wasmtime::Result<Self> {
        store.data_mut().evaluation.exports = Some(Arc::clone(exports));
        let instance = module.instantiate_async(&mut *store).await?;
        let memory = store.data().memory;
        let Some(Extern::Memory(memory)) = instance.get_module_export(&mut *store, &memory) else {
            return Err(wasmtime::Error::msg("the policy module does not export its memory"));
        };
        Ok(Self { store, instance, memory, exports })
    }

    pub(super) async fn call<P, R>(&mut self, export: ModuleExport, parameters: P) -> wasmtime::Result<R>
    where
        P: WasmParams + Sync,
        R: WasmResults + Sync,
    {
        function::<P, R>(&mut *self.store, self.instance, export)?.call_async(&mut *self.store, parameters).await
    }

    /// Has the guest parse a document. Returns the address of the value in the guest's memory.
    pub(super) async fn parse_document(&mut self, document: Document) -> wasmtime::Result<u32> {
        let length = u32::try_from(document_text(&self.store.data().payload, document).len())?;
        let address = self.call(self.exports.malloc, length).await?;
        let (mut memory, state) = guest_memory::at(self.memory, &mut *self.store, "opa_json_parse");
        memory.write(address, document_text(&state.payload, document))?;
        match self.call(self.exports.json_parse, (address, length)).await? {
            0 => Err(wasmtime::Error::msg(match document {
                Document::Data => "the policy cannot parse its data",
                Document::Input => "the policy cannot parse its input",
            })),
            value => Ok(value),
        }
    }

    /// Returns a value of the guest as JSON.
    pub(super) async fn dump(&mut self, value: u32) -> wasmtime::Result<Vec<u8>> {
        let address: u32 = self.call(self.exports.json_dump, value).await?;
        let (memory, _) = guest_memory::at(self.memory, &mut *self.store, "opa_json_dump");
        memory.c_string(address, RESULT_LIMIT).map(<[u8]>::to_vec)
    }
}

fn document_text(payload: &Payload, document: Document) -> &[u8] {
    match (payload, document) {
        (Payload::Rego { input, .. }, Document::Input) => input,
        (Payload::Rego { data, .. }, Document::Data) => data,
        // Compiled Rego has another payload only while the host lists its builtins. That call reads no document.
        (Payload::Validate { .. } | Payload::Other { .. }, _) => b"{}",
    }
}
