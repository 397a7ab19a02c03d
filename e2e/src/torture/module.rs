//! waPC modules as bytes. Each spec has a module of its own, because a module that is cached already tests no registry.

/// The address of the answer about the settings in the memory of the module.
const SETTINGS: usize = 0;
/// The address of the verdict.
const VERDICT: usize = 1024;

/// Returns a module that accepts its settings, and denies each request with this message.
#[must_use]
pub fn denying(message: &str) -> Vec<u8> {
    module(r#"{"valid":true}"#, &format!(r#"{{"accepted":false,"message":"{message}"}}"#))
}

/// Returns a module that refuses its settings with this message.
#[must_use]
pub fn refusing_settings(message: &str) -> Vec<u8> {
    module(&format!(r#"{{"valid":false,"message":"{message}"}}"#), r#"{"accepted":false}"#)
}

/// Returns a module that answers with these texts. The binary format: <https://webassembly.github.io/spec/core/binary/>.
fn module(settings: &str, verdict: &str) -> Vec<u8> {
    const I32: u8 = 0x7f;
    // Function 0 is imported: it takes an address and a length. Function 1 takes the lengths of the operation and of its payload,
    // and returns a number.
    let types = [2, 0x60, 2, I32, I32, 0, 0x60, 2, I32, I32, 1, I32];
    let imports = [vec![1], name("wapc"), name("__guest_response"), vec![0, 0]].concat();
    let exports = [vec![2], name("memory"), vec![2, 0], name("__guest_call"), vec![0, 1]].concat();
    let data = [vec![2], segment(SETTINGS, settings), segment(VERDICT, verdict)].concat();
    let body = body(settings.len(), verdict.len());
    let code = [vec![1], unsigned(body.len()), body].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &types),
        section(2, &imports),
        section(3, &[1, 1]),
        section(5, &[1, 0, 1]),
        section(7, &exports),
        section(10, &code),
        section(11, &data),
    ]
    .concat()
}

/// Returns the code of `__guest_call`. The length distinguishes the operations: `validate_settings` has 17 letters, `validate`
/// has 8.
fn body(settings: usize, verdict: usize) -> Vec<u8> {
    const CALL_0: [u8; 2] = [0x10, 0];
    let respond = |address: usize, length: usize| [constant(address), constant(length), CALL_0.to_vec()].concat();
    [
        // No locals; local.get 0
        vec![0, 0x20, 0],
        constant("validate_settings".len()),
        // i32.eq; if
        vec![0x46, 0x04, 0x40],
        respond(SETTINGS, settings),
        // else
        vec![0x05],
        respond(VERDICT, verdict),
        // end; i32.const 1; end
        vec![0x0b, 0x41, 1, 0x0b],
    ]
    .concat()
}

fn section(kind: u8, content: &[u8]) -> Vec<u8> {
    [vec![kind], unsigned(content.len()), content.to_vec()].concat()
}

/// Returns a data segment that puts a text at an address.
fn segment(address: usize, text: &str) -> Vec<u8> {
    [vec![0], constant(address), vec![0x0b], name(text)].concat()
}

/// Returns a text with its length.
fn name(text: &str) -> Vec<u8> {
    [unsigned(text.len()), text.as_bytes().to_vec()].concat()
}

/// Returns the instruction `i32.const` with this number.
fn constant(number: usize) -> Vec<u8> {
    let mut bytes = vec![0x41];
    bytes.extend(leb128(number, 0x40));
    bytes
}

/// Returns a number as unsigned LEB128.
fn unsigned(number: usize) -> Vec<u8> {
    leb128(number, 0)
}

/// Returns a number as LEB128. `sign` is the bit of the last byte that must be 0: the sign bit of a signed number.
fn leb128(mut number: usize, sign: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 && low & sign == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
