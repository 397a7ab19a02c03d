//! The checks of the named formats.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use cel::{Context, Env, Program};
use proviso_core::names;

use super::super::url::is_url;

/// The standard library of CEL. It is built once, because that takes longer than an evaluation.
static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A named format.
pub(super) struct NamedFormat {
    pub name: &'static str,
    /// The check of a string. Its error is the message for the user.
    pub check: fn(&str) -> Result<(), String>,
}

pub(super) const FORMATS: &[NamedFormat] = &[
    NamedFormat { name: "dns1123Label", check: |text| label(text, 63) },
    NamedFormat { name: "dns1123Subdomain", check: subdomain },
    NamedFormat { name: "dns1035Label", check: |text| dns1035_label(text) },
    NamedFormat { name: "dns1123LabelPrefix", check: |text| label(&replace_trailing_dash(text), 63) },
    NamedFormat { name: "dns1123SubdomainPrefix", check: |text| subdomain(&replace_trailing_dash(text)) },
    NamedFormat { name: "dns1035LabelPrefix", check: |text| dns1035_label(&replace_trailing_dash(text)) },
    NamedFormat { name: "qualifiedName", check: qualified_name },
    NamedFormat { name: "labelValue", check: |text| if text.is_empty() { Ok(()) } else { name(text) } },
    NamedFormat { name: "uri", check: |text| require(is_url(text), "must be a valid URI") },
    NamedFormat { name: "uuid", check: uuid },
    NamedFormat {
        name: "byte",
        check: |text| {
            let is_base64 = base64::engine::general_purpose::STANDARD.decode(text).is_ok();
            require(is_base64, "must be base64")
        },
    },
    NamedFormat { name: "date", check: |text| require(is_date(text), "must be a date such as 2006-01-02") },
    NamedFormat { name: "datetime", check: date_time },
];

fn require(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

/// Replaces a dash at the end by a letter. A prefix may end with a dash, because the API server appends a suffix
/// (`generateName`).
fn replace_trailing_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => text.to_owned(),
    }
}

fn label(text: &str, most: usize) -> Result<(), String> {
    require(text.len() <= most, &format!("must be no more than {most} characters"))?;
    require(
        names::is_dns_label(text),
        "must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
    )
}

fn dns1035_label(text: &str) -> Result<(), String> {
    require(text.starts_with(|first: char| first.is_ascii_lowercase()), "must start with a lower case letter")?;
    label(text, 63)
}

fn subdomain(text: &str) -> Result<(), String> {
    require(text.len() <= 253, "must be no more than 253 characters")?;
    text.split('.').try_for_each(|part| label(part, 253))
}

/// Checks a name with an optional prefix: a DNS subdomain and a slash.
fn qualified_name(text: &str) -> Result<(), String> {
    match text.split_once('/') {
        Some((prefix, rest)) => subdomain(prefix).map_err(|why| format!("the prefix {why}")).and_then(|()| name(rest)),
        None => name(text),
    }
}

fn name(text: &str) -> Result<(), String> {
    require(text.len() <= 63, "must be no more than 63 characters")?;
    require(
        names::is_name(text),
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    )
}

/// Checks a UUID with or without dashes, in upper or lower case.
fn uuid(text: &str) -> Result<(), String> {
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    let is_uuid =
        (lengths == [8, 4, 4, 4, 12] && text.split('-').all(is_digits)) || (text.len() == 32 && is_digits(text));
    require(is_uuid, "must be a UUID")
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

/// Checks a date and time in the format of RFC 3339, with CEL's `timestamp`.
fn date_time(text: &str) -> Result<(), String> {
    let is_date_time = text.get(..10).is_some_and(is_date) && {
        let mut context = Context::with_env(Arc::clone(&STANDARD));
        context.add_variable_from_value("text", text);
        Program::compile("timestamp(text)").is_ok_and(|program| program.execute(&context).is_ok())
    };
    require(is_date_time, "must be a date and time such as 2006-01-02T15:04:05Z")
}
