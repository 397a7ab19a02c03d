//! List filters, a subset of AIP-160: fields are compared by `=`, `!=` and `:`, times and numbers also by `<`, `<=`, `>` and `>=`.
//! Comparisons are joined by AND, OR and NOT. OR binds closer than AND, as in AIP-160.

mod parser;

use std::cmp::Ordering;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// A field that a list can be filtered by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// The path of the field in camel case, with dots.
    pub path: &'static str,
    pub kind: Kind,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    Flag,
    /// A text with these possible values.
    Enum(&'static [&'static str]),
    /// A text that is a time (RFC 3339).
    Time,
    Number,
    /// A map from keys to texts. A filter appends the key to the path of the field.
    Map,
}

/// A parsed filter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Test(Vec<String>, Pattern),
    Compare(Vec<String>, Comparison, Operand),
}

/// A comparison of a value with an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

/// The value that a time or a number is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Time(Timestamp),
    Number(f64),
}

/// The pattern that a value is compared with. A `*` at the start or end matches any text. The pattern `*` matches any value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern(String);

impl Filter {
    /// Returns true if this resource, in its JSON form, matches the filter.
    pub(crate) fn matches(&self, resource: &Value) -> bool {
        match self {
            Self::And(all) => all.iter().all(|one| one.matches(resource)),
            Self::Or(any) => any.iter().any(|one| one.matches(resource)),
            Self::Not(one) => !one.matches(resource),
            Self::Test(path, pattern) => value_at(resource, path).is_some_and(|value| pattern.matches(value)),
            Self::Compare(path, comparison, operand) => {
                let ordering = value_at(resource, path).and_then(|value| operand.order(value));
                ordering.is_some_and(|ordering| comparison.holds(ordering))
            }
        }
    }
}

fn value_at<'a>(resource: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(resource, |value, key| value.get(key))
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Equal => ordering.is_eq(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Greater => ordering.is_gt(),
        }
    }
}

impl Operand {
    /// Returns the order of `value` relative to the operand. `None` means that the value has another type.
    fn order(&self, value: &Value) -> Option<Ordering> {
        match self {
            Self::Time(time) => Some(value.as_str()?.parse::<Timestamp>().ok()?.cmp(time)),
            Self::Number(number) => value.as_f64()?.partial_cmp(number),
        }
    }
}

