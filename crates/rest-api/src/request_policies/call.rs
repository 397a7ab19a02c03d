//! A call as the handlers read it, and its answer.

use axum::extract::Request;
use axum::http::Method;
use serde_json::{Map, Value};

use crate::body;
use crate::error::Error;
use crate::router;
use crate::store::Caller;

/// The content types of a JSON merge patch (RFC 7396).
const PATCH_TYPES: &[&str] = &["application/merge-patch+json", "application/json"];
const JSON: &[&str] = &["application/json"];

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub method: Method,
    /// The query parameters, in their order.
    query: Vec<(String, String)>,
    /// The fields of the body. Empty if the method has no body.
    pub body: Map<String, Value>,
    /// The caller; `None` if the server did not authenticate one.
    pub caller: Option<Caller>,
}

/// The answer to a call that succeeded.
#[derive(Debug)]
pub(super) enum Answer {
    Ok(Value),
    /// The new resource, and its path.
    Created(String, Value),
    NoContent,
}

impl Call {
    /// Reads the query and the body of a request.
    pub(super) async fn read(request: Request) -> Result<Self, Error> {
        let method = request.method().clone();
        let query = request.uri().query().unwrap_or_default();
        let query = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let caller = request.extensions().get::<Caller>().cloned();
        let body = match method {
            Method::POST | Method::PUT => body::object(&router::json_body(request, JSON).await?.bytes)?,
            Method::PATCH => body::object(&router::json_body(request, PATCH_TYPES).await?.bytes)?,
            _ => Map::new(),
        };
        Ok(Self { method, query, body, caller })
    }

    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns the values of the query parameters with these names, in this order. An empty value counts as absent.
    ///
    /// # Errors
    /// Returns an error if the query has another parameter, or one of them twice.
    pub(super) fn parameters<const N: usize>(&self, names: [&str; N]) -> Result<[Option<&str>; N], Error> {
        let mut values = [None; N];
        for (key, value) in &self.query {
            let index = names.iter().position(|name| name == key).ok_or_else(|| {
                let key: String = key.chars().take(100).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Error::invalid(key, format!("is not a parameter of this method: its parameters are {known}"))
            })?;
            if values[index].replace(value.as_str()).is_some() {
                return Err(Error::invalid(key, "is given twice"));
            }
        }
        Ok(values.map(|value| value.filter(|value| !value.is_empty())))
    }
}
