//! A WASI command, whose script comes on standard input. waPC guests use the functions of WASI too.

use super::guest::{CONTENTS, CallTemplate, Guest, Import, MESSAGE, text_address, text_bytes};
use super::script::ArgumentKind::{Any, Contents, ContentsLength, Number, TextAddress, TextLength};
use super::wapc::{ANSWERS, NAMES};

const WASI: &str = "wasi_snapshot_preview1";
/// The modules that have the function by which commands call their host.
const HOSTS: [&str; 2] = ["host", "kubewarden:javy/host"];
/// The address of the buffer descriptor for reading the script.
const BUFFER: u32 = 64;
/// The address of the number of bytes that were read.
const READ: u32 = 80;

/// Returns the imports of all functions of WASI preview 1. Only `proc_exit` has no result.
pub fn imports() -> impl Iterator<Item = Import> {
    let functions = [
        ("args_get", "ii"),
        ("args_sizes_get", "ii"),
        ("environ_get", "ii"),
        ("environ_sizes_get", "ii"),
        ("clock_res_get", "ii"),
        ("clock_time_get", "ili"),
        ("random_get", "ii"),
        ("sched_yield", ""),
        ("proc_exit", "i"),
        ("poll_oneoff", "iiii"),
        ("fd_write", "iiii"),
        ("fd_read", "iiii"),
        ("fd_close", "i"),
        ("fd_fdstat_get", "ii"),
        ("fd_fdstat_set_flags", "ii"),
        ("fd_seek", "ilii"),
        ("fd_advise", "illi"),
        ("fd_allocate", "ill"),
        ("fd_datasync", "i"),
        ("fd_fdstat_set_rights", "ill"),
        ("fd_filestat_get", "ii"),
        ("fd_filestat_set_size", "il"),
        ("fd_filestat_set_times", "illi"),
        ("fd_pread", "iiili"),
        ("fd_prestat_get", "ii"),
        ("fd_prestat_dir_name", "iii"),
        ("fd_pwrite", "iiili"),
        ("fd_readdir", "iiili"),
        ("fd_renumber", "ii"),
        ("fd_sync", "i"),
        ("fd_tell", "ii"),
        ("path_create_directory", "iii"),
        ("path_filestat_get", "iiiii"),
        ("path_filestat_set_times", "iiiilli"),
        ("path_link", "iiiiiii"),
        ("path_open", "iiiiillii"),
        ("path_readlink", "iiiiii"),
        ("path_remove_directory", "iii"),
        ("path_rename", "iiiiii"),
        ("path_symlink", "iiiii"),
        ("path_unlink_file", "iii"),
        ("proc_raise", "i"),
        ("sock_accept", "iii"),
        ("sock_recv", "iiiiii"),
        ("sock_send", "iiiii"),
        ("sock_shutdown", "ii"),
    ];
    functions.into_iter().map(|(name, parameters)| Import {
        module: WASI,
        name,
        parameters,
        has_result: name != "proc_exit",
    })
}

/// Returns meaningful calls of the functions of WASI. Their buffers are the four texts after the guest's other texts.
pub fn templates(guest: &Guest) -> Vec<CallTemplate> {
    let template = |name, arguments: &[_]| CallTemplate {
        function: guest.function_index(WASI, name),
        arguments: arguments.to_vec(),
    };
    let buffers = guest.texts.len()..guest.texts.len() + 4;
    vec![
        template("fd_write", &[Any, Contents, Any, Any]),
        template("fd_write", &[Number(1), TextAddress(buffers.clone()), Number(1), Any]),
        template("fd_write", &[Number(2), TextAddress(buffers.clone()), Any, Any]),
        template("fd_read", &[Number(0), Contents, Any, Any]),
        template("fd_read", &[Number(0), TextAddress(buffers), Any, Any]),
        template("poll_oneoff", &[Contents, Any, Any, Any]),
        template("random_get", &[Contents, ContentsLength]),
    ]
}

pub fn guest() -> Guest {
    let hosts = HOSTS.map(|module| Import { module, name: "call", parameters: "iiiiiiii", has_result: true });
    let mut guest = Guest {
        imports: imports().chain(hosts).collect(),
        own_functions: Vec::new(),
        fields: String::new(),
        texts: text_bytes(NAMES).into_iter().chain(text_bytes(ANSWERS)).collect(),
        templates: Vec::new(),
    };
    let read = guest.function_index(WASI, "fd_read");
    guest.fields = format!(
        r#"(memory (export "memory") 4)
           (func (export "_start")
             (i32.store (i32.const {BUFFER}) (i32.const {MESSAGE}))
             (i32.store offset=4 (i32.const {BUFFER}) (i32.const {MESSAGE}))
             (drop (call $f{read} (i32.const 0) (i32.const {BUFFER}) (i32.const 1) (i32.const {READ})))
             (call $load (i32.const {MESSAGE}) (i32.add (i32.const {MESSAGE}) (i32.load (i32.const {READ}))))
             (call $run))"#
    );
    let (names, answers) = (0..NAMES.len(), NAMES.len()..NAMES.len() + ANSWERS.len());
    let name = || [TextAddress(names.clone()), TextLength];
    let host_call = |module, message: [_; 2]| {
        let arguments = [name(), name(), name(), message].into_iter().flatten().collect();
        CallTemplate { function: guest.function_index(module, "call"), arguments }
    };
    let host_calls = HOSTS.into_iter().flat_map(|module| {
        [host_call(module, [Any, Any]), host_call(module, [TextAddress(answers.clone()), TextLength])]
    });
    guest.templates = host_calls.chain(templates(&guest)).collect();
    guest.texts.extend(buffers(answers.start));
    guest
}

/// Returns four arrays of buffer descriptors: one for each of the first three answers, and one for pieces of the contents.
/// `answers` is the index of the first answer among the texts.
pub fn buffers(answers: usize) -> [Vec<u8>; 4] {
    let buffer = |(address, length): (u32, u32)| [address.to_le_bytes(), length.to_le_bytes()].concat();
    let of_answer = |index: usize| {
        let length = ANSWERS.get(index).map_or(0, |answer| answer.len());
        buffer((text_address(answers + index), u32::try_from(length).unwrap_or_default()))
    };
    let pieces = [(CONTENTS, 3), (CONTENTS + 3, 64), (16, 0), (u32::MAX, 1)];
    [of_answer(0), of_answer(1), of_answer(2), pieces.into_iter().flat_map(buffer).collect()]
}
