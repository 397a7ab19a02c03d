//! The module of a guest. The guest finds its script after the first zero byte of a message, and runs it record by record.

use std::fmt::Write;

use super::script::{ArgumentKind, MAX_ARGUMENTS, RECORD_SIZE};

/// The size of the guest's memory, in bytes. The memory has scratch space, texts, messages, scripts and contents, in this
/// order.
pub const MEMORY: u32 = 4 << 16;
/// The address of the texts. Each text has a slot of its own.
const TEXTS: u32 = 1 << 10;
/// The size of the slot of a text, in bytes.
const TEXT_SLOT: u32 = 1 << 7;
/// The address of messages.
pub const MESSAGE: u32 = 1 << 16;
/// The address of the records of the script.
const SCRIPT: u32 = 2 << 16;
/// The address of the contents, which follow the records in a script.
pub const CONTENTS: u32 = SCRIPT + (1 << 12);

/// A function of the host.
#[derive(Clone, Copy, Debug)]
pub struct Import {
    pub module: &'static str,
    pub name: &'static str,
    /// One letter for each parameter: `i` for 32 bits, `l` for 64 bits.
    pub parameters: &'static str,
    pub has_result: bool,
}

/// A meaningful call of a function, which random arguments would hardly ever form.
#[derive(Debug)]
pub struct CallTemplate {
    /// The index of the function.
    pub function: usize,
    pub arguments: Vec<ArgumentKind>,
}

/// A guest of one calling convention.
#[derive(Debug)]
pub struct Guest {
    pub imports: Vec<Import>,
    /// The code of functions other than the imports.
    pub own_functions: Vec<String>,
    /// The memory, the exports and the rest of the module.
    pub fields: String,
    /// The texts in the guest's memory, each without the zero byte that follows it.
    pub texts: Vec<Vec<u8>>,
    pub templates: Vec<CallTemplate>,
}

/// Returns the code that reads an argument of the current record.
pub fn argument(index: usize) -> String {
    format!("(i32.load offset={} (local.get $at))", 4 * (index + 1))
}

/// Returns the address of a text.
pub fn text_address(text: usize) -> u32 {
    TEXTS + TEXT_SLOT * u32::try_from(text).unwrap_or_default()
}

/// Converts strings to the bytes of texts.
pub fn text_bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Escapes bytes for a string in the WebAssembly text format.
pub fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:02x}"))
}

impl Guest {
    /// Returns the index of an imported function.
    pub fn function_index(&self, module: &str, name: &str) -> usize {
        let found = self.imports.iter().position(|import| (import.module, import.name) == (module, name));
        found.unwrap_or(self.imports.len())
    }

    /// Returns the number of functions: the imports, the guest's own functions and the common functions.
    pub fn function_count(&self) -> usize {
        self.imports.len() + self.own_functions.len() + common_functions().len()
    }

    /// Returns the number of words that the arguments of a function take in a record.
    pub fn argument_count(&self, function: usize) -> usize {
        self.imports.get(function).map_or(2, |import| {
            let wide = import.parameters.ends_with('l');
            import.parameters.len() + usize::from(wide)
        })
    }

    /// Returns the module in the WebAssembly text format.
    pub fn wat(&self) -> String {
        let mut imports = String::new();
        for (index, import) in self.imports.iter().enumerate() {
            let Import { module, name, has_result, .. } = import;
            let types: Vec<&str> =
                import.parameters.chars().map(|kind| if kind == 'l' { "i64" } else { "i32" }).collect();
            let result = if *has_result { "(result i32)" } else { "" };
            let parameters = types.join(" ");
            let _ = writeln!(imports, r#"(import "{module}" "{name}" (func $f{index} (param {parameters}) {result}))"#);
        }
        let mut data = String::new();
        for (index, text) in self.texts.iter().enumerate() {
            let _ = writeln!(data, r#"(data (i32.const {}) "{}\00")"#, text_address(index), escaped(text));
        }
        let (fields, step, load) = (&self.fields, self.step(), load());
        format!("(module {imports} {fields} {data} {load} {step} {RUN})")
    }

    /// Returns the code that runs one record. The first word of a record is the index of the function, and the other words are
    /// the arguments.
    fn step(&self) -> String {
        let calls = self.imports.iter().enumerate().map(|(index, import)| call(index, import));
        let bodies: Vec<String> = calls.chain(self.own_functions.iter().cloned()).chain(common_functions()).collect();
        let labels: String = (0..bodies.len()).fold(String::new(), |labels, index| labels + &format!("$b{index} "));
        let count = bodies.len();
        let mut code = format!("(br_table {labels} (i32.rem_u (i32.load (local.get $at)) (i32.const {count})))");
        for (index, body) in bodies.iter().enumerate() {
            code = format!("(block $b{index} {code}) {body} (br $done)");
        }
        format!(
            "(func $step
              (local $at i32)
              (local.set $at (global.get $record))
              (if (i32.ge_u (local.get $at) (global.get $end)) (then (return)))
              (global.set $record (i32.add (local.get $at) (i32.const {RECORD_SIZE})))
              (block $done {code}))"
        )
    }
}

fn call(index: usize, import: &Import) -> String {
    debug_assert!(import.parameters.len() < MAX_ARGUMENTS, "the last argument may take two words");
    let mut arguments = String::new();
    for (position, kind) in import.parameters.chars().enumerate() {
        let argument = argument(position);
        // An argument of 64 bits consists of its own word and the next word.
        arguments += &if kind == 'l' { argument.replacen("i32", "i64", 1) } else { argument };
    }
    let call = format!("(call $f{index} {arguments})");
    if import.has_result { format!("(global.set $last {call})") } else { call }
}

/// Returns the code of the functions that every guest has: writing a number to memory, writing the last result of a host
/// function to memory, and growing the memory.
fn common_functions() -> [String; 3] {
    let address = format!("(i32.and {} (i32.const {}))", argument(0), MEMORY - 4);
    [
        format!("(i32.store {address} {})", argument(1)),
        format!("(i32.store {address} (global.get $last))"),
        format!("(drop (memory.grow (i32.and {} (i32.const 3))))", argument(0)),
    ]
}

const RUN: &str = "
    (global $record (mut i32) (i32.const 0))
    (global $end (mut i32) (i32.const 0))
    (global $last (mut i32) (i32.const 0))
    (func $run (loop $next
      (if (i32.lt_u (global.get $record) (global.get $end)) (then (call $step) (br $next)))))";

/// Returns the code that finds the script in a message: a zero byte, the number of records, the records, the contents.
fn load() -> String {
    format!(
        "(func $load (param $from i32) (param $to i32)
          (local $length i32)
          (block $found (loop $next
            (if (i32.ge_u (local.get $from) (local.get $to)) (then (return)))
            (br_if $found (i32.eqz (i32.load8_u (local.get $from))))
            (local.set $from (i32.add (local.get $from) (i32.const 1)))
            (br $next)))
          (local.set $length (i32.mul (i32.load offset=1 (local.get $from)) (i32.const {RECORD_SIZE})))
          (local.set $from (i32.add (local.get $from) (i32.const 5)))
          (memory.copy (i32.const {SCRIPT}) (local.get $from) (local.get $length))
          (local.set $from (i32.add (local.get $from) (local.get $length)))
          (memory.copy (i32.const {CONTENTS}) (local.get $from) (i32.sub (local.get $to) (local.get $from)))
          (global.set $record (i32.const {SCRIPT}))
          (global.set $end (i32.add (i32.const {SCRIPT}) (local.get $length))))"
    )
}
