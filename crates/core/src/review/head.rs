//! The members of an `AdmissionRequest`: the small ones read, the objects left as text.

use std::fmt;

use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// What Proviso itself reads of an `AdmissionRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub uid: String,
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
    pub groups: Vec<String>,
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
    pub head: Head,
    pub object: Option<&'a str>,
    pub old_object: Option<&'a str>,
    pub spans: Vec<Span<'a>>,
}

/// Reads the members of a request.
pub(super) fn read(request: &str) -> serde_json::Result<Members<'_>> {
    let mut deserializer = serde_json::Deserializer::from_str(request);
    deserializer.deserialize_map(RequestVisitor)
}

struct RequestVisitor;

impl<'de> Visitor<'de> for RequestVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut head = Head::default();
        let (mut object, mut old_object) = (None, None);
        // An AdmissionRequest has 15 members.
        let mut spans: Vec<Span<'de>> = Vec::with_capacity(16);
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let (key, value) = (key.get(), value.get());
            if spans.iter().any(|span| span.key == key) {
                return Err(de::Error::custom(format_args!("{key} stands twice")));
            }
            spans.push(Span { key, value });
            if value == "null" {
                continue;
            }
            match key.trim_matches('"') {
                "uid" => head.uid = member(key, value)?,
                "kind" => head.kind = member(key, value)?,
                "resource" => head.resource = member(key, value)?,
                "subResource" => head.sub_resource = member(key, value)?,
                "requestResource" => head.request_resource = Some(member(key, value)?),
                "name" => head.name = member(key, value)?,
                "namespace" => head.namespace = member(key, value)?,
                "operation" => head.operation = Some(member(key, value)?),
                "userInfo" => head.user = member(key, value)?,
                "dryRun" => head.dry_run = member(key, value)?,
                "object" => object = Some(value),
                "oldObject" => old_object = Some(value),
                // A key written with escapes could stand for any of the above and slip past this match.
                _ if key.contains('\\') => {
                    return Err(de::Error::custom(format_args!("{key} is written with escapes")));
                }
                _ => {}
            }
        }
        Ok(Members { head, object, old_object, spans })
    }
}

fn member<T: DeserializeOwned, E: de::Error>(key: &str, value: &str) -> Result<T, E> {
    serde_json::from_str(value).map_err(|error| E::custom(format_args!("{key}: {error}")))
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
