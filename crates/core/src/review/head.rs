//! The members of an `AdmissionRequest`: the small ones read, the objects left as text.

use std::fmt;
use std::ops::Range;

use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// What Proviso itself reads of an `AdmissionRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    /// Empty for the resource itself.
    pub sub_resource: String,
    /// The resource of the original request, where the API server converted it (`matchPolicy: Equivalent`).
    pub request_resource: Option<GroupVersionResource>,
    /// Empty where the server generates the name.
    pub name: String,
    /// Empty for cluster-scoped resources.
    pub namespace: String,
    /// None where the request does not say.
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

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    pub username: String,
}

/// One member of the request as it stands in the text.
pub(super) struct Span<'a> {
    /// With its quotes.
    pub key: &'a str,
    pub value: &'a str,
}

impl Span<'_> {
    pub(super) fn is_null(&self) -> bool {
        self.value == "null"
    }
}

pub(super) struct Members<'a> {
    /// Empty where there is none.
    pub uid: String,
    pub head: Head,
    pub object: Option<&'a str>,
    pub old_object: Option<&'a str>,
    pub spans: Vec<Span<'a>>,
}

impl Members<'_> {
    /// Where the request, its braces included, stands in the body that it was read from; None if it is empty.
    pub(super) fn range(&self, body: &str) -> Option<Range<usize>> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        // Only whitespace stands between a brace and the member next to it.
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
        match repeated(&members.spans) {
            Some(key) => Err(de::Error::custom(format_args!("request: {key} stands twice"))),
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
        // It could stand for any of the above and slip past this match.
        if key.contains('\\') {
            return Err(de::Error::custom(format_args!("{key} is written with escapes")));
        }
        self.spans.push(member);
        Ok(())
    }
}

/// A key that stands more than once. Sorts, so that a body of a million members costs no million squared.
fn repeated<'a>(members: &[Span<'a>]) -> Option<&'a str> {
    let mut keys: Vec<&str> = members.iter().map(|member| member.key).collect();
    keys.sort_unstable_by_key(|key| (key.len(), *key));
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn read<T: DeserializeOwned, E: de::Error>(key: &str, value: &str) -> Result<T, E> {
    serde_json::from_str(value).map_err(|error| E::custom(format_args!("{key}: {error}")))
}

/// Returns the range of `part` in `whole`, of which it was borrowed.
pub(super) fn range_of(whole: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// The string at `key` of a JSON object, if it has one; never recurses.
pub(super) fn first_string(object: &str, key: &str) -> Option<String> {
    serde_json::from_str(first_raw(object, key)?.get()).ok()
}

/// The first value at `key` of a JSON object, even one that is malformed further on; never recurses.
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
    // An error after the value was found does not unfind it.
    let _ = serde_json::Deserializer::from_str(object).deserialize_map(Find(key, &mut found));
    found
}
