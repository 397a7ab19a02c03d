//! A waPC guest: its settings are the script.

use super::guest::{Guest, Import, MESSAGE, Phrase, words};
use super::script::Part::{Any, Contents, ContentsLength, Length, Word};
use super::wasi;

const WAPC: &str = "wapc";
/// Where the operation goes.
const OPERATION: u32 = 512;

/// What hosts are asked by.
pub const NAMES: &[&str] = &["kubewarden", "tracing", "log", "echo", "fail", "long", "hang", "oci", ""];
/// What guests answer, and say besides.
pub const ANSWERS: &[&str] = &[
    r#"{"accepted":true}"#,
    r#"{"accepted":false,"message":"no","code":418,"warnings":["w"],"audit_annotations":{"a":"b"}}"#,
    r#"{"accepted":true,"mutated_object":{"list":[2],"new":{}}}"#,
    r#"{"valid":true}"#,
    r#"{"valid":false,"message":"no"}"#,
    r#"{"level":"info","message":"hello"}"#,
];

pub fn guest() -> Guest {
    let imports = [
        ("__guest_request", "ii", false),
        ("__guest_response", "ii", false),
        ("__guest_error", "ii", false),
        ("__host_call", "iiiiiiii", true),
        ("__host_response", "i", false),
        ("__host_response_len", "", true),
        ("__host_error", "i", false),
        ("__host_error_len", "", true),
        ("__console_log", "ii", false),
    ];
    let imports = imports.map(|(name, parameters, has_result)| Import { module: WAPC, name, parameters, has_result });
    let fields = format!(
        r#"(memory (export "memory") 4)
           (func (export "__guest_call") (param i32) (param $length i32) (result i32)
             (call $f0 (i32.const {OPERATION}) (i32.const {MESSAGE}))
             (call $load (i32.const {MESSAGE}) (i32.add (i32.const {MESSAGE}) (local.get $length)))
             (call $run)
             (i32.const 1))"#
    );
    let mut guest = Guest {
        imports: imports.into_iter().chain(wasi::imports()).collect(),
        own: Vec::new(),
        fields,
        words: words(NAMES).into_iter().chain(words(ANSWERS)).collect(),
        phrases: Vec::new(),
    };
    let (names, answers) = (0..NAMES.len(), NAMES.len()..NAMES.len() + ANSWERS.len());
    let name = || [Word(names.clone()), Length];
    let host_call = guest.function(WAPC, "__host_call");
    let of_host = |message: [_; 2]| {
        let parts = [name(), name(), name(), message].into_iter().flatten().collect();
        Phrase { function: host_call, parts }
    };
    let respond = |parts| Phrase { function: guest.function(WAPC, "__guest_response"), parts };
    let phrases = [
        of_host([Any, Any]),
        of_host([Word(answers.clone()), Length]),
        // To its log, for which there is a place of its own.
        Phrase {
            function: host_call,
            parts: [Word(0..1), Length, Word(1..2), Length, Word(2..3), Length, Contents, ContentsLength].into(),
        },
        respond(vec![Word(answers), Length]),
        respond(vec![Contents, ContentsLength]),
        Phrase { function: guest.function(WAPC, "__guest_error"), parts: vec![Contents, ContentsLength] },
    ];
    guest.phrases = phrases.into_iter().chain(wasi::phrases(&guest)).collect();
    guest.words.extend(wasi::buffers(NAMES.len()));
    guest
}
