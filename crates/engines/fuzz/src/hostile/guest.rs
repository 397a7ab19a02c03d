//! The module of a guest: it finds its script behind the first zero of a message, and obeys it record by record.

use std::fmt::Write;

use super::script::{ARGUMENTS, Part, RECORD};

/// The size of its memory: the beginning is for scratch, then come words, messages, scripts and what they bring along.
pub const MEMORY: u32 = 4 << 16;
/// Where its words are, each in a room of its own.
const WORDS: u32 = 1 << 10;
const ROOM: u32 = 1 << 7;
/// Where messages go.
pub const MESSAGE: u32 = 1 << 16;
/// Where the records of the script go, and what comes behind them.
const SCRIPT: u32 = 2 << 16;
pub const CONTENTS: u32 = SCRIPT + (1 << 12);

/// A function of the host.
#[derive(Clone, Copy, Debug)]
pub struct Import {
    pub module: &'static str,
    pub name: &'static str,
    /// `i` for 32 bits, `l` for 64.
    pub parameters: &'static str,
    pub has_result: bool,
}

/// Something that a guest does, and that arguments taken at random would hardly come to.
#[derive(Debug)]
pub struct Phrase {
    /// Which function.
    pub function: usize,
    pub parts: Vec<Part>,
}

/// A guest of one calling convention.
#[derive(Debug)]
pub struct Guest {
    pub imports: Vec<Import>,
    /// What it can do besides calling these, as code.
    pub own: Vec<String>,
    /// Its memory, its exports and the rest of the module.
    pub fields: String,
    /// Texts in its memory, each with a zero behind it.
    pub words: Vec<Vec<u8>>,
    pub phrases: Vec<Phrase>,
}

/// An argument of the record that is obeyed.
pub fn argument(index: usize) -> String {
    format!("(i32.load offset={} (local.get $at))", 4 * (index + 1))
}

/// Where a word is.
pub fn place_of(word: usize) -> u32 {
    WORDS + ROOM * u32::try_from(word).unwrap_or_default()
}

/// Words of these texts.
pub fn words(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Bytes as the text of a module has them.
pub fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:02x}"))
}

impl Guest {
    /// Which function this import is.
    pub fn function(&self, module: &str, name: &str) -> usize {
        let found = self.imports.iter().position(|import| (import.module, import.name) == (module, name));
        found.unwrap_or(self.imports.len())
    }

    /// How many things it can do.
    pub fn functions(&self) -> usize {
        self.imports.len() + self.own.len() + common().len()
    }

    /// How many arguments one of these takes.
    pub fn arguments(&self, function: usize) -> usize {
        self.imports.get(function).map_or(2, |import| {
            let wide = import.parameters.ends_with('l');
            import.parameters.len() + usize::from(wide)
        })
    }

    /// The text of the module.
    pub fn text(&self) -> String {
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
        for (index, word) in self.words.iter().enumerate() {
            let _ = writeln!(data, r#"(data (i32.const {}) "{}\00")"#, place_of(index), escaped(word));
        }
        let (fields, step, load) = (&self.fields, self.step(), load());
        format!("(module {imports} {fields} {data} {load} {step} {RUN})")
    }

    /// Obeys one record: its first word says which function, the others are the arguments.
    fn step(&self) -> String {
        let calls = self.imports.iter().enumerate().map(|(index, import)| call(index, import));
        let bodies: Vec<String> = calls.chain(self.own.iter().cloned()).chain(common()).collect();
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
              (global.set $record (i32.add (local.get $at) (i32.const {RECORD})))
              (block $done {code}))"
        )
    }
}

fn call(index: usize, import: &Import) -> String {
    debug_assert!(import.parameters.len() < ARGUMENTS, "the last argument may take two words");
    let mut arguments = String::new();
    for (place, kind) in import.parameters.chars().enumerate() {
        let argument = argument(place);
        // One of 64 bits is made of itself and the next one.
        arguments += &if kind == 'l' { argument.replacen("i32", "i64", 1) } else { argument };
    }
    let call = format!("(call $f{index} {arguments})");
    if import.has_result { format!("(global.set $last {call})") } else { call }
}

/// What every guest can do: write to its memory, what it was told last too, and have it grow.
fn common() -> [String; 3] {
    let place = format!("(i32.and {} (i32.const {}))", argument(0), MEMORY - 4);
    [
        format!("(i32.store {place} {})", argument(1)),
        format!("(i32.store {place} (global.get $last))"),
        format!("(drop (memory.grow (i32.and {} (i32.const 3))))", argument(0)),
    ]
}

const RUN: &str = "
    (global $record (mut i32) (i32.const 0))
    (global $end (mut i32) (i32.const 0))
    (global $last (mut i32) (i32.const 0))
    (func $run (loop $next
      (if (i32.lt_u (global.get $record) (global.get $end)) (then (call $step) (br $next)))))";

/// Takes the script out of a message: a zero, how many records, the records, the contents.
fn load() -> String {
    format!(
        "(func $load (param $from i32) (param $to i32)
          (local $length i32)
          (block $found (loop $next
            (if (i32.ge_u (local.get $from) (local.get $to)) (then (return)))
            (br_if $found (i32.eqz (i32.load8_u (local.get $from))))
            (local.set $from (i32.add (local.get $from) (i32.const 1)))
            (br $next)))
          (local.set $length (i32.mul (i32.load offset=1 (local.get $from)) (i32.const {RECORD})))
          (local.set $from (i32.add (local.get $from) (i32.const 5)))
          (memory.copy (i32.const {SCRIPT}) (local.get $from) (local.get $length))
          (local.set $from (i32.add (local.get $from) (local.get $length)))
          (memory.copy (i32.const {CONTENTS}) (local.get $from) (i32.sub (local.get $to) (local.get $from)))
          (global.set $record (i32.const {SCRIPT}))
          (global.set $end (i32.add (i32.const {SCRIPT}) (local.get $length))))"
    )
}
