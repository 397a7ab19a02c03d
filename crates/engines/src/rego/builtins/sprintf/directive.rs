//! One directive of a format, such as `%-8.3f`.

use std::fmt::Write as _;

use regorus::Value;

use super::argument::{Argument, exponential, general};

/// The largest width and precision. In Go it is a million.
pub(super) const MAX_WIDTH: usize = 1000;

/// The part of a directive between `%` and the verb.
#[derive(Default)]
pub(super) struct Directive {
    /// The flags among `+-# 0`.
    pub flags: String,
    pub width: Option<usize>,
    pub precision: Option<usize>,
    /// The index of the argument is out of range or not valid in Go.
    pub has_bad_index: bool,
}

impl Directive {
    pub(super) fn format(&self, verb: char, argument: &Argument) -> String {
        let formatted = match (verb, argument) {
            ('T', _) => Some(argument.name_of_type().to_owned()),
            ('v' | 'd', Argument::Integer(digits)) => Some(digits.clone()),
            // Go's `big.Int` supports `%s`.
            ('s', Argument::Integer(digits)) if digits.parse::<i64>().is_err() => Some(digits.clone()),
            // 4.0 and 4 are the same number in regorus. OPA formats 4.0 as a float, and 4 as an error.
            ('e' | 'E' | 'f' | 'F' | 'g' | 'G', Argument::Integer(digits)) => {
                digits.parse().ok().and_then(|number| self.float(verb, number))
            }
            (_, Argument::Integer(digits)) => self.integer(verb, digits),
            (_, Argument::Float(number)) => self.float(verb, *number),
            ('q', Argument::Text(text)) if self.flags.contains('#') && !text.contains(['`', '\u{7f}', '\u{feff}']) => {
                let text = self.cut(text);
                Some(if text.contains(char::is_control) { Value::from(text).to_string() } else { format!("`{text}`") })
            }
            ('v', Argument::Text(text)) if self.flags.contains('#') => Some(Value::from(self.cut(text)).to_string()),
            ('v' | 's', Argument::Text(text)) => Some(self.cut(text)),
            ('q', Argument::Text(text)) => Some(Value::from(self.cut(text)).to_string()),
            ('x', Argument::Text(text)) => Some(hexadecimal(text)),
            ('X', Argument::Text(text)) => Some(hexadecimal(text).to_uppercase()),
            (_, Argument::Text(_)) => None,
        };
        let formatted = formatted.unwrap_or_else(|| format!("%!{verb}({})", argument.with_type()));
        match argument {
            Argument::Text(_) => formatted,
            _ if formatted.starts_with(['-', '%', '\'']) || verb == 'T' => formatted,
            _ if self.flags.contains('+') => format!("+{formatted}"),
            _ if self.flags.contains(' ') => format!(" {formatted}"),
            _ => formatted,
        }
    }

    fn integer(&self, verb: char, digits: &str) -> Option<String> {
        let number: i128 = digits.parse().ok()?;
        let size = number.unsigned_abs();
        let (prefix, text) = match verb {
            'b' => ("0b", format!("{size:b}")),
            'o' => ("0", format!("{size:o}")),
            'O' => return Some(format!("0o{size:o}")),
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'c' => return char::from_u32(u32::try_from(number).ok()?).map(String::from),
            'q' => return char::from_u32(u32::try_from(number).ok()?).map(|character| format!("{character:?}")),
            'U' => return Some(format!("U+{size:04X}")),
            _ => return None,
        };
        Some(format!(
            "{}{}{text}",
            if number < 0 { "-" } else { "" },
            if self.flags.contains('#') { prefix } else { "" }
        ))
    }

    fn float(&self, verb: char, number: f64) -> Option<String> {
        let text = match verb {
            'v' | 'g' | 'G' => general(number, self.precision),
            'f' | 'F' => format!("{number:.*}", self.precision.unwrap_or(6)),
            'e' | 'E' => exponential(&format!("{number:.*e}", self.precision.unwrap_or(6))),
            _ => return None,
        };
        Some(if verb.is_uppercase() { text.to_uppercase() } else { text })
    }

    fn cut(&self, text: &str) -> String {
        text.chars().take(self.precision.unwrap_or(usize::MAX)).collect()
    }

    pub(super) fn pad(&self, text: &str, argument: &Argument) -> String {
        let missing = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        if self.flags.contains('-') {
            return format!("{text}{}", " ".repeat(missing));
        }
        if self.flags.contains('0') && !matches!(argument, Argument::Text(_)) {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-', ' '])));
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        format!("{}{text}", " ".repeat(missing))
    }
}

fn hexadecimal(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}
