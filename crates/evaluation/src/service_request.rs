//! A request to a service, as a file has it.

use proviso_core::request::{Request, RequestError};
use proviso_crds::validation::FieldError;
use serde_json::Value;

/// A request to a service, as a file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRequest {
    pub payload: Value,
    pub user: Option<String>,
    pub tenant: Option<String>,
}

impl ServiceRequest {
    /// Reads a request: the body of one of the two APIs, or a payload.
    ///
    /// # Errors
    /// Returns an error if the user or the tenant is not a text.
    pub fn read(value: Value) -> Result<Self, FieldError> {
        let Value::Object(mut members) = value else {
            return Ok(Self { payload: value, user: None, tenant: None });
        };
        if let (Some(instance), 1) = (members.get("service_instance"), members.len()) {
            let payload = instance["spec"].clone();
            return Ok(Self { payload, user: None, tenant: None });
        }
        let is_body = members.contains_key("payload")
            && members.keys().all(|key| ["payload", "user", "tenant"].contains(&key.as_str()));
        if !is_body {
            return Ok(Self { payload: Value::Object(members), user: None, tenant: None });
        }
        let mut id = |field: &str| match members.remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(id)) => Ok(Some(id)),
            Some(_) => Err(FieldError::new(field, "must be a text")),
        };
        let (user, tenant) = (id("user")?, id("tenant")?);
        Ok(Self { payload: members.remove("payload").unwrap_or_default(), user, tenant })
    }

    /// Returns the request for the chain.
    ///
    /// # Errors
    /// Returns an error if the payload is not an object, or exceeds a limit.
    pub fn into_request(self) -> Result<Request, RequestError> {
        Request::new(self.payload, self.tenant, self.user)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_a_payload_or_the_body_of_an_api() {
        for (file, payload, user) in [
            (json!({"cpu": 1}), json!({"cpu": 1}), None),
            (json!({"payload": {"cpu": 1}, "user": "u"}), json!({"cpu": 1}), Some("u")),
            (json!({"payload": 1, "cpu": 1}), json!({"payload": 1, "cpu": 1}), None),
            (json!({"service_instance": {"spec": {"cpu": 1}}}), json!({"cpu": 1}), None),
        ] {
            let read = ServiceRequest::read(file.clone()).unwrap();
            assert_eq!((read.payload, read.user.as_deref()), (payload, user), "{file}");
        }
        let error = ServiceRequest::read(json!({"payload": {}, "tenant": 1})).unwrap_err();
        assert_eq!(error.field, "tenant");
    }
}
