//! `sprintf` as OPA has it, which is Go's: regorus' own is undefined for widths, for a number of values that
//! the format does not ask for and for values of another type, and a message, with its violation, is lost.
//!
//! OPA gives Go integers, floats and strings; all else is a string already, as Rego writes it.

mod reading;

use std::fmt::Write as _;

use regorus::Value;

use reading::Reading;

use super::size::written;
use super::{MAX_TEXT, call};

/// The largest width and precision. Go's is a million.
const MAX_WIDTH: usize = 1000;

enum Argument {
    /// In decimal digits, with its sign.
    Integer(String),
    Float(f64),
    Text(String),
}

/// What stands between `%` and the verb.
#[derive(Default)]
struct Directive {
    /// Those of `+-# 0` that there are.
    flags: String,
    width: Option<usize>,
    precision: Option<usize>,
    /// Whether it asks for a value that there is not, or in a way that Go does not know.
    misplaced: bool,
}

pub(super) fn sprintf(values: &[Value]) -> Result<Value, String> {
    let [Value::String(format), Value::Array(items)] = values else {
        return Err("it takes a string and an array".into());
    };
    // All are written out first, with what they share as often as it is found.
    if written(&values[1], MAX_TEXT, 0, 0) > MAX_TEXT {
        return Err("the arguments are too long".into());
    }
    let arguments = items.iter().map(Argument::new).collect::<Result<Vec<_>, _>>()?;
    let mut out = String::new();
    let mut reading = Reading { rest: format.chars().peekable(), arguments: &arguments, next: 0, reordered: false };
    while let Some(character) = reading.rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = reading.directive(&mut out);
        match (reading.rest.next(), arguments.get(reading.next)) {
            (None, _) => out += "%!(NOVERB)",
            (Some('%'), _) => out.push('%'),
            (Some(verb), _) if directive.misplaced => _ = write!(out, "%!{verb}(BADINDEX)"),
            (Some(verb), None) => _ = write!(out, "%!{verb}(MISSING)"),
            (Some(verb), Some(argument)) => {
                reading.next += 1;
                out += &directive.pad(&directive.format(verb, argument), argument);
            }
        }
        if out.len() > MAX_TEXT {
            return Err("the result is too long".into());
        }
    }
    if let Some(extra @ [_, ..]) = arguments.get(reading.next..).filter(|_| !reading.reordered) {
        let extra: Vec<String> = extra.iter().map(Argument::with_type).collect();
        _ = write!(out, "%!(EXTRA {})", extra.join(", "));
    }
    Ok(out.into())
}

impl Argument {
    fn new(value: &Value) -> Result<Self, String> {
        Ok(match value {
            // A large one may be a float all the same, which Go does not write out.
            Value::Number(number)
                if number.is_integer() && (number.as_i64().is_some() || number.as_f64().is_none()) =>
            {
                Self::Integer(number.format_decimal())
            }
            Value::Number(number) => Self::Float(number.as_f64().unwrap_or(f64::INFINITY)),
            Value::String(text) => Self::Text(text.to_string()),
            // Sets and objects as OPA writes them, which is not as JSON.
            other => match call("sprintf", &["%v".into(), vec![other.clone()].into()])? {
                Value::String(text) => Self::Text(text.to_string()),
                _ => return Err("a value cannot be written".into()),
            },
        })
    }

    fn name_of_type(&self) -> &'static str {
        match self {
            Self::Integer(digits) if digits.parse::<i64>().is_err() => "*big.Int",
            Self::Integer(_) => "int64",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
        }
    }

    fn plain(&self) -> String {
        match self {
            Self::Integer(text) | Self::Text(text) => text.clone(),
            Self::Float(number) => general(*number, None),
        }
    }

    fn with_type(&self) -> String {
        format!("{}={}", self.name_of_type(), self.plain())
    }
}

