//! Access to the memory of a guest. Every address and length comes from the guest and is checked here.

use wasmtime::{Caller, Extern, Memory, StoreContextMut};

use super::state::State;

/// The error of an address range from a guest that is outside the guest's memory or too long.
#[derive(Debug, thiserror::Error)]
#[error("the policy called {function} with {length} bytes at address {address}: {problem}")]
struct BadRange {
    function: &'static str,
    address: u32,
    length: usize,
    problem: &'static str,
}

/// The memory of the calling guest, borrowed for one call of an import.
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
        return Err(wasmtime::Error::msg("the policy module does not export its memory"));
    };
    Ok(at(memory, caller, function))
}

/// Borrows a memory together with the state of its store. `function` is the function of the guest that the host calls.
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
            return Err(self.range_error(address, length, "that is too long"));
        }
        let start = address as usize;
        let range = start.checked_add(length).and_then(|end| self.bytes.get(start..end));
        range.ok_or_else(|| self.range_error(address, length, "that is outside its memory"))
    }

    /// Returns at most `limit` bytes of a text. Replaces invalid UTF-8 and marks a truncated text by an ellipsis.
    pub(super) fn text(&self, address: u32, length: u32, limit: usize) -> wasmtime::Result<String> {
        let whole = self.read(address, length, usize::MAX)?;
        let mut text = String::from_utf8_lossy(&whole[..whole.len().min(limit)]).into_owned();
        if whole.len() > limit {
            text.push('…');
        }
        Ok(text)
    }

    /// Returns the zero-terminated text at the address, without the zero. A text of more than `limit` bytes is an error.
    pub(super) fn c_string(&self, address: u32, limit: usize) -> wasmtime::Result<&[u8]> {
        let rest = self.bytes.get(address as usize..).unwrap_or_default();
        let end = rest.iter().take(limit.saturating_add(1)).position(|byte| *byte == 0);
        let length = rest.len().min(limit);
        end.map(|end| &rest[..end]).ok_or_else(|| self.range_error(address, length, "no zero byte ends the text"))
    }

    /// Returns the beginning of a zero-terminated text, at most `limit` bytes.
    pub(super) fn c_string_prefix(&self, address: u32, limit: usize) -> wasmtime::Result<&[u8]> {
        let rest = self.bytes.get(address as usize..);
        let rest = rest.ok_or_else(|| self.range_error(address, 0, "that is outside its memory"))?;
        let prefix = &rest[..rest.len().min(limit)];
        let end = prefix.iter().position(|byte| *byte == 0);
        Ok(&prefix[..end.unwrap_or(prefix.len())])
    }

    pub(super) fn write(&mut self, address: u32, bytes: &[u8]) -> wasmtime::Result<()> {
        self.write_pieces(address, &[bytes])
    }

    pub(super) fn write_pieces(&mut self, address: u32, pieces: &[&[u8]]) -> wasmtime::Result<()> {
        let mut rest = self.slice_mut(address, pieces.iter().map(|piece| piece.len()).sum())?;
        for piece in pieces {
            let (target, after) = rest.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            rest = after;
        }
        Ok(())
    }

    /// Returns the bytes of a range, for writing.
    pub(super) fn slice_mut(&mut self, address: u32, length: usize) -> wasmtime::Result<&mut [u8]> {
        let start = address as usize;
        let range = start..start.saturating_add(length);
        if self.bytes.get(range.clone()).is_none() {
            return Err(self.range_error(address, length, "that is outside its memory"));
        }
        Ok(&mut self.bytes[range])
    }

    fn range_error(&self, address: u32, length: usize, problem: &'static str) -> wasmtime::Error {
        BadRange { function: self.function, address, length, problem }.into()
    }
}
