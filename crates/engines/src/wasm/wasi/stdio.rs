//! Standard input, output and error. A guest has no other file descriptors. The standard output of a command is its answer; all
//! other output goes to the log.

use wasmtime::{Caller, Linker};

use super::preview1::{Errno, WASI, errno};
use super::process::{ERROR_LIMIT, PIPE_LIMIT};
use crate::wasm::guest_memory::{self, GuestMemory};
use crate::wasm::log;
use crate::wasm::state::State;

/// The maximum number of buffers of a read or write, as in Linux (`IOV_MAX`).
const MAX_BUFFERS: u32 = 1024;
/// The file type of a terminal in WASI. Guests flush a terminal at each line and do not seek in it.
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
    if count > MAX_BUFFERS {
        return Ok(errno::INVAL);
    }
    let (mut memory, state) = guest_memory::of(&mut caller, "fd_write")?;
    let is_log_enabled = log::is_enabled(state);
    let process = &mut state.process;
    let is_command = process.stdout.is_some();
    let (mut total, mut line) = (0_u32, Vec::new());
    for [address, length] in read_buffers(&memory, buffers, count)? {
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
        if is_log_enabled {
            line.extend_from_slice(&text[..text.len().min(log::LINE_LIMIT - line.len())]);
        }
    }
    // The answer of a command does not belong in the log.
    let is_answer = is_command && fd == 1;
    if !line.is_empty() && !is_answer {
        log::write_line(state, if fd == 1 { "stdout" } else { "stderr" }, &String::from_utf8_lossy(&line));
    }
    memory.write(written, &total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn fd_read(mut caller: Caller<'_, State>, fd: u32, buffers: u32, count: u32, read: u32) -> wasmtime::Result<Errno> {
    if fd != 0 {
        return Ok(errno::BADF);
    }
    if count > MAX_BUFFERS {
        return Ok(errno::INVAL);
    }
    let (mut memory, state) = guest_memory::of(&mut caller, "fd_read")?;
    let process = &mut state.process;
    let mut total = 0_u32;
    for [address, length] in read_buffers(&memory, buffers, count)? {
        let rest = &process.stdin[process.stdin_offset..];
        let part = &rest[..rest.len().min(length as usize)];
        memory.write(address, part)?;
        process.stdin_offset += part.len();
        total = total.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
    }
    memory.write(read, &total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

/// Reads the addresses and lengths of the buffers of a call.
fn read_buffers(memory: &GuestMemory<'_>, buffers: u32, count: u32) -> wasmtime::Result<Vec<[u32; 2]>> {
    let raw = memory.read(buffers, count * 8, usize::MAX)?;
    Ok(raw.as_chunks::<4>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes)).collect())
}

fn fd_fdstat_get(mut caller: Caller<'_, State>, fd: u32, result: u32) -> wasmtime::Result<Errno> {
    if fd > 2 {
        return Ok(errno::BADF);
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "fd_fdstat_get")?;
    // The structure has the file type, flags and two sets of rights. Language runtimes use only the file type.
    let mut status = [0; 24];
    status[0] = CHARACTER_DEVICE;
    memory.write(result, &status)?;
    Ok(errno::SUCCESS)
}
