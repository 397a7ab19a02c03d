//! waPC modules in the WebAssembly text format, for example modules that misbehave, and a WASI command with a host call.

use serde_json::{Value, json};

/// The address of the verdict in the memory of the guest.
const VERDICT: usize = 1024;
/// The address of the answer about the settings.
const SETTINGS: usize = 64;
/// The address to which the guest writes the reply of the host.
const REPLY: usize = 8192;

/// The body of a function that never ends.
pub const ENDLESS: &str = "(loop $again (br $again)) (i32.const 1)";

/// Returns a module that accepts its settings and answers every review with this verdict.
pub fn answering(verdict: &Value) -> Vec<u8> {
    answering_text(&verdict.to_string())
}

/// Returns a module that accepts its settings and answers every review with this text, which need not be a verdict.
pub fn answering_text(text: &str) -> Vec<u8> {
    let length = text.len();
    module(
        text,
        r#"{"valid":true}"#,
        &format!("(call $respond (i32.const {VERDICT}) (i32.const {length})) (i32.const 1)"),
    )
}

/// Returns a module that accepts its settings and executes this body for every review. The body is WebAssembly text that leaves
/// an i32.
pub fn executing(body: &str) -> Vec<u8> {
    module("", r#"{"valid":true}"#, body)
}

/// Returns a module that reports an error with this text.
pub fn failing(words: &str) -> Vec<u8> {
    let body = format!("(call $fail (i32.const {VERDICT}) (i32.const {})) (i32.const 0)", words.len());
    module(words, r#"{"valid":true}"#, &body)
}

/// Returns a module that refuses its settings with this message.
pub fn refusing_settings(words: &str) -> Vec<u8> {
    let answer = json!({"valid": false, "message": words}).to_string();
    module("", &answer, "unreachable")
}

/// Returns a module that calls its host for every review. The module accepts the review if the reply contains `wanted`, and
/// denies it with `words` otherwise.
pub fn calling_host(call: &HostCall<'_>, wanted: &str, words: &str) -> Vec<u8> {
    let accepted = json!({"accepted": true}).to_string();
    let denied = json!({"accepted": false, "message": words}).to_string();
    let (texts, [accepted, denied, sought]) = call.texts_with([&accepted, &denied, wanted]);
    let [accepted, denied] = [accepted, denied].map(constants);
    let asked = call.arguments();
    let found = format!("(call $respond {accepted}) (return (i32.const 1))");
    let search = searching(&format!("(i32.add (i32.const {REPLY}) (call $reply_length))"), sought, &found);
    let body = format!(
        "(local $at i32) (local $same i32)
        (if (call $ask {asked})
            (then (call $read (i32.const {REPLY})) {search}))
        (call $respond {denied})
        (i32.const 1)"
    );
    module(&texts, r#"{"valid":true}"#, &body)
}

/// Returns a WASI command that does the same as [`calling_host`]. It accepts all settings.
pub fn command_calling_host(call: &HostCall<'_>, wanted: &str, words: &str) -> Vec<u8> {
    let accepted = json!({"accepted": true, "valid": true}).to_string();
    let denied = json!({"accepted": false, "valid": true, "message": words}).to_string();
    let (texts, [accepted, denied, sought]) = call.texts_with([&accepted, &denied, wanted]);
    let [accepted, denied] = [accepted, denied].map(constants);
    let (texts, asked) = (escaped(&texts), call.arguments());
    let search = searching("(local.get $end)", sought, &format!("(call $say {accepted}) (return)"));
    wat::parse_str(format!(
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (import "host" "call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 4)
            (data (i32.const {VERDICT}) "{texts}")
            (func $say (param $at i32) (param $length i32)
                (i32.store (i32.const 0) (local.get $at))
                (i32.store (i32.const 4) (local.get $length))
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
            (func (export "_start") (local $end i32) (local $at i32) (local $same i32)
                (drop (call $ask {asked}))
                (local.set $end (i32.const {REPLY}))
                (loop $more
                    (i32.store (i32.const 0) (local.get $end))
                    (i32.store (i32.const 4) (i32.const 4096))
                    (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
                    (local.set $end (i32.add (local.get $end) (i32.load (i32.const 8))))
                    (br_if $more (i32.load (i32.const 8))))
                {search}
                (call $say {denied})))"#
    ))
    .unwrap()
}

/// A host call of a policy.
pub struct HostCall<'a> {
    /// The namespace of the host capability, such as `kubernetes`.
    pub namespace: &'a str,
    pub operation: &'a str,
    pub request: &'a Value,
}

impl HostCall<'_> {
    fn texts(&self) -> [String; 4] {
        ["kubewarden".into(), self.namespace.into(), self.operation.into(), self.request.to_string()]
    }

    /// Returns the addresses and lengths of the texts of the call, which are its arguments.
    fn arguments(&self) -> String {
        placed(VERDICT, &self.texts()).map(constants).join(" ")
    }

    /// Returns the texts of the call followed by `others`, and the addresses and lengths of `others`.
    fn texts_with<const N: usize>(&self, others: [&str; N]) -> (String, [(usize, usize); N]) {
        let own = self.texts().concat();
        let addresses = placed(VERDICT + own.len(), &others);
        (own + &others.concat(), addresses)
    }
}

/// Returns the addresses and lengths of consecutive texts.
fn placed<const N: usize>(mut start: usize, texts: &[impl AsRef<str>; N]) -> [(usize, usize); N] {
    texts.each_ref().map(|text| {
        let (address, length) = (start, text.as_ref().len());
        start += length;
        (address, length)
    })
}

fn constants((address, length): (usize, usize)) -> String {
    format!("(i32.const {address}) (i32.const {length})")
}

/// Returns code that searches a text from [`REPLY`] to `end`, and executes `found` if it is there. The code uses the locals `$at`
/// and `$same`.
fn searching(end: &str, (address, length): (usize, usize), found: &str) -> String {
    format!(
        "(local.set $at (i32.const {REPLY}))
        (loop $search
            (local.set $same (i32.const 0))
            (block $differs
                (loop $compare
                    (br_if $differs (i32.ne
                        (i32.load8_u (i32.add (local.get $at) (local.get $same)))
                        (i32.load8_u (i32.add (i32.const {address}) (local.get $same)))))
                    (local.set $same (i32.add (local.get $same) (i32.const 1)))
                    (br_if $compare (i32.lt_u (local.get $same) (i32.const {length}))))
                {found})
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $search (i32.lt_u (local.get $at) {end})))"
    )
}

fn escaped(text: &str) -> String {
    text.bytes().flat_map(|byte| format!("\\{byte:02x}").into_bytes()).map(char::from).collect()
}

fn module(verdict: &str, settings: &str, body: &str) -> Vec<u8> {
    let (verdict, settings, settings_length) = (escaped(verdict), escaped(settings), settings.len());
    // The length distinguishes the two operations: `validate_settings` has 17 letters, `validate` has 8.
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

/// Returns a module of 40 KB for which the compiler needs gigabytes, because each of many nested loops assigns every local.
pub fn bomb() -> Vec<u8> {
    let (locals, loops) = (2000, 1000);
    let declared = "i32 ".repeat(locals);
    let uses = (0..locals).map(|local| format!("(local.set {local} (i32.add (local.get {local}) (i32.const 1)))"));
    let uses = uses.collect::<Vec<_>>().concat();
    let nested = format!("{}{uses}{}", "(loop ".repeat(loops), "(br_if 0 (local.get 0)))".repeat(loops));
    wat::parse_str(format!(
        r#"(module (memory (export "memory") 1)
            (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0))
            (func (local {declared}) {nested}))"#
    ))
    .unwrap()
}
