//! A WASI command: the script comes on standard input. And what WASI is to guests of waPC.

use super::guest::{CONTENTS, Guest, Import, MESSAGE, Phrase, place_of, words};
use super::script::Part::{Any, Contents, ContentsLength, Length, Number, Word};
use super::wapc::{ANSWERS, NAMES};

const WASI: &str = "wasi_snapshot_preview1";
/// The modules of the function by which commands call their host.
const HOSTS: [&str; 2] = ["host", "kubewarden:javy/host"];
/// Where a command has the buffer that it reads its script by, and how much it read.
const BUFFER: u32 = 64;
const READ: u32 = 80;

/// All functions of WASI that there are; `proc_exit` alone has no result.
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

/// What a guest does with the structures of WASI, which it finds behind its other words.
pub fn phrases(guest: &Guest) -> Vec<Phrase> {
    let function = |name| guest.function(WASI, name);
    let of = |name, parts: &[_]| Phrase { function: function(name), parts: parts.to_vec() };
    let buffers = guest.words.len()..guest.words.len() + 4;
    vec![
        of("fd_write", &[Any, Contents, Any, Any]),
        of("fd_write", &[Number(1), Word(buffers.clone()), Number(1), Any]),
        of("fd_write", &[Number(2), Word(buffers.clone()), Any, Any]),
        of("fd_read", &[Number(0), Contents, Any, Any]),
        of("fd_read", &[Number(0), Word(buffers), Any, Any]),
        of("poll_oneoff", &[Contents, Any, Any, Any]),
        of("random_get", &[Contents, ContentsLength]),
    ]
}

pub fn guest() -> Guest {
    let hosts = HOSTS.map(|module| Import { module, name: "call", parameters: "iiiiiiii", has_result: true });
    let mut guest = Guest {
        imports: imports().chain(hosts).collect(),
        own: Vec::new(),
        fields: String::new(),
        words: words(NAMES).into_iter().chain(words(ANSWERS)).collect(),
        phrases: Vec::new(),
    };
    let read = guest.function(WASI, "fd_read");
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
    let name = || [Word(names.clone()), Length];
    let of_host = |module, message: [_; 2]| {
        let parts = [name(), name(), name(), message].into_iter().flatten().collect();
        Phrase { function: guest.function(module, "call"), parts }
    };
    let asking =
        HOSTS.into_iter().flat_map(|host| [of_host(host, [Any, Any]), of_host(host, [Word(answers.clone()), Length])]);
    guest.phrases = asking.chain(phrases(&guest)).collect();
    guest.words.extend(buffers(answers.start));
    guest
}

/// Arrays of buffers: of each of three answers, and of the contents at once and in pieces.
pub fn buffers(answers: usize) -> [Vec<u8>; 4] {
    let buffer = |(address, length): (u32, u32)| [address.to_le_bytes(), length.to_le_bytes()].concat();
    let of_answer = |index: usize| {
        let length = ANSWERS.get(index).map_or(0, |answer| answer.len());
        buffer((place_of(answers + index), u32::try_from(length).unwrap_or_default()))
    };
    let pieces = [(CONTENTS, 3), (CONTENTS + 3, 64), (16, 0), (u32::MAX, 1)];
    [of_answer(0), of_answer(1), of_answer(2), pieces.into_iter().flat_map(buffer).collect()]
}
