//! WASI preview 1 for sandboxed guests: clocks, random numbers and a log, but no environment, no files and no network
//! (docs/adr/0003-wasi-preview1-subset.md). Commands also have arguments, standard input and standard output.

mod clock;
mod command;
mod denied;
mod poll;
mod preview1;
mod process;
mod random;
mod stdio;

use wasmtime::{Caller, Linker};

use super::guest_memory;
use super::outcome::Exit;
use super::state::State;
use clock::is_readable_clock;
use preview1::{Errno, WASI, errno};

pub(super) use clock::Clocks;
pub(super) use command::{Exports, START, call, define_host};
pub(super) use process::Process;
pub(super) use random::Random;

/// The maximum number of random bytes of a call. Filling the whole memory of a guest would block the thread.
const RANDOM_LIMIT: u32 = 64 << 10;

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(WASI, "args_get", args_get)?;
    linker.func_wrap(WASI, "args_sizes_get", args_sizes_get)?;
    linker.func_wrap(WASI, "environ_get", |_: u32, _: u32| errno::SUCCESS)?;
    linker.func_wrap(WASI, "environ_sizes_get", environ_sizes_get)?;
    linker.func_wrap(WASI, "clock_res_get", clock_res_get)?;
    linker.func_wrap(WASI, "clock_time_get", clock_time_get)?;
    linker.func_wrap(WASI, "random_get", random_get)?;
    // The ticker makes guests yield at each tick anyway.
    linker.func_wrap(WASI, "sched_yield", || errno::SUCCESS)?;
    linker.func_wrap(WASI, "proc_exit", |code: i32| -> wasmtime::Result<()> { Err(Exit(code).into()) })?;
    poll::define(linker)?;
    stdio::define(linker)?;
    denied::define(linker)
}

/// Writes the arguments, each with a zero byte at its end, to `address`, and the address of each argument to `pointers`.
fn args_get(mut caller: Caller<'_, State>, pointers: u32, mut address: u32) -> wasmtime::Result<Errno> {
    let (mut memory, state) = guest_memory::of(&mut caller, "args_get")?;
    let mut addresses = Vec::new();
    for argument in &state.process.arguments {
        addresses.extend_from_slice(&address.to_le_bytes());
        memory.write_pieces(address, &[argument.as_bytes(), &[0]])?;
        address = address.saturating_add(length_with_zero(argument));
    }
    memory.write(pointers, &addresses)?;
    Ok(errno::SUCCESS)
}

/// Writes the number of arguments and their total length in bytes.
fn args_sizes_get(mut caller: Caller<'_, State>, count: u32, size: u32) -> wasmtime::Result<Errno> {
    let (mut memory, state) = guest_memory::of(&mut caller, "args_sizes_get")?;
    let arguments = &state.process.arguments;
    let number = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
    let bytes: u32 = arguments.iter().map(|argument| length_with_zero(argument)).sum();
    memory.write(count, &number.to_le_bytes())?;
    memory.write(size, &bytes.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

/// Returns the length of an argument with the zero byte at its end. The saturation is never reached: arguments are short.
fn length_with_zero(argument: &str) -> u32 {
    u32::try_from(argument.len() + 1).unwrap_or(u32::MAX)
}

/// Writes that the environment has no variables and no bytes.
fn environ_sizes_get(mut caller: Caller<'_, State>, count: u32, size: u32) -> wasmtime::Result<Errno> {
    let (mut memory, _) = guest_memory::of(&mut caller, "environ_sizes_get")?;
    memory.write(count, &0_u32.to_le_bytes())?;
    memory.write(size, &0_u32.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn clock_res_get(mut caller: Caller<'_, State>, clock: u32, result: u32) -> wasmtime::Result<Errno> {
    if !is_readable_clock(clock) {
        return Ok(errno::INVAL);
    }
    let (mut memory, _) = guest_memory::of(&mut caller, "clock_res_get")?;
    memory.write(result, &1_u64.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn clock_time_get(mut caller: Caller<'_, State>, clock: u32, _precision: u64, result: u32) -> wasmtime::Result<Errno> {
    let (mut memory, state) = guest_memory::of(&mut caller, "clock_time_get")?;
    let Some(now) = state.clocks.read(clock) else { return Ok(errno::INVAL) };
    memory.write(result, &now.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn random_get(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<Errno> {
    let (mut memory, state) = guest_memory::of(&mut caller, "random_get")?;
    let bytes = memory.slice_mut(address, length as usize)?;
    if length > RANDOM_LIMIT {
        return Ok(errno::INVAL);
    }
    let filled = state.random.fill(bytes);
    filled.map_err(|error| wasmtime::Error::msg(format!("cannot get random numbers: {error}")))?;
    Ok(errno::SUCCESS)
}
