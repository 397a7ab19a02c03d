//! A guest with the exports of compiled Rego. Its settings are the script. A value is its text, and a script may set the
//! results that the exported functions return to the host.

use super::builtins::BUILTINS;
use super::guest::{CallTemplate, Guest, Import, MESSAGE, argument, escaped, text_address, text_bytes};
use super::script::ArgumentKind::{Contents, Number, TextAddress, TextOrContents};

const ENV: &str = "env";
/// The address of the JSON object that lists the builtins.
const BUILTIN_NAMES: u32 = 0xc000;

/// Values, some of them malformed.
const VALUES: &[&str] = &[
    r#""a""#,
    "1",
    "-1",
    "0.5",
    "null",
    "[]",
    "{}",
    "set()",
    r#"{1,"a",[2]}"#,
    r#"{"a":{1:2},[3]:set()}"#,
    r#"["a",2,{"b":null}]"#,
    r#""%s %d %v %05.2f %[2]*.[1]*f %!""#,
    r#""[a-z]+(.)\\1""#,
    r#""a.*{b,c}[!x]""#,
    r#""10.0.0.0/24""#,
    r#""::/64""#,
    r#""2024-02-29T23:59:60Z""#,
    r#""Mon Jan _2 15:04:05.000 2006""#,
    r#""1.2.3-rc.1+b""#,
    r#""1h2m3s""#,
    r#""10Gi""#,
    r#""YWJj""#,
    r#""a=1&b=%41""#,
    r#""a: [1, &x {b: *x}]\n---\n""#,
    r#"[{"op":"add","path":"/b/-","value":[]},{"op":"move","from":"/b","path":"/c"}]"#,
    r#"{"type":"object","properties":{"a":{"type":"string"}}}"#,
    "1e308",
    "1e-400",
    "18446744073709551616",
    r#""\ud800\u0000""#,
    r#"{"a":1"#,
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// Result sets.
const RESULTS: &[&str] = &[
    r#"[{"result":[]}]"#,
    r#"[{"result":[{"msg":"no"},{"msg":"never"}]}]"#,
    r#"[{"result":{"response":{"uid":"u","allowed":true}}}]"#,
    r#"[{"result":{"response":{"uid":"u","allowed":false,"status":{"message":"no","code":418}}}}]"#,
    r#"[{"result":{"allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL2xpc3QifV0="}}]"#,
];

pub fn guest() -> Guest {
    let imports = [
        ("opa_abort", "i", false),
        ("opa_println", "i", false),
        ("opa_builtin0", "ii", true),
        ("opa_builtin1", "iii", true),
        ("opa_builtin2", "iiii", true),
        ("opa_builtin3", "iiiii", true),
        ("opa_builtin4", "iiiiii", true),
    ];
    let imports = imports.map(|(name, parameters, has_result)| Import { module: ENV, name, parameters, has_result });
    let setters = ["result", "allocated", "parsed", "dumped", "error", "nested_calls"];
    let setters = setters.map(|global: &str| format!("(global.set ${global} {})", argument(0)));
    let setters_from_last = ["result", "dumped"].map(|global| format!("(global.set ${global} (global.get $last))"));
    let (values, results) = (0..VALUES.len(), VALUES.len()..VALUES.len() + RESULTS.len());
    let mut guest = Guest {
        imports: imports.into(),
        own_functions: setters.iter().cloned().chain(setters_from_last).collect(),
        fields: fields(results.start),
        texts: text_bytes(VALUES).into_iter().chain(text_bytes(RESULTS)).collect(),
        templates: Vec::new(),
    };
    let builtin_calls = BUILTINS.iter().zip(0_u32..).map(|((_, arity), id)| {
        let values = std::iter::repeat_n(TextOrContents(values.clone()), *arity);
        let arguments = [Number(id), Number(0)].into_iter().chain(values).collect();
        CallTemplate { function: guest.function_index(ENV, &format!("opa_builtin{arity}")), arguments }
    });
    // The first setter sets the result, and the last setter sets the number of nested calls.
    let first = guest.imports.len();
    let other_calls = [
        CallTemplate { function: first, arguments: vec![TextAddress(results)] },
        CallTemplate { function: first, arguments: vec![Contents] },
        CallTemplate { function: first + setters.len() - 1, arguments: vec![Number(1)] },
        CallTemplate { function: 1, arguments: vec![Contents] },
    ];
    guest.templates = builtin_calls.chain(other_calls).collect();
    guest
}

fn fields(result: usize) -> String {
    let names: Vec<String> = BUILTINS.iter().enumerate().map(|(id, (name, _))| format!(r#""{name}":{id}"#)).collect();
    let names = escaped(format!("{{{}}}", names.join(",")).as_bytes());
    let result = text_address(result);
    format!(
        r#"(import "env" "memory" (memory 4))
        (global (export "opa_wasm_abi_version") i32 (i32.const 1))
        (global $heap (mut i32) (i32.const {MESSAGE}))
        (global $result (mut i32) (i32.const {result}))
        ;; If a script sets them, these results replace the correct results of malloc, value_parse, value_dump and eval.
        (global $allocated (mut i32) (i32.const 0))
        (global $parsed (mut i32) (i32.const 0))
        (global $dumped (mut i32) (i32.const 0))
        (global $error (mut i32) (i32.const 0))
        ;; The number of calls by the host, during a builtin, that run a record of the script first.
        (global $nested_calls (mut i32) (i32.const 0))
        (data (i32.const {BUILTIN_NAMES}) "{names}\00")
        (func $nest
          (if (global.get $nested_calls) (then
            (global.set $nested_calls (i32.sub (global.get $nested_calls) (i32.const 1)))
            (call $step))))
        (func (export "opa_malloc") (param $length i32) (result i32)
          (local $address i32)
          (call $nest)
          (if (global.get $allocated) (then (return (global.get $allocated))))
          (local.set $address (global.get $heap))
          (global.set $heap (i32.add (i32.add (local.get $address) (local.get $length)) (i32.const 1)))
          (local.get $address))
        (func (export "opa_json_parse") (param i32 i32) (result i32)
          (call $load (local.get 0) (i32.add (local.get 0) (local.get 1)))
          (local.get 0))
        (func (export "opa_value_parse") (param i32 i32) (result i32)
          (call $nest)
          (if (global.get $parsed) (then (return (global.get $parsed))))
          (i32.store8 (i32.add (local.get 0) (local.get 1)) (i32.const 0))
          (local.get 0))
        (func (export "opa_json_dump") (param i32) (result i32) (local.get 0))
        (func (export "opa_value_dump") (param i32) (result i32)
          (call $nest)
          (if (global.get $dumped) (then (return (global.get $dumped))))
          (local.get 0))
        (func (export "opa_eval_ctx_new") (result i32) (i32.const 5))
        (func (export "opa_eval_ctx_set_input") (export "opa_eval_ctx_set_data") (export "opa_eval_ctx_set_entrypoint")
          (param i32 i32))
        (func (export "opa_eval_ctx_get_result") (param i32) (result i32) (global.get $result))
        (func (export "builtins") (result i32) (i32.const {BUILTIN_NAMES}))
        (func (export "eval") (param i32) (result i32) (call $run) (global.get $error))"#
    )
}
