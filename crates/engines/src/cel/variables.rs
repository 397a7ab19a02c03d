//! What expressions see: parts of the review, read when they are first asked for, and the parameters.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use proviso_core::Review;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// The variables of one evaluation.
pub(super) struct Variables<'a> {
    review: &'a Review,
    params: &'a dyn Val,
    object: OnceLock<Option<Box<dyn Val>>>,
    old_object: OnceLock<Option<Box<dyn Val>>>,
    request: OnceLock<Option<Box<dyn Val>>>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(review: &'a Review, params: &'a dyn Val) -> Self {
        Self { review, params, object: OnceLock::new(), old_object: OnceLock::new(), request: OnceLock::new() }
    }
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let read_once = |place: &'b OnceLock<Option<Box<dyn Val>>>, json: Option<&str>| {
            // A part that cannot be read is not there; an expression that needs it has no value.
            place.get_or_init(|| read(json.unwrap_or("null")).ok()).as_deref().map(CowVal::Borrowed)
        };
        match variable {
            "object" => read_once(&self.object, self.review.object_json()),
            "oldObject" => read_once(&self.old_object, self.review.old_object_json()),
            "request" => read_once(&self.request, Some(self.review.request_json())),
            "params" => Some(CowVal::Borrowed(self.params)),
            _ => None,
        }
    }
}

/// Reads JSON as Kubernetes does for CEL: a number without fraction that fits is an int, any other a double.
pub(super) fn read(json: &str) -> serde_json::Result<Box<dyn Val>> {
    proviso_core::review::parse::<Json>(json).map(|json| json.0)
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

    // Beyond an int, Kubernetes has doubles too: its objects hold no larger integers.
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
