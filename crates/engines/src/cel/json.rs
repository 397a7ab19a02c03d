//! Conversion between JSON and CEL's values.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use cel::Value;
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString};
use cel::common::value::Val;
use cel::objects::{Key, OptionalValue};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads JSON as Kubernetes does for CEL: a number is an int if it has no fraction and fits, otherwise a double.
pub(super) fn read(json: &str) -> serde_json::Result<Box<dyn Val>> {
    proviso_core::review::parse::<Json>(json).map(|json| json.0)
}

/// Converts parsed JSON like [`read`].
pub(super) fn from_value(json: &serde_json::Value) -> serde_json::Result<Box<dyn Val>> {
    Json::deserialize(json).map(|json| json.0)
}

/// Converts a value to JSON. The error names a value without a JSON representation. The recursion is bounded: an expression
/// cannot construct deep values.
pub(super) fn write(value: &Value) -> Result<serde_json::Value, String> {
    Ok(match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::UInt(value) => (*value).into(),
        Value::Float(value) => {
            serde_json::Number::from_f64(*value).ok_or_else(|| format!("{value} is not a number in JSON"))?.into()
        }
        Value::String(value) => value.as_str().into(),
        Value::Bytes(value) => base64::engine::general_purpose::STANDARD.encode(value.as_slice()).into(),
        Value::Timestamp(value) => value.to_rfc3339().into(),
        Value::List(items) => serde_json::Value::Array(items.iter().map(write).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let members = map.map.iter().map(|(key, value)| match key {
                Key::String(key) => Ok((key.to_string(), write(value)?)),
                other => Err(format!("the key {other} is not a string")),
            });
            serde_json::Value::Object(members.collect::<Result<_, String>>()?)
        }
        Value::Opaque(opaque) => {
            let Some(optional) = opaque.downcast_ref::<OptionalValue>() else {
                let type_name = opaque.runtime_type_name();
                return Err(format!("a {type_name} has no representation in JSON: use string(…)"));
            };
            write(optional.value().ok_or("an optional without a value has no representation in JSON")?)?
        }
        other => return Err(format!("a {} has no representation in JSON", other.type_of())),
    })
}

struct Json(Box<dyn Val>);
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json(Box::new(CelNull)))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json(Box::new(CelBool::from(value))))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json(Box::new(CelInt::from(value))))
    }

    // Kubernetes reads integers beyond an int as doubles too.
    #[allow(clippy::cast_precision_loss)]
    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelDouble::from(value as f64)),
        }))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json(Box::new(CelDouble::from(value))))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json(Box::new(CelString::from(value.to_owned()))))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json(Box::new(CelString::from(value))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Json, A::Error> {
        let mut list: Vec<Box<dyn Val>> = Vec::new();
        while let Some(Json(item)) = sequence.next_element()? {
            list.push(item);
        }
        Ok(Json(Box::new(CelList::from(list))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut map: HashMap<CelMapKey<'static>, Box<dyn Val>> = HashMap::new();
        while let Some((key, Json(value))) = members.next_entry::<String, Json>()? {
            map.insert(CelMapKey::String(CelString::from(key)), value);
        }
        Ok(Json(Box::new(CelMap::from(map))))
    }
}
