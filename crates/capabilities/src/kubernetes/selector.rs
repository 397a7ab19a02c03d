//! Label and field selectors in the syntax of `kubectl -l` and `--field-selector`.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector, SelectorExt as _};
use proviso_core::matching::labels;
use proviso_core::names;
use serde_json::Value;

use crate::error::HostCallError;

/// The maximum length of a selector, in bytes. Each term is compared with each object.
const MAX_SELECTOR: usize = 4 << 10;

/// Selects objects by labels and fields.
#[derive(Debug, Default)]
pub(crate) struct ObjectSelector {
    labels: Selector,
    /// The terms over `metadata.name` and `metadata.namespace`, which each kind supports: field, true for equality, value.
    names: Vec<(Field, bool, String)>,
    /// The field selector, if it has other fields. Only the API server knows the selectable fields of a kind.
    pub api_server_fields: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

impl ObjectSelector {
    /// Parses a label selector and a field selector.
    ///
    /// # Errors
    /// Returns [`HostCallError::Selector`] if a selector is too long or malformed.
    pub(crate) fn parse(labels: Option<&str>, fields: Option<&str>) -> Result<Self, HostCallError> {
        for (selector, text) in [("label_selector", labels), ("field_selector", fields)] {
            if let Some(text) = text.filter(|text| text.len() > MAX_SELECTOR) {
                let why = format!("it is longer than {MAX_SELECTOR} bytes");
                return Err(HostCallError::Selector { selector, text: text.chars().take(80).collect(), why });
            }
        }
        let labels = labels.unwrap_or_default();
        let failed = |why| HostCallError::Selector { selector: "label_selector", text: labels.to_owned(), why };
        let labels = expressions(labels).map_err(failed)?.into_iter().collect();
        let fields = fields.unwrap_or_default();
        let failed = |why| HostCallError::Selector { selector: "field_selector", text: fields.to_owned(), why };
        let mut parsed = Self { labels, ..Self::default() };
        for term in fields.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (path, is_equal, value) = comparison(term).ok_or_else(|| failed(format!("{term:?} has no `=`")))?;
            match path {
                "metadata.name" => parsed.names.push((Field::Name, is_equal, value.to_owned())),
                "metadata.namespace" => parsed.names.push((Field::Namespace, is_equal, value.to_owned())),
                _ => parsed.api_server_fields = Some(fields.to_owned()),
            }
        }
        Ok(parsed)
    }

    /// Returns true if the labels, the name and the namespace of the object match. Other fields are not checked.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let is_named = self.names.iter().all(|(field, is_equal, value)| {
            let name = if *field == Field::Name { "name" } else { "namespace" };
            (metadata[name].as_str().unwrap_or_default() == value) == *is_equal
        });
        is_named && (self.labels.selects_all() || self.labels.matches(&labels(metadata)))
    }
}

/// Parses `a=b`, `a==b` and `a!=b` into path, true for equality, and value.
fn comparison(term: &str) -> Option<(&str, bool, &str)> {
    let (path, value) = term.split_once('=')?;
    let (path, is_equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
    Some((path.trim(), is_equal, value.strip_prefix('=').unwrap_or(value).trim()))
}

fn expressions(text: &str) -> Result<Vec<Expression>, String> {
    terms(text)?.into_iter().filter(|term| !term.is_empty()).map(expression).collect()
}

/// Splits a selector at the commas outside of parentheses.
fn terms(text: &str) -> Result<Vec<&str>, String> {
    let (mut terms, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err("its parentheses are not balanced".to_owned());
        }
    }
    if depth != 0 {
        return Err("a parenthesis is not closed".to_owned());
    }
    terms.push(text[start..].trim());
    Ok(terms)
}

