//! File descriptors 0, 1 and 2, the only ones: what the host has to say, and a log to write to; the answer of a command
//! is what it writes to the second.

use wasmtime::{Caller, Linker};

use super::preview1::{Errno, WASI, errno};
use super::process::{ERROR_LIMIT, PIPE_LIMIT};
use crate::wasm::guest_memory::{self, GuestMemory};
use crate::wasm::log;
use crate::wasm::state::State;

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
    let process = &mut state.process;
    let is_command = process.stdout.is_some();
    let (mut total, mut line) = (0_u32, Vec::new());
    for [address, length] in buffers_of(&memory, buffers, count)? {
        let text = memory.read(address, length, usize::MAX)?;
        total = total.saturating_add(length);
        match (&mut process.stdout, fd) {
            (Some(stdout), 1) => {
                if stdout.len() + text.len() > PIPE_LIMIT {
                    return Err(wasmtime::Error::msg("the policy's answer is too long"));
                }
                stdout.extend_from_slice(text);
            }
            (Some(_), _) => {
                let left = ERROR_LIMIT.saturating_sub(process.stderr.len());
                process.stderr.extend_from_slice(&text[..text.len().min(left)]);
            }
            (None, _) => {}
        }
        if is_wanted {
            line.extend_from_slice(&text[..text.len().min(log::LINE - line.len())]);
        }
    }
    // The answer of a command is none of the log's business.
    let is_answer = is_command && fd == 1;
    if !line.is_empty() && !is_answer {
        log::line(state, if fd == 1 { "stdout" } else { "stderr" }, &String::from_utf8_lossy(&line));
    }
    memory.write(written, &total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn fd_read(mut caller: Caller<'_, State>, fd: u32, buffers: u32, count: u32, read: u32) -> wasmtime::Result<Errno> {
    if fd != 0 {
        return Ok(errno::BADF);
    }
    if count > BUFFERS {
        return Ok(errno::INVAL);
    }
    let (mut memory, state) = guest_memory::of(&mut caller, "fd_read")?;
    let process = &mut state.process;
    let mut total = 0_u32;
    for [address, length] in buffers_of(&memory, buffers, count)? {
        let rest = &process.stdin[process.read..];
        let part = &rest[..rest.len().min(length as usize)];
        memory.write(address, part)?;
        process.read += part.len();
        total = total.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
    }
    memory.write(read, &total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

/// Addresses and lengths of the buffers that a call gathers from or scatters to.
fn buffers_of(memory: &GuestMemory<'_>, buffers: u32, count: u32) -> wasmtime::Result<Vec<[u32; 2]>> {
    let raw = memory.read(buffers, count * 8, usize::MAX)?;
    Ok(raw.as_chunks::<4>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes)).collect())
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
