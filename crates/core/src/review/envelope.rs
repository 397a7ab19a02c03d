//! The envelope of a review. The request inside is parsed in the same pass, as the type that the caller chooses.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub(super) struct Envelope<'a, R> {
    pub api_version: Option<Cow<'a, str>>,
    pub kind: Option<Cow<'a, str>>,
    pub request: Option<R>,
}

/// Not derived, because serde's derived code also accepts a list.
impl<'de, R: Deserialize<'de>> Deserialize<'de> for Envelope<'de, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EnvelopeVisitor(PhantomData))
    }
}

struct EnvelopeVisitor<R>(PhantomData<R>);

impl<'de, R: Deserialize<'de>> Visitor<'de> for EnvelopeVisitor<R> {
    type Value = Envelope<'de, R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut api_version, mut kind, mut request) = (None, None, None);
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "apiVersion" => set(&mut api_version, "apiVersion", map.next_value()?)?,
                "kind" => set(&mut kind, "kind", map.next_value()?)?,
                "request" => set(&mut request, "request", map.next_value()?)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let text = |value: Option<Option<Text<'de>>>| value.flatten().map(|Text(text)| text);
        Ok(Envelope { api_version: text(api_version), kind: text(kind), request: request.flatten() })
    }
}

/// A string that is borrowed if it has no escape sequences. Serde would copy an `Option<Cow<str>>`.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn set<T, E: de::Error>(member: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    if member.replace(value).is_some() {
        return Err(E::duplicate_field(name));
    }
    Ok(())
}
