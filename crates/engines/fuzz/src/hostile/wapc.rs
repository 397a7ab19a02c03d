//! A waPC guest. Its settings are the script.

use super::guest::{CallTemplate, Guest, Import, MESSAGE, text_bytes};
use super::script::ArgumentKind::{Any, Contents, ContentsLength, TextAddress, TextLength};
use super::wasi;

const WAPC: &str = "wapc";
/// The address of the operation.
const OPERATION: u32 = 512;

/// The names of bindings, namespaces and operations for host calls.
pub const NAMES: &[&str] = &["kubewarden", "tracing", "log", "echo", "fail", "long", "hang", "oci", ""];
/// The answers and log messages of guests.
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
        own_functions: Vec::new(),
        fields,
        texts: text_bytes(NAMES).into_iter().chain(text_bytes(ANSWERS)).collect(),
        templates: Vec::new(),
    };
    let (names, answers) = (0..NAMES.len(), NAMES.len()..NAMES.len() + ANSWERS.len());
    let name = || [TextAddress(names.clone()), TextLength];
    let host_call = guest.function_index(WAPC, "__host_call");
    let host_call_with = |message: [_; 2]| {
        let arguments = [name(), name(), name(), message].into_iter().flatten().collect();
        CallTemplate { function: host_call, arguments }
    };
    let respond = |arguments| CallTemplate { function: guest.function_index(WAPC, "__guest_response"), arguments };
    let templates = [
        host_call_with([Any, Any]),
        host_call_with([TextAddress(answers.clone()), TextLength]),
        // The first three names together are the host capability for logging.
        CallTemplate {
            function: host_call,
            arguments: [
                TextAddress(0..1),
                TextLength,
                TextAddress(1..2),
                TextLength,
                TextAddress(2..3),
                TextLength,
                Contents,
                ContentsLength,
            ]
            .into(),
        },
        respond(vec![TextAddress(answers), TextLength]),
        respond(vec![Contents, ContentsLength]),
        CallTemplate {
            function: guest.function_index(WAPC, "__guest_error"),
            arguments: vec![Contents, ContentsLength],
        },
    ];
    guest.templates = templates.into_iter().chain(wasi::templates(&guest)).collect();
    guest.texts.extend(wasi::buffers(NAMES.len()));
    guest
}
