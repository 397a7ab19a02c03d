//! Modules with the exports of compiled Rego, for tests. A value is its text with a zero byte at its end.

use proviso_core::Verdict;
use proviso_engines::wasm::{ExecutionMode, Module, Program};
use proviso_engines::{CompileError, EvaluationError};

use super::guest::{ENGINE, create_review, escaped, failure, load, long_deadline};

/// The address of the texts of a test.
pub(crate) const TEXT: u32 = 2048;

#[derive(Clone, Debug)]
pub(crate) struct Rego {
    builtins: String,
    result: String,
    body: String,
    fields: String,
    memory: &'static str,
    version: u32,
}

impl Rego {
    /// Returns a module whose `eval` has this code. The code may call `$abort`, `$println` and `$builtin0` to `$builtin4`, has
    /// the globals `$input`, `$data`, `$result` and `$heap`, and must leave an `i32` on the stack.
    pub(crate) fn with_body(body: &str) -> Self {
        Self {
            builtins: "{}".into(),
            result: "[]".into(),
            body: body.into(),
            fields: String::new(),
            memory: "2",
            version: 1,
        }
    }

    /// Returns a module whose result set is this text.
    pub(crate) fn answering(json: &str) -> Self {
        Self { result: json.into(), ..Self::with_body("(i32.const 0)") }
    }

    /// Returns a module that calls this builtin, with the number 7, and aborts with its result. An undefined result ends the
    /// evaluation with the error 77.
    pub(crate) fn calling_builtin(builtin: &str, arguments: &[&str]) -> Self {
        let (mut rego, mut address, mut addresses) = (Self::with_body(""), TEXT, Vec::new());
        for argument in arguments {
            addresses.push(format!("(i32.const {address})"));
            rego = rego.text(address, argument);
            address += u32::try_from(argument.len()).unwrap() + 1;
        }
        let values = addresses.join(" ");
        let count = arguments.len();
        rego.body = format!(
            "(global.set $result (call $builtin{count} (i32.const 7) (i32.const 0) {values}))
             (if (global.get $result) (then (call $abort (global.get $result))))
             (i32.const 77)"
        );
        rego.with_builtins(&format!(r#"{{"{builtin}":7}}"#))
    }

    /// Sets the JSON object that lists the builtins of the module with their numbers.
    pub(crate) fn with_builtins(mut self, json: &str) -> Self {
        self.builtins = json.into();
        self
    }

    pub(crate) fn field(mut self, text: &str) -> Self {
        self.fields += text;
        self
    }

    /// Sets the limits of the imported memory, in pages.
    pub(crate) fn memory(mut self, limits: &'static str) -> Self {
        self.memory = limits;
        self
    }

    /// Sets the version of OPA's ABI.
    pub(crate) fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Adds a text with a zero byte at its end.
    pub(crate) fn text(self, address: u32, text: &str) -> Self {
        self.field(&format!(r#"(data (i32.const {address}) "{}\00")"#, escaped(text.as_bytes())))
    }

    pub(crate) fn wasm(&self) -> Vec<u8> {
        wat::parse_str(self.wat()).unwrap()
    }

    /// Returns the module in the WebAssembly text format.
    pub(crate) fn wat(&self) -> String {
        let Self { builtins, result, body, fields, memory, version } = self;
        let [builtins, result] = [builtins, result].map(|text| escaped(text.as_bytes()));
        format!(
            r#"(module
                (import "env" "memory" (memory {memory}))
                (import "env" "opa_abort" (func $abort (param i32)))
                (import "env" "opa_println" (func $println (param i32)))
                (import "env" "opa_builtin0" (func $builtin0 (param i32 i32) (result i32)))
                (import "env" "opa_builtin1" (func $builtin1 (param i32 i32 i32) (result i32)))
                (import "env" "opa_builtin2" (func $builtin2 (param i32 i32 i32 i32) (result i32)))
                (import "env" "opa_builtin3" (func $builtin3 (param i32 i32 i32 i32 i32) (result i32)))
                (import "env" "opa_builtin4" (func $builtin4 (param i32 i32 i32 i32 i32 i32) (result i32)))
                (global (export "opa_wasm_abi_version") i32 (i32.const {version}))
                (global $heap (mut i32) (i32.const 65536))
                (global $input (mut i32) (i32.const 0))
                (global $data (mut i32) (i32.const 0))
                (global $result (mut i32) (i32.const 4096))
                (func $malloc (export "opa_malloc") (param $length i32) (result i32)
                    (local $address i32)
                    (local.set $address (global.get $heap))
                    (global.set $heap
                        (i32.add (global.get $heap) (i32.add (local.get $length) (i32.const 1))))
                    (block $enough (loop $more
                        (br_if $enough (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
                        (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
                        (br $more)))
                    (local.get $address))
                (func (export "opa_json_parse") (export "opa_value_parse") (param i32 i32) (result i32)
                    (i32.store8 (i32.add (local.get 0) (local.get 1)) (i32.const 0))
                    (local.get 0))
                (func (export "opa_json_dump") (export "opa_value_dump") (param i32) (result i32) (local.get 0))
                (func (export "opa_eval_ctx_new") (result i32) (i32.const 5))
                (func (export "opa_eval_ctx_set_input") (param i32 i32) (global.set $input (local.get 1)))
                (func (export "opa_eval_ctx_set_data") (param i32 i32) (global.set $data (local.get 1)))
                (func (export "opa_eval_ctx_set_entrypoint") (param i32 i32)
                    (if (local.get 1) (then unreachable)))
                (func (export "opa_eval_ctx_get_result") (param i32) (result i32) (global.get $result))
                (func (export "builtins") (result i32) (i32.const 1024))
                {fields}
                (data (i32.const 1024) "{builtins}\00")
                (data (i32.const 4096) "{result}\00")
                (func $eval (export "eval") (param i32) (result i32) {body}))"#
        )
    }

    pub(crate) fn load(&self) -> Result<Module, CompileError> {
        load(&ENGINE, &self.wasm())
    }

    pub(crate) fn program(&self, mode: ExecutionMode) -> Program {
        Program::new(self.load().unwrap(), *b"{}").in_mode(mode)
    }

    pub(crate) async fn evaluate(&self, mode: ExecutionMode) -> Result<Verdict, EvaluationError> {
        self.program(mode).evaluate(&create_review(), long_deadline()).await
    }

    /// Evaluates a review and returns the text of the failure. Panics if the evaluation does not fail.
    pub(crate) async fn failure(&self) -> String {
        failure(&self.program(ExecutionMode::Opa)).await
    }
}
