//! The arguments of a format. OPA passes integers, floats and strings to Go.

use regorus::Value;

use crate::rego::builtins::call::call;

/// A value in the type that Go receives.
pub(super) enum Argument {
    /// The decimal digits with the sign.
    Integer(String),
    Float(f64),
    Text(String),
}

impl Argument {
    pub(super) fn new(value: &Value) -> Result<Self, String> {
        Ok(match value {
            // A large integer may be a float in regorus. Go does not write all digits of a float.
            Value::Number(number)
                if number.is_integer() && (number.as_i64().is_some() || number.as_f64().is_none()) =>
            {
                Self::Integer(number.format_decimal())
            }
            Value::Number(number) => Self::Float(number.as_f64().unwrap_or(f64::INFINITY)),
            Value::String(text) => Self::Text(text.to_string()),
            // Sets and objects in Rego's notation, which is not JSON.
            other => match call("sprintf", &["%v".into(), vec![other.clone()].into()])? {
                Value::String(text) => Self::Text(text.to_string()),
                _ => return Err("a value cannot be written".into()),
            },
        })
    }

    pub(super) fn name_of_type(&self) -> &'static str {
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

    pub(super) fn with_type(&self) -> String {
        format!("{}={}", self.name_of_type(), self.plain())
    }
}

/// Writes a number like Go's `%g`: with the fewest digits that identify it, and with an exponent if it is very large or small.
pub(super) fn general(number: f64, precision: Option<usize>) -> String {
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

/// Gives the exponent of a number a sign and at least two digits, like Go.
pub(super) fn exponential(text: &str) -> String {
    match text.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
        }
        _ => text.to_owned(),
    }
}
