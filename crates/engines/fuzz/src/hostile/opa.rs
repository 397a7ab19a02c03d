//! What looks like compiled Rego: its settings are the script. Values are their texts, and what its own functions answer to
//! the host, a script may have said before.

use super::builtins::BUILTINS;
use super::guest::{Guest, Import, MESSAGE, Phrase, argument, escaped, words};
use super::script::Part::{Contents, Number, Text, Word};

const ENV: &str = "env";
/// Where it names its builtins.
const NAMED: u32 = 0xc000;

/// Values, good and bad ones.
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
    let told = ["result", "given", "value", "dumped", "error", "nested"];
    let told = told.map(|global: &str| format!("(global.set ${global} {})", argument(0)));
    let learnt = ["result", "dumped"].map(|global| format!("(global.set ${global} (global.get $last))"));
    let (values, results) = (0..VALUES.len(), VALUES.len()..VALUES.len() + RESULTS.len());
    let mut guest = Guest {
        imports: imports.into(),
        own: told.iter().cloned().chain(learnt).collect(),
        fields: fields(results.start),
        words: words(VALUES).into_iter().chain(words(RESULTS)).collect(),
        phrases: Vec::new(),
    };
    let asking = BUILTINS.iter().zip(0_u32..).map(|((_, arity), id)| {
        let arguments = std::iter::repeat_n(Text(values.clone()), *arity);
        let parts = [Number(id), Number(0)].into_iter().chain(arguments).collect();
        Phrase { function: guest.function(ENV, &format!("opa_builtin{arity}")), parts }
    });
    // The first of its own is the result, the last that is told how often it nests.
    let first = guest.imports.len();
    let answering = [
        Phrase { function: first, parts: vec![Word(results)] },
        Phrase { function: first, parts: vec![Contents] },
        Phrase { function: first + told.len() - 1, parts: vec![Number(1)] },
        Phrase { function: 1, parts: vec![Contents] },
    ];
    guest.phrases = asking.chain(answering).collect();
    guest
}

fn fields(result: usize) -> String {
    let names: Vec<String> = BUILTINS.iter().enumerate().map(|(id, (name, _))| format!(r#""{name}":{id}"#)).collect();
    let names = escaped(format!("{{{}}}", names.join(",")).as_bytes());
    let result = super::guest::place_of(result);
    format!(
        r#"(import "env" "memory" (memory 4))
        (global (export "opa_wasm_abi_version") i32 (i32.const 1))
        (global $heap (mut i32) (i32.const {MESSAGE}))
        (global $result (mut i32) (i32.const {result}))
        ;; What it answers to the host instead of what is right: room for an answer, a value, its text, an error.
        (global $given (mut i32) (i32.const 0))
        (global $value (mut i32) (i32.const 0))
        (global $dumped (mut i32) (i32.const 0))
        (global $error (mut i32) (i32.const 0))
        ;; How many calls of the host, while it answers, obey a record.
        (global $nested (mut i32) (i32.const 0))
        (data (i32.const {NAMED}) "{names}\00")
        (func $nest
          (if (global.get $nested) (then
            (global.set $nested (i32.sub (global.get $nested) (i32.const 1)))
            (call $step))))
        (func (export "opa_malloc") (param $length i32) (result i32)
          (local $address i32)
          (call $nest)
          (if (global.get $given) (then (return (global.get $given))))
          (local.set $address (global.get $heap))
          (global.set $heap (i32.add (i32.add (local.get $address) (local.get $length)) (i32.const 1)))
          (local.get $address))
        (func (export "opa_json_parse") (param i32 i32) (result i32)
          (call $load (local.get 0) (i32.add (local.get 0) (local.get 1)))
          (local.get 0))
        (func (export "opa_value_parse") (param i32 i32) (result i32)
          (call $nest)
          (if (global.get $value) (then (return (global.get $value))))
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
        (func (export "builtins") (result i32) (i32.const {NAMED}))
        (func (export "eval") (param i32) (result i32) (call $run) (global.get $error))"#
    )
}
