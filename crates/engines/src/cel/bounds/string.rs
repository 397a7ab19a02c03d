//! The lengths of string literals, exactly as cel's lexer determines them. If a string is not valid, the lexer skips only its
//! quote, and reads the content of the string as tokens. The bounds must count these tokens, so they must not skip the string.

/// Returns the length of the string literal whose quote is at `start`; `None` if the literal is not valid.
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

/// Returns true if a quote after this text begins a raw string; `None` after a number, which is never valid.
fn is_raw(before: &[u8]) -> Option<bool> {
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let start = before.iter().rposition(|byte| !in_name(byte)).map_or(0, |position| position + 1);
    match &before[start..] {
        [b'0'..=b'9', ..] => None,
        [b'r' | b'R'] | [b'b' | b'B', b'r' | b'R'] => Some(true),
        _ => Some(false),
    }
}

/// Returns the length of an escape, without the backslash before it; `None` if the escape is not valid.
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
