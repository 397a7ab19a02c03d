//! waPC modules written as text, one misbehaviour each.

use serde_json::{Value, json};

/// Where the guest's answers lie in its memory.
const VERDICT: usize = 1024;
const SETTINGS: usize = 64;
/// Where it puts what the host tells it.
const REPLY: usize = 8192;

/// Never ends.
pub const ENDLESS: &str = "(loop $again (br $again)) (i32.const 1)";

/// A module that accepts its settings and answers every review with this.
pub fn answering(verdict: &Value) -> Vec<u8> {
    saying(&verdict.to_string())
}

/// A module that answers every review with this text, whatever it means.
pub fn saying(text: &str) -> Vec<u8> {
    let length = text.len();
    module(
        text,
        r#"{"valid":true}"#,
        &format!("(call $respond (i32.const {VERDICT}) (i32.const {length})) (i32.const 1)"),
    )
}

/// A module that accepts its settings and does this with every review: WebAssembly text that leaves an i32.
pub fn doing(body: &str) -> Vec<u8> {
    module("", r#"{"valid":true}"#, body)
}

/// A module that reports an error in these words.
pub fn failing(words: &str) -> Vec<u8> {
    let body = format!("(call $fail (i32.const {VERDICT}) (i32.const {})) (i32.const 0)", words.len());
    module(words, r#"{"valid":true}"#, &body)
}

/// A module that refuses its settings with these words.
pub fn refusing_settings(words: &str) -> Vec<u8> {
    let answer = json!({"valid": false, "message": words}).to_string();
    module("", &answer, "unreachable")
}

/// A module that asks Kubernetes this with every review, accepts where that is in the reply, and else denies with these words.
pub fn asking(operation: &str, request: &Value, wanted: &str, words: &str) -> Vec<u8> {
    let accepted = json!({"accepted": true}).to_string();
    let denied = json!({"accepted": false, "message": words}).to_string();
    let request = request.to_string();
    let texts = [&accepted, &denied, "kubewarden", "kubernetes", operation, &request, wanted];
    let mut end = VERDICT;
    let [accepted, denied, binding, namespace, operation, request, sought] = texts.map(|text| {
        let place = end;
        end += text.len();
        (place, text.len())
    });
    let bytes = |(place, length): (usize, usize)| format!("(i32.const {place}) (i32.const {length})");
    let [accepted, denied] = [accepted, denied].map(bytes);
    let asked = [binding, namespace, operation, request].map(bytes).join(" ");
    let (place, length) = sought;
    let body = format!(
        "(local $at i32) (local $same i32)
        (if (call $ask {asked})
            (then
                (call $read (i32.const {REPLY}))
                (local.set $at (i32.const {REPLY}))
                (loop $search
                    (local.set $same (i32.const 0))
                    (block $differs
                        (loop $compare
                            (br_if $differs (i32.ne
                                (i32.load8_u (i32.add (local.get $at) (local.get $same)))
                                (i32.load8_u (i32.add (i32.const {place}) (local.get $same)))))
                            (local.set $same (i32.add (local.get $same) (i32.const 1)))
                            (br_if $compare (i32.lt_u (local.get $same) (i32.const {length}))))
                        (call $respond {accepted})
                        (return (i32.const 1)))
                    (local.set $at (i32.add (local.get $at) (i32.const 1)))
                    (br_if $search (i32.lt_u
                        (local.get $at)
                        (i32.add (i32.const {REPLY}) (call $reply_length)))))))
        (call $respond {denied})
        (i32.const 1)"
    );
    module(&texts.concat(), r#"{"valid":true}"#, &body)
}

fn module(verdict: &str, settings: &str, body: &str) -> Vec<u8> {
    let escaped = |text: &str| {
        text.bytes().flat_map(|byte| format!("\\{byte:02x}").into_bytes()).map(char::from).collect::<String>()
    };
    let (verdict, settings, settings_length) = (escaped(verdict), escaped(settings), settings.len());
    // The operation `validate_settings` has 17 letters, `validate` has 8.
    wat::parse_str(format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (import "wapc" "__guest_error" (func $fail (param i32 i32)))
            (import "wapc" "__console_log" (func $log (param i32 i32)))
            (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "wapc" "__host_response" (func $read (param i32)))
            (import "wapc" "__host_response_len" (func $reply_length (result i32)))
            (memory (export "memory") 2)
            (table $table 1 funcref)
            (data (i32.const {VERDICT}) "{verdict}")
            (data (i32.const {SETTINGS}) "{settings}")
            (func $recurse (param i64 i64 i64 i64) (result i64)
                (call $recurse (local.get 0) (local.get 1) (local.get 2) (local.get 3)))
            (func $validate (result i32) {body})
            (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
                (if (i32.eq (local.get $operation_length) (i32.const 17))
                    (then
                        (call $respond (i32.const {SETTINGS}) (i32.const {settings_length}))
                        (return (i32.const 1))))
                (call $validate)))"#
    ))
    .unwrap()
}