impl Directive {
    fn format(&self, verb: char, argument: &Argument) -> String {
        let formatted = match (verb, argument) {
            ('T', _) => Some(argument.name_of_type().to_owned()),
            ('v' | 'd', Argument::Integer(digits)) => Some(digits.clone()),
            // Go's large integers write themselves.
            ('s', Argument::Integer(digits)) if digits.parse::<i64>().is_err() => Some(digits.clone()),
            // 4.0 and 4 are one number here; OPA has a float for the one and an error for the other.
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

    fn pad(&self, text: &str, argument: &Argument) -> String {
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

/// Go's `%g`: as few digits as tell the number from others, with an exponent where it is far from one.
fn general(number: f64, precision: Option<usize>) -> String {
    let precision = precision.map(|precision| precision.max(1));
    let scientific =
        precision.map_or_else(|| format!("{number:e}"), |precision| format!("{number:.*e}", precision - 1));
    let Some((digits, Ok(exponent))) = scientific.split_once('e').map(|(digits, e)| (digits, e.parse::<i32>())) else {
        return scientific;
    };
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    let most = precision.map_or(6, |precision| i32::try_from(precision).unwrap_or(i32::MAX));
    let rounded = format!("{digits}e{exponent}");
    if exponent < -4 || exponent >= most {
        return exponential(&rounded);
    }
    rounded.parse::<f64>().map_or(rounded, |number| number.to_string())
}

/// With a sign and two digits at least in the exponent.
fn exponential(text: &str) -> String {
    match text.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(format: &str, values: &str) -> String {
        let values = crate::rego::value::read(values).unwrap();
        match sprintf(&[format.into(), values]) {
            Ok(Value::String(text)) => text.to_string(),
            other => panic!("{format}: {other:?}"),
        }
    }

    #[test]
    fn texts_are_as_go_writes_them() {
        for (format, values, expected) in [
            ("", "[]", ""),
            ("100%% of %v", "[7]", "100% of 7"),
            ("%v|%s|%d", r#"["a", "b", 3]"#, "a|b|3"),
            ("%.2f|%8.3f|%f", "[3.14159, 2.5, 4]", "3.14|   2.500|4.000000"),
            ("%5.2f|%-8.1f|%08.2f", "[1.005, 1.5, -1.5]", " 1.00|1.5     |-0001.50"),
            ("%5d|%-5d|%05d|%+d|% d", "[42, 42, -42, 42, 42]", "   42|42   |-0042|+42| 42"),
            ("%10s|%-10s|%.2s|%q", r#"["ab", "ab", "abc", "a\"b"]"#, "        ab|ab        |ab|\"a\\\"b\""),
            ("%x|%X|%#x|%o|%b|%x", r#"[255, 255, 255, 8, 5, "hi"]"#, "ff|FF|0xff|10|101|6869"),
            ("%c|%U|%q", "[65, 65, 65]", "A|U+0041|'A'"),
            ("%e|%g|%v|%v|%.3g", "[1234.5, 1e-7, 1.5, 1e300, 1234.5]", "1.234500e+03|1e-07|1.5|1e+300|1.23e+03"),
            ("%T %T %T %T", r#"["a", 1, 1.5, []]"#, "string int64 float64 string"),
            ("%v %v %v %#v", r#"[{"a": [1, "b"]}, null, true, "x"]"#, r#"{"a": [1, "b"]} null true "x""#),
            ("%v", "[9007199254740993]", "9007199254740993"),
            ("%v and %s", "[1]", "1 and %!s(MISSING)"),
            ("none", r#"[1, "a"]"#, "none%!(EXTRA int64=1, string=a)"),
            (
                "%d|%d|%t|%s|%z",
                r#"["x", 1.5, true, 5, 5]"#,
                "%!d(string=x)|%!d(float64=1.5)|%!t(string=true)|%!s(int64=5)|%!z(int64=5)",
            ),
            ("dangling %", "[]", "dangling %!(NOVERB)"),
            ("%-3", "[]", "%!(NOVERB)"),
            ("%[2]s %[1]s|%[1]s %s", r#"["a", "b"]"#, "b a|a b"),
            ("%[3]s|%[x]s|%[1]5d|%[1", "[1, 2]", "%!s(BADINDEX)|%!s(BADINDEX)|%!d(BADINDEX)|%!(NOVERB)"),
            ("%*d|%-*d|%*d|%.*f", "[3, 1, 3, 1, -3, 1, 2, 1.005]", "  1|1  |1  |1.00"),
            ("%*d|%[1]*d", r#"["a", 1]"#, "%!(BADWIDTH)1|%!(BADWIDTH)1"),
            ("%#q %#v", r#"["a", "b"]"#, r#"`a` "b""#),
        ] {
            assert_eq!(formatted(format, values), expected, "{format}");
        }
        assert_eq!(formatted("%99999999999d", "[1]").len(), MAX_WIDTH);
        assert_eq!(formatted("%.99999999999f", "[1.5]").len(), MAX_WIDTH + 2);
    }
}
