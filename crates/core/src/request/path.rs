//! Paths of fields in a payload. A path is written with dots, or as a JSON Pointer (RFC 6901). See ADR 30.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::limits::MAX_NESTING;

/// The path of a field: the keys and list indices from the root of the payload.
///
/// Two notations are read. With dots: `network.vlan`, `disks.0.size`, and a backslash before a dot that belongs to a key:
/// `metadata.labels.app\.kubernetes\.io/name`. As a JSON Pointer, if the text begins with `/`: `/disks/0/size`. The empty text is
/// the whole payload. A number is an index in a list, and a key in an object. The first notation is written, unless a key is
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<String>);

/// The error of a text that is not a field path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    #[error(
        "the field path {0:?} has an empty key between dots; an empty key can only be written as a JSON Pointer, such as /a//b"
    )]
    EmptyKey(String),
    #[error("the field path {0:?} ends with a backslash; a backslash precedes the character that belongs to a key")]
    DanglingEscape(String),
    #[error(
        "the field path {path:?} has {character:?}: write list indices as keys, such as disks.0.size; to constrain every item of a list, constrain the list with the keyword `items`; for a key that has this character, write \\{character}"
    )]
    Unsupported { path: String, character: char },
    #[error(
        "the field path {0:?} is not a JSON Pointer: `~` is followed by 0 or 1 (RFC 6901); for a key that begins with a slash, write \\/"
    )]
    Pointer(String),
    #[error("the field path {0:?} has more than {MAX_NESTING} keys")]
    TooDeep(String),
}

/// The value of a field in a payload.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Located<'a> {
    Present(&'a Value),
    /// The field, or one of its parents, does not exist or is null.
    Absent,
    /// A parent of the field exists, and cannot have the field: it is neither an object, nor a list with this index.
    Misplaced {
        parent: FieldPath,
        kind: &'static str,
    },
}

impl FieldPath {
    /// Returns the path of the whole payload.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the keys and list indices of the path.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    /// Returns the memory of the path, in bytes.
    pub(super) fn size(&self) -> usize {
        self.0.iter().map(|key| key.len() + size_of::<String>()).sum()
    }

    pub(super) fn from_keys(keys: &[String]) -> Self {
        Self(keys.to_vec())
    }

    /// Returns the path of a child of this field.
    #[must_use]
    pub fn child(&self, key: impl Into<String>) -> Self {
        let mut keys = self.0.clone();
        keys.push(key.into());
        Self(keys)
    }

    /// Returns true if the field is `other`, or within it.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns the path as a JSON Pointer.
    #[must_use]
    pub fn to_pointer(&self) -> String {
        self.0.iter().flat_map(|key| ["/".to_owned(), key.replace('~', "~0").replace('/', "~1")]).collect()
    }

    /// Returns the path of a value that is at the JSON Pointer `pointer` within this field.
    pub(super) fn join_pointer(&self, pointer: &str) -> Self {
        let below = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
        Self(self.0.iter().cloned().chain(below).collect())
    }

    pub(super) fn push(&mut self, key: &str) {
        self.0.push(key.to_owned());
    }

    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// Finds the field in a payload.
    pub(super) fn locate<'a>(&self, payload: &'a Value) -> Located<'a> {
        let mut value = payload;
        for (depth, key) in self.0.iter().enumerate() {
            let child = match value {
                Value::Object(members) => members.get(key),
                Value::Array(items) => match list_index(key) {
                    Some(index) => items.get(index),
                    None => return self.misplaced(depth, value),
                },
                Value::Null => None,
                _ => return self.misplaced(depth, value),
            };
            match child {
                Some(child) => value = child,
                None => return Located::Absent,
            }
        }
        Located::Present(value)
    }

    fn misplaced<'a>(&self, depth: usize, parent: &Value) -> Located<'a> {
        Located::Misplaced { parent: Self(self.0[..depth].to_vec()), kind: kind_of(parent) }
    }

    fn parse_dots(text: &str) -> Result<Self, FieldPathError> {
        let mut keys = vec![String::new()];
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let key = match character {
                '.' => {
                    keys.push(String::new());
                    continue;
                }
                '\\' => characters.next().ok_or_else(|| FieldPathError::DanglingEscape(shorten(text)))?,
                '[' | ']' | '*' => return Err(FieldPathError::Unsupported { path: shorten(text), character }),
                _ => character,
            };
            if let Some(last) = keys.last_mut() {
                last.push(key);
            }
        }
        if keys.iter().any(String::is_empty) {
            return Err(FieldPathError::EmptyKey(shorten(text)));
        }
        Ok(Self(keys))
    }

    fn parse_pointer(text: &str) -> Result<Self, FieldPathError> {
        let unescape = |token: &str| {
            let is_valid = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            is_valid.then(|| token.replace("~1", "/").replace("~0", "~"))
        };
        let keys: Option<Vec<_>> = text.split('/').skip(1).map(unescape).collect();
        keys.map(Self).ok_or_else(|| FieldPathError::Pointer(shorten(text)))
    }
}

impl FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = match text {
            "" => Ok(Self::root()),
            _ if text.starts_with('/') => Self::parse_pointer(text),
            _ => Self::parse_dots(text),
        }?;
        if path.0.len() > MAX_NESTING { Err(FieldPathError::TooDeep(shorten(text))) } else { Ok(path) }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().any(String::is_empty) {
            return f.write_str(&self.to_pointer());
        }
        for (depth, key) in self.0.iter().enumerate() {
            if depth > 0 {
                f.write_str(".")?;
            }
            for (position, character) in key.chars().enumerate() {
                let begins_a_pointer = character == '/' && depth == 0 && position == 0;
                if begins_a_pointer || matches!(character, '.' | '\\' | '[' | ']' | '*') {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses an index of a list: digits without a leading zero (RFC 6901).
pub(super) fn list_index(key: &str) -> Option<usize> {
    let is_canonical = key == "0" || !key.starts_with('0');
    let has_digits_only = key.bytes().all(|byte| byte.is_ascii_digit());
    (is_canonical && has_digits_only).then(|| key.parse().ok())?
}

/// Returns the JSON type of a value, with its article, for people.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the beginning of a text from a policy, for an error message.
pub(super) fn shorten(text: &str) -> String {
    const MAX_CHARACTERS: usize = 200;
    let mut characters = text.chars();
    let mut beginning: String = characters.by_ref().take(MAX_CHARACTERS).collect();
    if characters.next().is_some() {
        beginning.push('…');
    }
    beginning
}