fn expression(term: &str) -> Result<Expression, String> {
    if let Some((head, values)) = term.split_once('(') {
        let values =
            values.strip_suffix(')').ok_or_else(|| format!("{term:?} continues after its closing parenthesis"))?;
        let values: BTreeSet<String> = values.split(',').map(|text| value(text.trim())).collect::<Result<_, _>>()?;
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Expression::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(Expression::NotIn(key(name)?, values)),
            _ => Err(format!("{term:?} is neither `key in (…)` nor `key notin (…)`")),
        };
    }
    if let Some((name, is_equal, text)) = comparison(term) {
        let (name, value) = (key(name)?, value(text)?);
        return Ok(if is_equal { Expression::Equal(name, value) } else { Expression::NotEqual(name, value) });
    }
    match term.strip_prefix('!') {
        Some(name) => key(name.trim()).map(Expression::DoesNotExist),
        None => key(term).map(Expression::Exists),
    }
}

/// Parses a label key as the API server does: `name` or `prefix/name`, where the prefix is a DNS subdomain.
fn key(text: &str) -> Result<String, String> {
    if !names::is_key(text) {
        return Err(format!("{text:?} is not a label key: use `name` or `prefix/name`, with a name of {NAME}"));
    }
    Ok(text.to_owned())
}

/// Parses the value of a label.
fn value(text: &str) -> Result<String, String> {
    if !text.is_empty() && !names::is_name(text) {
        return Err(format!("{text:?} is not a label value: it must be empty, or {NAME}"));
    }
    Ok(text.to_owned())
}

const NAME: &str = "at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_match_objects_as_in_kubectl() {
        let object = json!({"metadata": {"name": "n", "namespace": "s", "labels": {"a": "b", "x.y/z": "1"}}});
        for (labels, fields, wanted) in [
            ("", "", true),
            ("a=b", "", true),
            ("a==b,x.y/z = 1", "", true),
            ("a!=b", "", false),
            ("missing!=b", "", true),
            ("missing!=,a!=", "", true),
            ("a in (,b)", "", true),
            ("a in (b, c)", "", true),
            ("a in (c)", "", false),
            ("a notin (c),a", "", true),
            ("missing notin (c)", "", true),
            ("!a", "", false),
            ("! missing", "", true),
            ("a,missing", "", false),
            ("", "metadata.name=n,metadata.namespace!=t", true),
            ("", "metadata.name==m", false),
            ("a=b", "metadata.name!=n", false),
        ] {
            let selector = ObjectSelector::parse(Some(labels), Some(fields)).unwrap();
            assert_eq!(
                (selector.matches(&object), selector.api_server_fields.is_none()),
                (wanted, true),
                "{labels:?} {fields:?}"
            );
        }
        let other = ObjectSelector::parse(None, Some("status.phase=Running,metadata.name=n")).unwrap();
        assert_eq!(other.api_server_fields.as_deref(), Some("status.phase=Running,metadata.name=n"));
    }

    #[test]
    fn a_malformed_selector_is_refused() {
        let long = "x".repeat(64);
        for text in [
            ["a in b", "a in (b", "a (b)", "a in (b)c", "in (b)", "a b", "=b", "!", "a)(", "a in ((b))", "ä=b"]
                .as_slice(),
            // Keys and values that are not valid in labels.
            &["a=b c", "a=b=c", "a=-b", "a!=b.", "a=ä", "a in (b c)", "a notin (b, /)", "a=\u{0}"],
            &["-a=b", "a/=b", "/a=b", "A/b=c", "a..b/c", "a/b/c", &format!("a={long}"), &long, "a>1"],
        ]
        .concat()
        {
            let error = ObjectSelector::parse(Some(text), None).unwrap_err().to_string();
            assert!(error.starts_with("the label_selector "), "{text}: {error}");
        }
        assert!(ObjectSelector::parse(None, Some("metadata.name")).is_err());
        assert!(
            ObjectSelector::parse(Some(&"!a,".repeat(2000)), None).unwrap_err().to_string().contains("longer than")
        );
    }
}
