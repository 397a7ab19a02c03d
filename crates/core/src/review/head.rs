//! The members of an `AdmissionRequest`. Small members are parsed; the objects stay text.

use std::fmt;
use std::ops::Range;

use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// The members of an `AdmissionRequest` that Proviso itself uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    /// The subresource; empty for the resource itself.
    pub sub_resource: String,
    /// The resource of the original request, if the API server converted it (`matchPolicy: Equivalent`).
    pub request_resource: Option<GroupVersionResource>,
    /// The name of the object; empty if the API server generates it.
    pub name: String,
    /// The namespace of the object; empty for cluster-scoped resources.
    pub namespace: String,
    /// The operation; `None` if the request has none.
    pub operation: Option<Operation>,
    pub user: UserInfo,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct GroupVersionResource {
    pub group: String,
    pub version: String,
    pub resource: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// The user who sent the request to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    pub username: String,
    /// The groups of the user; empty if they are null or missing.
    #[serde(deserialize_with = "null_as_default")]
    pub groups: Vec<String>,
}

fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The text in place of a message about a confidential object.
pub const REDACTED: &str = "(redacted: the request concerns a Secret or a token)";

impl Head {
    /// Returns true if the object of the request has credentials: a Secret, or a request for a token or about one. A message of a
    /// policy about such an object may contain a part of it, and must not be kept.
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        let is_confidential = |resource: &GroupVersionResource| match resource.group.as_str() {
            "" => {
                resource.resource == "secrets" || resource.resource == "serviceaccounts" && self.sub_resource == "token"
            }
            "authentication.k8s.io" => true,
            _ => false,
        };
        // A review without its resource, for example one that a person wrote, has at least its kind.
        std::iter::once(&self.resource).chain(&self.request_resource).any(is_confidential)
            || self.kind.group.is_empty() && self.kind.kind == "Secret"
            || self.kind.group == "authentication.k8s.io"
    }
}

/// One member of the request, as text.
pub(super) struct Span<'a> {
    /// The key with its quotes.
    pub key: &'a str,
    pub value: &'a str,
}

impl Span<'_> {
    pub(super) fn is_null(&self) -> bool {
        self.value == "null"
    }
}

pub(super) struct Members<'a> {
    /// The uid; empty if it is missing.
    pub uid: String,
    pub head: Head,
    pub object: Option<&'a str>,
    pub old_object: Option<&'a str>,
    pub spans: Vec<Span<'a>>,
}

impl Members<'_> {
    /// Returns the range of the request in its body, with its braces; `None` if the request has no members.
    pub(super) fn range(&self, body: &str) -> Option<Range<usize>> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        // Only whitespace is possible between a brace and the next member.
        let start = body[..range_of(body, first.key).start].rfind('{')?;
        let end = range_of(body, last.value).end;
        Some(start..end + body[end..].find('}')? + 1)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RequestVisitor)
    }
}

struct RequestVisitor;

impl<'de> Visitor<'de> for RequestVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object as `request`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // An AdmissionRequest has 15 members.
        let spans = Vec::with_capacity(16);
        let mut members = Members { uid: String::new(), head: Head::default(), object: None, old_object: None, spans };
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            members
                .add(Span { key: key.get(), value: value.get() })
                .map_err(|error: A::Error| de::Error::custom(format_args!("request: {error}")))?;
        }
        match find_duplicate(&members.spans) {
            Some(key) => Err(de::Error::custom(format_args!("request: duplicate member {key}"))),
            None => Ok(members),
        }
    }
}

impl<'a> Members<'a> {
    fn add<E: de::Error>(&mut self, member: Span<'a>) -> Result<(), E> {
        let Self { uid, head, .. } = self;
        let Span { key, value } = member;
        if !member.is_null() {
            match key.trim_matches('"') {
                "uid" => *uid = read(key, value)?,
                "kind" => head.kind = read(key, value)?,
                "resource" => head.resource = read(key, value)?,
                "subResource" => head.sub_resource = read(key, value)?,
                "requestResource" => head.request_resource = Some(read(key, value)?),
                "name" => head.name = read(key, value)?,
                "namespace" => head.namespace = read(key, value)?,
                "operation" => head.operation = Some(read(key, value)?),
                "userInfo" => head.user = read(key, value)?,
                "dryRun" => head.dry_run = read(key, value)?,
                "object" => self.object = Some(value),
                "oldObject" => self.old_object = Some(value),
                _ => {}
            }
        }
        // A key with escape sequences could be one of the members above without matching it here.
        if key.contains('\\') {
            return Err(de::Error::custom(format_args!("{key} is written with escapes")));
        }
        self.spans.push(member);
        Ok(())
    }
}

/// Returns a key that occurs more than once. Sorting avoids quadratic time on a body with a million members.
fn find_duplicate<'a>(members: &[Span<'a>]) -> Option<&'a str> {
    let mut keys: Vec<&str> = members.iter().map(|member| member.key).collect();
    keys.sort_unstable_by_key(|key| (key.len(), *key));
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn read<T: DeserializeOwned, E: de::Error>(key: &str, value: &str) -> Result<T, E> {
    serde_json::from_str(value).map_err(|error| E::custom(format_args!("{key}: {error}")))
}

/// Returns the range of `part` in `whole`. `part` must borrow from `whole`.
pub(super) fn range_of(whole: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Returns the string at `key` of a JSON object, without recursion; `None` if there is none.
pub(super) fn first_string(object: &str, key: &str) -> Option<String> {
    serde_json::from_str(first_raw(object, key)?.get()).ok()
}

/// Returns the first value at `key` of a JSON object, without recursion. The object may be malformed after that value.
pub(super) fn first_raw<'a>(object: &'a str, key: &str) -> Option<&'a RawValue> {
    struct Find<'k, 'a>(&'k str, &'k mut Option<&'a RawValue>);
    impl<'de: 'a, 'a> Visitor<'de> for Find<'_, 'a> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(found) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                if self.1.is_none() && found == self.0 {
                    *self.1 = Some(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }
    let mut found = None;
    // A syntax error after the value does not matter.
    let _ = serde_json::Deserializer::from_str(object).deserialize_map(Find(key, &mut found));
    found
}
