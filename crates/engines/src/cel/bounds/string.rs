//! Where a string literal ends. Exactly as cel's lexer sees it: where that one finds no string, it goes on
//! behind the quote, and the parser gets what looked like a text.

/// The length of the string whose quote stands at a position; None when it is not valid.
pub(super) fn length(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes[start];
    let raw = is_raw(&bytes[..start])?;
    let triple = bytes[start..].starts_with(&[quote; 3]);
    let end: &[u8] = if triple { &[quote; 3] } else { &[quote] };
    let mut position = start + end.len();
    loop {
        position += match *bytes.get(position)? {
            b'\\' if !raw => 1 + escape(&bytes[position + 1..])?,
            b'\n' | b'\r' if !triple => return None,
            _ if bytes[position..].starts_with(end) => return Some(position + end.len() - start),
            _ => 1,
        };
    }
}

/// Whether a string after this text is a raw one; None behind a number, which nothing valid has.
fn is_raw(before: &[u8]) -> Option<bool> {
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let start = before.iter().rposition(|byte| !in_name(byte)).map_or(0, |position| position + 1);
    match &before[start..] {
        [b'0'..=b'9', ..] => None,
        [b'r' | b'R'] | [b'b' | b'B', b'r' | b'R'] => Some(true),
        _ => Some(false),
    }
}

/// The length of an escape behind its backslash.
fn escape(bytes: &[u8]) -> Option<usize> {
    let digits = match bytes.first()? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'\\' | b'"' | b'\'' | b'`' | b'?' => return Some(1),
        b'0'..=b'3' => {
            let octal = bytes.get(1..3)?.iter().all(|byte| matches!(byte, b'0'..=b'7'));
            return octal.then_some(3);
        }
        b'x' | b'X' => 2,
        b'u' => 4,
        b'U' => 8,
        _ => return None,
    };
    bytes.get(1..=digits)?.iter().all(u8::is_ascii_hexdigit).then_some(1 + digits)
}
