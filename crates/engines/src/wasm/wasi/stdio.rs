//! File descriptors 0, 1 and 2, the only ones: nothing to read, and a log to write to.

use wasmtime::{Caller, Linker};

use super::{Errno, WASI, errno};
use crate::wasm::state::State;
use crate::wasm::{guest_memory, log};

/// The most buffers that one write may gather, as Linux has it (`IOV_MAX`).
const BUFFERS: u32 = 1024;
/// WASI's file type of a terminal: a guest flushes at each line and does not seek.
const CHARACTER_DEVICE: u8 = 2;

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(WASI, "fd_write", fd_write)?;
    linker.func_wrap(WASI, "fd_read", fd_read)?;
    linker.func_wrap(WASI, "fd_close", |fd: u32| if fd <= 2 { errno::SUCCESS } else { errno::BADF })?;
    linker.func_wrap(WASI, "fd_fdstat_get", fd_fdstat_get)?;
    linker.func_wrap(
        WASI,
        "fd_fdstat_set_flags",
        |fd: u32, _: u32| if fd <= 2 { errno::SUCCESS } else { errno::BADF },
    )?;
    linker.func_wrap(
        WASI,
        "fd_seek",
        |fd: u32, _: i64, _: u32, _: u32| if fd <= 2 { errno::SPIPE } else { errno::BADF },
    )?;
    Ok(())
}

fn fd_write(mut caller: Caller<'_, State>, fd: u32, buffers: u32, count: u32, written: u32) -> wasmtime::Result<Errno> {
    if !(1..=2).contains(&fd) {
        return Ok(errno::BADF);
    }
    if count > BUFFERS {
        return Ok(errno::INVAL);
    }
    let (mut memory, state) = guest_memory::of(&mut caller, "fd_write")?;
    let is_wanted = log::is_wanted(state);
    let (mut total, mut line) = (0_u32, Vec::new());
    for buffer in memory.read(buffers, count * 8, usize::MAX)?.as_chunks::<4>().0.as_chunks::<2>().0 {
        let [address, length] = buffer.map(u32::from_le_bytes);
        let text = memory.read(address, length, usize::MAX)?;
        total = total.saturating_add(length);
        if is_wanted {
            line.extend_from_slice(&text[..text.len().min(log::LINE - line.len())]);
        }
    }
    if !line.is_empty() {
        log::line(state, if fd == 1 { "stdout" } else { "stderr" }, &String::from_utf8_lossy(&line));
    }
    memory.write(written, &total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn fd_read(mut caller: Caller<'_, State>, fd: u32, _buffers: u32, _count: u32, read: u32) -> wasmtime::Result<Errno> {
    if fd != 0 {
        return Ok(errno::BADF);
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "fd_read")?;
    memory.write(read, &0_u32.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn fd_fdstat_get(mut caller: Caller<'_, State>, fd: u32, result: u32) -> wasmtime::Result<Errno> {
    if fd > 2 {
        return Ok(errno::BADF);
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "fd_fdstat_get")?;
    // File type, flags and two sets of rights; libraries look at the first only.
    let mut status = [0; 24];
    status[0] = CHARACTER_DEVICE;
    memory.write(result, &status)?;
    Ok(errno::SUCCESS)
}
