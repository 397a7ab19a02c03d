//! What each format asks of a text.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use cel::{Context, Env, Program};
use proviso_core::names;

use super::super::url::is_url;

/// The functions of CEL itself: built once, because that costs more than an evaluation.
static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A format; the check's error says what is wrong.
pub(super) struct Checked {
    pub name: &'static str,
    pub check: fn(&str) -> Result<(), String>,
}

pub(super) const FORMATS: &[Checked] = &[
    Checked { name: "dns1123Label", check: |text| label(text, 63) },
    Checked { name: "dns1123Subdomain", check: subdomain },
    Checked { name: "dns1035Label", check: |text| old_label(text) },
    Checked { name: "dns1123LabelPrefix", check: |text| label(&without_dash(text), 63) },
    Checked { name: "dns1123SubdomainPrefix", check: |text| subdomain(&without_dash(text)) },
    Checked { name: "dns1035LabelPrefix", check: |text| old_label(&without_dash(text)) },
    Checked { name: "qualifiedName", check: qualified_name },
    Checked { name: "labelValue", check: |text| if text.is_empty() { Ok(()) } else { name(text) } },
    Checked { name: "uri", check: |text| told(is_url(text), "must be a valid URI") },
    Checked { name: "uuid", check: uuid },
    Checked {
        name: "byte",
        check: |text| {
            let is_base64 = base64::engine::general_purpose::STANDARD.decode(text).is_ok();
            told(is_base64, "must be base64")
        },
    },
    Checked { name: "date", check: |text| told(is_date(text), "must be a date such as 2006-01-02") },
    Checked { name: "datetime", check: date_time },
];

fn told(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

/// A name that the server puts something behind may end with a dash.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => text.to_owned(),
    }
}

fn label(text: &str, most: usize) -> Result<(), String> {
    told(text.len() <= most, &format!("must be no more than {most} characters"))?;
    told(
        names::is_dns_label(text),
        "must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
    )
}

fn old_label(text: &str) -> Result<(), String> {
    told(text.starts_with(|first: char| first.is_ascii_lowercase()), "must start with a lower case letter")?;
    label(text, 63)
}

fn subdomain(text: &str) -> Result<(), String> {
    told(text.len() <= 253, "must be no more than 253 characters")?;
    text.split('.').try_for_each(|part| label(part, 253))
}

/// A name with a DNS subdomain and a slash before it, or without.
fn qualified_name(text: &str) -> Result<(), String> {
    match text.split_once('/') {
        Some((prefix, rest)) => subdomain(prefix).map_err(|why| format!("the prefix {why}")).and_then(|()| name(rest)),
        None => name(text),
    }
}

fn name(text: &str) -> Result<(), String> {
    told(text.len() <= 63, "must be no more than 63 characters")?;
    told(
        names::is_name(text),
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    )
}

/// With dashes or without, in letters of either size.
fn uuid(text: &str) -> Result<(), String> {
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    let is_uuid =
        (lengths == [8, 4, 4, 4, 12] && text.split('-').all(is_digits)) || (text.len() == 32 && is_digits(text));
    told(is_uuid, "must be a UUID")
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let number = |part: &str, length: usize| {
        let is_number = part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { part.parse::<u32>().ok() } else { None }
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// RFC 3339, as CEL's own `timestamp` reads it.
fn date_time(text: &str) -> Result<(), String> {
    let is_date_time = text.get(..10).is_some_and(is_date) && {
        let mut context = Context::with_env(Arc::clone(&STANDARD));
        context.add_variable_from_value("text", text);
        Program::compile("timestamp(text)").is_ok_and(|program| program.execute(&context).is_ok())
    };
    told(is_date_time, "must be a date and time such as 2006-01-02T15:04:05Z")
}
