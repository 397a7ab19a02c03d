//! Access to the memory of a guest. Every address and length comes from the guest and is checked here.

use wasmtime::{Caller, Extern, Memory, StoreContextMut};

use super::state::State;

/// A guest gave an address range outside its memory, or one that is too long.
#[derive(Debug, thiserror::Error)]
#[error("the policy called {function} with {length} bytes at address {address}: {problem}")]
struct BadRange {
    function: &'static str,
    address: u32,
    length: usize,
    problem: &'static str,
}

/// The memory of the calling guest, lent for one call of an import.
pub(super) struct GuestMemory<'a> {
    function: &'static str,
    bytes: &'a mut [u8],
}

/// Borrows the caller's memory together with its state. `function` is the import that the guest called.
pub(super) fn of<'a>(
    caller: &'a mut Caller<'_, State>,
    function: &'static str,
) -> wasmtime::Result<(GuestMemory<'a>, &'a mut State)> {
    let export = caller.data().memory;
    let Some(Extern::Memory(memory)) = caller.get_module_export(&export) else {
        return Err(wasmtime::Error::msg("the policy has no memory"));
    };
    Ok(at(memory, caller, function))
}

/// Borrows a memory together with the state of its store. `function` is what the guest is called for.
pub(super) fn at<'a>(
    memory: Memory,
    store: impl Into<StoreContextMut<'a, State>>,
    function: &'static str,
) -> (GuestMemory<'a>, &'a mut State) {
    let (bytes, state) = memory.data_and_store_mut(store);
    (GuestMemory { function, bytes }, state)
}

impl GuestMemory<'_> {
    pub(super) fn read(&self, address: u32, length: u32, limit: usize) -> wasmtime::Result<&[u8]> {
        let length = length as usize;
        if length > limit {
            return Err(self.bad(address, length, "that is too long"));
        }
        let start = address as usize;
        let range = start.checked_add(length).and_then(|end| self.bytes.get(start..end));
        range.ok_or_else(|| self.bad(address, length, "that is outside its memory"))
    }

    /// As much of the text as fits into `limit` bytes; what is not UTF-8 is replaced.
    pub(super) fn text(&self, address: u32, length: u32, limit: usize) -> wasmtime::Result<String> {
        let whole = self.read(address, length, usize::MAX)?;
        let mut text = String::from_utf8_lossy(&whole[..whole.len().min(limit)]).into_owned();
        if whole.len() > limit {
            text.push('…');
        }
        Ok(text)
    }

    /// What is at the address, up to a zero.
    pub(super) fn c_string(&self, address: u32, limit: usize) -> wasmtime::Result<&[u8]> {
        let rest = self.bytes.get(address as usize..).unwrap_or_default();
        let end = rest.iter().take(limit.saturating_add(1)).position(|byte| *byte == 0);
        end.map(|end| &rest[..end]).ok_or_else(|| self.bad(address, rest.len().min(limit), "no text ends there"))
    }

    /// The beginning of such a text, of at most so many bytes.
    pub(super) fn beginning(&self, address: u32, limit: usize) -> wasmtime::Result<&[u8]> {
        let rest = self.bytes.get(address as usize..).ok_or_else(|| self.bad(address, 0, "no text begins there"))?;
        let beginning = &rest[..rest.len().min(limit)];
        let end = beginning.iter().position(|byte| *byte == 0);
        Ok(&beginning[..end.unwrap_or(beginning.len())])
    }

    pub(super) fn write(&mut self, address: u32, bytes: &[u8]) -> wasmtime::Result<()> {
        self.write_pieces(address, &[bytes])
    }

    pub(super) fn write_pieces(&mut self, address: u32, pieces: &[&[u8]]) -> wasmtime::Result<()> {
        let mut rest = self.fill(address, pieces.iter().map(|piece| piece.len()).sum())?;
        for piece in pieces {
            let (here, after) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = after;
        }
        Ok(())
    }

    /// The bytes of a range, to be filled.
    pub(super) fn fill(&mut self, address: u32, length: usize) -> wasmtime::Result<&mut [u8]> {
        let start = address as usize;
        let range = start..start.saturating_add(length);
        if self.bytes.get(range.clone()).is_none() {
            return Err(self.bad(address, length, "that is outside its memory"));
        }
        Ok(&mut self.bytes[range])
    }

    fn bad(&self, address: u32, length: usize, problem: &'static str) -> wasmtime::Error {
        BadRange { function: self.function, address, length, problem }.into()
    }
}
