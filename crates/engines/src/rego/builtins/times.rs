//! Builtins for times that Go's `time` package parses and computes differently from the library that regorus uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use regorus::Value;

use super::call::call;
use super::functions::Function;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[
    ("time.add_date", 4, |values| Ok(add_date(values).unwrap_or(Value::Undefined))),
    ("time.format", 1, format_time),
    ("time.parse_duration_ns", 1, parse_duration),
    ("time.parse_ns", 2, parse_time),
    ("time.parse_rfc3339_ns", 1, parse_rfc3339),
];

const DAY: i64 = 86_400;
const NANOSECONDS: i64 = 1_000_000_000;

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) if number.is_integer() => number.as_i64(),
        _ => None,
    }
}

/// `time.add_date`. As in Go, a day beyond the end of the month is a day of the next month.
fn add_date(values: &[Value]) -> Option<Value> {
    let [time, years, months, days] = values else { return None };
    let small = |value: &Value| integer(value).and_then(|number| i32::try_from(number).ok()).map(i64::from);
    let (years, months, days) = (small(years)?, small(months)?, small(days)?);
    let nanoseconds = match time {
        Value::Array(parts) => integer(parts.first()?)?,
        other => integer(other)?,
    };
    let seconds = nanoseconds.div_euclid(NANOSECONDS);
    let [year, month, day] = three_integers(&call("time.date", std::slice::from_ref(time)).ok()?)?;
    let clock = seconds_of_day(time)?;
    let months = month - 1 + months;
    let first = days_before(year + years + months.div_euclid(12), months.rem_euclid(12) + 1);
    let local = (first + day - 1 + days) * DAY + clock;
    // The offset of the zone may be different on that day.
    let offset = (days_before(year, month) + day - 1) * DAY + clock - seconds;
    let offset = match time {
        Value::Array(parts) if parts.len() > 1 => offset_at(local - offset, parts.get(1)?)?,
        _ => offset,
    };
    let sum = i128::from(local - offset) * i128::from(NANOSECONDS) + i128::from(nanoseconds.rem_euclid(NANOSECONDS));
    i64::try_from(sum).ok().map(Value::from)
}

/// Returns the offset of a zone from UTC in seconds, at a Unix time.
fn offset_at(seconds: i64, zone: &Value) -> Option<i64> {
    let time = Value::from(vec![seconds.checked_mul(NANOSECONDS)?.into(), zone.clone()]);
    let [year, month, day] = three_integers(&call("time.date", std::slice::from_ref(&time)).ok()?)?;
    Some((days_before(year, month) + day - 1) * DAY + seconds_of_day(&time)? - seconds)
}

fn seconds_of_day(time: &Value) -> Option<i64> {
    let [hours, minutes, seconds] = three_integers(&call("time.clock", std::slice::from_ref(time)).ok()?)?;
    Some((hours * 60 + minutes) * 60 + seconds)
}

fn three_integers(value: &Value) -> Option<[i64; 3]> {
    let Value::Array(items) = value else { return None };
    items.iter().map(integer).collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// Returns the number of days from 1970 to the first day of a month. The computation begins the year in March, so that a leap
/// day is the last day of a year.
fn days_before(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let in_year = (153 * ((month + 9) % 12) + 2) / 5;
    365 * year + leap_days + in_year - 719_468
}

/// Returns the layout for the name of a layout that contains the abbreviation of a zone. Other names are returned unchanged.
fn layout(name: &str) -> &str {
    match name {
        "UnixDate" => "Mon Jan _2 15:04:05 MST 2006",
        "RFC822" => "02 Jan 06 15:04 MST",
        "RFC850" => "Monday, 02-Jan-06 15:04:05 MST",
        "RFC1123" => "Mon, 02 Jan 2006 15:04:05 MST",
        other => other,
    }
}

fn format_time(values: &[Value]) -> Result<Value, String> {
    let Some(Value::Array(parts)) = values.first() else { return call("time.format", values) };
    let (Some(zone), Some(Value::String(written))) = (parts.get(1), parts.get(2)) else {
        return call("time.format", values);
    };
    let layout = layout(written);
    if !layout.contains("MST") {
        return call("time.format", values);
    }
    if !["UTC", ""].map(Value::from).contains(zone) {
        return Err(format!("the name of the zone {zone} is not known: use -07:00 in the layout"));
    }
    let parts: Vec<Value> = vec![parts[0].clone(), zone.clone(), layout.replace("MST", "UTC").into()];
    call("time.format", &[parts.into()])
}

/// `time.parse_ns`. As in Go, a zone that is given only by an abbreviation has the offset of UTC.
fn parse_time(values: &[Value]) -> Result<Value, String> {
    let [Value::String(written), Value::String(text)] = values else { return Ok(Value::Undefined) };
    let layout = layout(written);
    if !layout.contains("MST") {
        return call("time.parse_ns", values);
    }
    let is_zone = |word: &&str| {
        let upper = word.bytes().all(|byte| byte.is_ascii_uppercase());
        upper && (word.len() == 3 || (matches!(word.len(), 4 | 5) && word.ends_with('T')))
    };
    let words: BTreeSet<&str> =
        text.split(|character: char| !character.is_ascii_alphanumeric()).filter(is_zone).collect();
    match words.into_iter().collect::<Vec<_>>()[..] {
        [zone]
            if text.matches(zone).count() == 1
                && !text.contains(&format!("{zone}+"))
                && !text.contains(&format!("{zone}-")) =>
        {
            let values = [layout.replace("MST", "-0700"), text.replace(zone, "+0000")].map(Value::from);
            call("time.parse_ns", &values)
        }
        _ => Err(format!("the zone in {text:?} cannot be read: use a numeric zone such as -07:00")),
    }
}

/// `time.parse_duration_ns`. OPA adds the units `d`, `w` and `y` to Go's: 24 hours, 7 days and 365 days.
fn parse_duration(values: &[Value]) -> Result<Value, String> {
    let Some(Value::String(text)) = values.first() else { return Ok(Value::Undefined) };
    let mut out = String::new();
    let mut number = String::new();
    for character in text.chars() {
        if character.is_ascii_digit() || character == '.' {
            number.push(character);
            continue;
        }
        let hours = match character {
            'd' => 24.0,
            'w' => 168.0,
            'y' => 8760.0,
            _ => 0.0,
        };
        match number.parse::<f64>() {
            Ok(count) if hours > 0.0 => _ = write!(out, "{}h", count * hours),
            _ => {
                out += &number;
                out.push(character);
            }
        }
        number.clear();
    }
    call("time.parse_duration_ns", &[(out + &number).into()])
}

/// `time.parse_rfc3339_ns`. Go allows no spaces, lower case letters or leap seconds, but a comma before the fraction.
fn parse_rfc3339(values: &[Value]) -> Result<Value, String> {
    let Some(Value::String(text)) = values.first() else { return Ok(Value::Undefined) };
    let strict = text.as_bytes().get(10) == Some(&b'T') && !text.ends_with('z') && text.get(17..19) != Some("60");
    if !strict {
        return Ok(Value::Undefined);
    }
    call("time.parse_rfc3339_ns", &[text.replacen(',', ".", 1).into()])
}
