//! Parses quantities: a decimal number with an optional suffix among `n u m k M G T P E` and `Ki Mi Gi Ti Pi Ei`, or an exponent
//! such as `e3`. Kubernetes rounds to billionths, away from zero, and limits quantities with a binary suffix to 2^63-1. The limit
//! of the others here is about 10^29.

/// The billionths of one: the precision of a quantity.
pub(super) const NANO: i128 = 1_000_000_000;
/// The largest quantity with a binary suffix.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;

pub(super) fn parse(source: &str) -> Result<i128, String> {
    let refuse = || format!("{source:?} is not a quantity such as 500m, 2 or 1Gi");
    let (negative, unsigned) = match source.as_bytes().first() {
        Some(b'-') => (true, &source[1..]),
        Some(b'+') => (false, &source[1..]),
        _ => (false, source),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || whole.len() + fraction.len() == 0 {
        return Err(refuse());
    }
    let (binary, decimal) = scale(suffix).ok_or_else(refuse)?;
    let largest = if binary > 0 { MAX_BINARY } else { i128::MAX };
    let amount = amount(whole, fraction, binary, decimal).unwrap_or(largest).min(largest);
    Ok(if negative { -amount } else { amount })
}

/// Returns the powers of two and of ten that a suffix stands for.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => {
            let exponent = exponent.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // A smaller exponent gives the smallest quantity, a larger one is above the limit.
            (
                0,
                exponent
                    .parse::<i32>()
                    .unwrap_or(if exponent.starts_with('-') { -1000 } else { 1000 })
                    .clamp(-1000, 1000),
            )
        }
    })
}

/// Returns the quantity in billionths; `None` if it is above the range of an `i128`.
fn amount(whole: &str, fraction: &str, binary: u32, decimal: i32) -> Option<i128> {
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    // The value is digits × 10^power, in billionths.
    let mut power = decimal + 9 - i32::try_from(fraction.len()).ok()?;
    // The digits after the first 30 can only round the value up.
    let kept = digits.len().min(30);
    let mut lost = digits[kept..].bytes().any(|digit| digit != b'0');
    power += i32::try_from(digits.len() - kept).ok()?;
    let mut value: i128 = if kept == 0 { return Some(0) } else { digits[..kept].parse().ok()? };
    // The value is divided by ten before it is doubled, if the product of both powers would overflow.
    let mut binary = binary;
    while power > 0 {
        value = value.checked_mul(10)?;
        power -= 1;
    }
    while binary > 0 {
        match value.checked_mul(2) {
            Some(doubled) => value = doubled,
            None if power < 0 => {
                lost |= value % 10 != 0;
                value = value / 10 * 2;
                power += 1;
            }
            None => return None,
        }
        binary -= 1;
    }
    while power < 0 {
        lost |= value % 10 != 0;
        value /= 10;
        power += 1;
    }
    value.checked_add(lost.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_the_same_value_as_in_kubernetes() {
        for (source, billionths) in [
            ("0", 0),
            ("1", NANO),
            ("-1.5", -3 * NANO / 2),
            ("+.5", NANO / 2),
            ("5.", 5 * NANO),
            ("500m", NANO / 2),
            ("1n", 1),
            ("0.1n", 1),
            ("-0.1n", -1),
            ("1.0000000001", NANO + 1),
            ("1Ki", 1024 * NANO),
            ("1.5Gi", 1536 * 1024 * 1024 * NANO),
            ("1e3", 1000 * NANO),
            ("1E-3", NANO / 1000),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("10Ei", MAX_BINARY),
            ("10E", 10_000_000_000_000_000_000 * NANO),
            ("1e100", i128::MAX),
            ("-1e100", -i128::MAX),
            ("1e-100", 1),
            ("0000000000000000000000000000000000000000000012", 12 * NANO),
        ] {
            assert_eq!(parse(source), Ok(billionths), "{source}");
        }
        for source in [
            "", "-", ".", "1.1.1", "1 ", " 1", "1K", "1ki", "1mi", "Gi", "1e", "1e+", "--1", "1Gii", "200Z", "e3",
            "1e1.5", "١",
        ] {
            assert!(parse(source).is_err(), "{source}");
        }
    }
}
