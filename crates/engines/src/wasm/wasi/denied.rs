//! The functions of WASI preview 1 that a guest without files and sockets cannot use. The host defines them because language
//! runtimes import them without calling them.

use wasmtime::{FuncType, Linker, Val, ValType};

use super::preview1::{Errno, WASI, errno};
use crate::wasm::state::State;

/// The name, the parameters (`i` for 32 bits, `l` for 64 bits) and the returned error number of each function.
const DENIED: [(&str, &str, Errno); 30] = [
    ("fd_advise", "illi", errno::BADF),
    ("fd_allocate", "ill", errno::BADF),
    ("fd_datasync", "i", errno::BADF),
    ("fd_fdstat_set_rights", "ill", errno::BADF),
    ("fd_filestat_get", "ii", errno::BADF),
    ("fd_filestat_set_size", "il", errno::BADF),
    ("fd_filestat_set_times", "illi", errno::BADF),
    ("fd_pread", "iiili", errno::BADF),
    // This error number ends a runtime's search for preopened directories.
    ("fd_prestat_get", "ii", errno::BADF),
    ("fd_prestat_dir_name", "iii", errno::BADF),
    ("fd_pwrite", "iiili", errno::BADF),
    ("fd_readdir", "iiili", errno::BADF),
    ("fd_renumber", "ii", errno::BADF),
    ("fd_sync", "i", errno::BADF),
    ("fd_tell", "ii", errno::BADF),
    ("path_create_directory", "iii", errno::BADF),
    ("path_filestat_get", "iiiii", errno::BADF),
    ("path_filestat_set_times", "iiiilli", errno::BADF),
    ("path_link", "iiiiiii", errno::BADF),
    ("path_open", "iiiiillii", errno::BADF),
    ("path_readlink", "iiiiii", errno::BADF),
    ("path_remove_directory", "iii", errno::BADF),
    ("path_rename", "iiiiii", errno::BADF),
    ("path_symlink", "iiiii", errno::BADF),
    ("path_unlink_file", "iii", errno::BADF),
    ("proc_raise", "i", errno::NOSYS),
    ("sock_accept", "iii", errno::BADF),
    ("sock_recv", "iiiiii", errno::BADF),
    ("sock_send", "iiiii", errno::BADF),
    ("sock_shutdown", "ii", errno::BADF),
];

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    for (name, parameters, error) in DENIED {
        let parameters = parameters.chars().map(|kind| if kind == 'l' { ValType::I64 } else { ValType::I32 });
        let function = FuncType::new(linker.engine(), parameters, [ValType::I32]);
        linker.func_new(WASI, name, function, move |_, _, results| {
            results.fill(Val::I32(error));
            Ok(())
        })?;
    }
    Ok(())
}
