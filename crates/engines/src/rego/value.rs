//! Conversion of JSON and YAML to regorus' values. regorus' own `Deserialize` reads the object
//! `{"$serde_json::private::Number": "1e2000000000"}` as a number and expands all of its digits, which exhausts the memory.

use std::collections::BTreeMap;
use std::fmt;

use regorus::Value;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads JSON whose nesting has been checked: the reader has no recursion limit.
pub(super) fn read(json: &str) -> serde_json::Result<Value> {
    proviso_core::review::parse::<Plain>(json).map(|value| value.0)
}

/// A regorus value, deserialized without special keys: every JSON object becomes an object.
pub(crate) struct Plain(pub Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlainVisitor)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Plain;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Plain, D::Error> {
        Plain::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Plain, E> {
        // YAML has infinite numbers, JSON and Rego do not.
        if value.is_finite() { Ok(Plain(value.into())) } else { Err(E::custom("a number is not finite")) }
    }

    fn visit_str<E>(self, value: &str) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Plain, A::Error> {
        let mut items: Vec<Value> = Vec::new();
        while let Some(Plain(item)) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Plain(items.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Plain, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((Plain(key), Plain(value))) = members.next_entry()? {
            map.insert(key, value);
        }
        Ok(Plain(map.into()))
    }
}