impl Pattern {
    fn matches(&self, value: &Value) -> bool {
        let text = match value {
            Value::Null => return false,
            Value::Bool(flag) => flag.to_string(),
            Value::String(text) => text.clone(),
            // Messages and maps can only be tested for presence.
            _ => return self.0 == "*",
        };
        match (self.0.strip_prefix('*'), self.0.strip_suffix('*')) {
            (Some(_), Some(_)) if self.0.len() == 1 => true,
            (Some(_), Some(_)) => text.contains(self.0.trim_start_matches('*').trim_end_matches('*')),
            (Some(end), None) => text.ends_with(end),
            (None, Some(start)) => text.starts_with(start),
            (None, None) => text == self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const FIELDS: &[Field] = &[
        Field { path: "name", kind: Kind::Text },
        Field { path: "etag", kind: Kind::Text },
        Field { path: "autoStart", kind: Kind::Flag },
        Field { path: "annotations", kind: Kind::Map },
        Field { path: "previewMetadata.state", kind: Kind::Enum(&["ACTIVE", "SUSPENDED"]) },
        Field { path: "previewMetadata.startTime", kind: Kind::Time },
        Field { path: "previewMetadata.stopTime", kind: Kind::Time },
        Field { path: "previewMetadata.generation", kind: Kind::Number },
    ];

    fn matches(filter: &str) -> bool {
        let resource = json!({
            "name": "policies/cluster.a/experiments/tight", "etag": "\"4f\"", "autoStart": true,
            "annotations": {"owner": "team a", "example.com/ticket": "7"},
            "previewMetadata": {"state": "ACTIVE", "startTime": "2026-11-20T09:14:07Z", "generation": 2},
        });
        Filter::parse(filter, FIELDS).unwrap().is_none_or(|filter| filter.matches(&resource))
    }

    #[test]
    fn the_examples_of_aip_236_and_aip_160_are_evaluated() {
        for (filter, wanted) in [
            ("", true),
            ("preview_metadata.state = ACTIVE", true),
            ("previewMetadata.state=ACTIVE", true),
            ("preview_metadata.state = SUSPENDED", false),
            ("preview_metadata.state != ACTIVE", false),
            ("preview_metadata:*", true),
            ("NOT preview_metadata.state = SUSPENDED", true),
            ("-preview_metadata.state = ACTIVE", false),
            ("name = \"policies/cluster.a/experiments/tight\"", true),
            ("name = \"*/tight\"", true),
            ("name = 'policies/*'", true),
            ("name = *experiments*", true),
            ("name = tight", false),
            ("annotations.owner = \"team a\"", true),
            ("annotations.owner = \"team b\"", false),
            ("annotations:owner", true),
            ("annotations:\"example.com/ticket\"", true),
            ("annotations.example.com/ticket = 7", true),
            ("annotations.\"example.com/ticket\":7", true),
            ("annotations:nobody", false),
            ("annotations.nobody != x", true),
            ("etag = \"\\\"4f\\\"\"", true),
            ("auto_start = true", true),
            ("autoStart:false", false),
            ("name:* AND preview_metadata.state = ACTIVE", true),
            ("name = x OR preview_metadata.state = ACTIVE", true),
            ("name = x preview_metadata.state = ACTIVE", false),
            // OR binds closer than AND.
            ("name = x AND name = x OR name:*", false),
            ("(name = x AND name = x) OR name:*", true),
            ("NOT (name = x OR etag = y)", true),
        ] {
            assert_eq!(matches(filter), wanted, "{filter}");
        }
    }

    #[test]
    fn times_and_numbers_are_compared_by_their_values() {
        for (filter, wanted) in [
            ("previewMetadata.startTime >= \"2026-11-20T09:14:07Z\"", true),
            ("preview_metadata.start_time >= \"2026-11-20T09:14:08Z\"", false),
            ("preview_metadata.start_time > \"2026-11-20T09:14:07Z\"", false),
            ("preview_metadata.start_time<'2026-11-21T00:00:00Z'", true),
            ("preview_metadata.start_time <= \"2026-11-20T09:14:07Z\"", true),
            // The same instant in another time zone.
            ("preview_metadata.start_time = \"2026-11-20T10:14:07+01:00\"", true),
            ("preview_metadata.start_time != \"2026-11-20T10:14:07+01:00\"", false),
            ("preview_metadata.start_time > 2026-11-20T09:14:06Z AND name:*", true),
            ("preview_metadata.start_time:*", true),
            // A missing field is neither before nor after a time.
            ("preview_metadata.stop_time < \"2027-01-01T00:00:00Z\"", false),
            ("preview_metadata.stop_time > \"2001-01-01T00:00:00Z\"", false),
            ("preview_metadata.stop_time:*", false),
            ("NOT preview_metadata.stop_time:*", true),
            ("preview_metadata.generation = 2", true),
            ("preview_metadata.generation >= 3", false),
            ("preview_metadata.generation > -1 preview_metadata.generation < 2.5", true),
            ("preview_metadata.generation != 2", false),
        ] {
            assert_eq!(matches(filter), wanted, "{filter}");
        }
    }

    #[test]
    fn an_invalid_filter_is_refused_with_its_position() {
        for (filter, wanted) in [
            ("name", "at character 5: a comparison"),
            ("name =", "at character 7: a value is missing"),
            ("name > x", "at character 6: only =, != and :"),
            ("preview_metadata.state >= ACTIVE", "at character 24: only =, != and :"),
            ("preview_metadata.start_time > yesterday", "at character 31: is not a time such as"),
            ("preview_metadata.start_time > *", "at character 31: is not a time such as"),
            ("preview_metadata.generation > two", "at character 31: is not a number"),
            ("preview_metadata.generation < NaN", "at character 31: is not a number"),
            ("preview_metadata > 1", "at character 1: there is no field"),
            ("size = 3", "at character 1: there is no field"),
            ("preview_metadata.state = ON", "at character 26: is none of ACTIVE, SUSPENDED"),
            ("auto_start = yes", "at character 14: is neither true nor false"),
            ("(name = x", "at character 10: a closing parenthesis"),
            ("name = x)", "at character 9: a closing parenthesis has no opening one"),
            ("name = \"x", "at character 8: the quotes are not closed"),
            ("name = x AND", "at character 13: a field"),
            ("äö = x", "at character 1: there is no field"),
            ("annotations = x", "at character 1: names a map"),
        ] {
            let error = Filter::parse(filter, FIELDS).unwrap_err();
            assert_eq!(error.http(), 400);
            assert!(error.message.contains(wanted), "{filter}: {error}");
        }
        for bomb in ["(".repeat(2000), "NOT ".repeat(1000), "-".repeat(4000)] {
            assert!(Filter::parse(&bomb, FIELDS).unwrap_err().message.contains("too deep"));
        }
    }

    proptest! {
        #[test]
        fn parsing_and_matching_a_filter_never_panics(filter in ".{0,60}", words in "(name|annotations|previewMetadata\\.startTime|AND|OR|NOT|-|=|!=|>=|<|:|\\*|\"|'|\\(|\\)|\\\\|\\.| |ä|7){0,20}") {
            for filter in [filter, words] {
                if let Ok(Some(filter)) = Filter::parse(&filter, FIELDS) {
                    filter.matches(&json!({"name": "a", "annotations": {"b": "c"}, "previewMetadata": {"startTime": 1}}));
                }
            }
        }

        #[test]
        fn a_quoted_text_matches_only_itself(text in "[^*]{0,20}") {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            let filter = Filter::parse(&format!("name = \"{quoted}\""), FIELDS).unwrap().unwrap();
            let same = json!({"name": text});
            prop_assert!(filter.matches(&same));
            let other = json!({"name": format!("{text}x")});
            prop_assert!(!filter.matches(&other));
        }
    }
}
