//! What turns a pure policy into a waPC module as Kubewarden defines it: its operations and payloads here,
//! its exports and imports in `abi`. A policy implements [`Policy`] and calls [`export_policy!`].

#[cfg(target_arch = "wasm32")]
pub mod abi;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A policy: two pure functions.
pub trait Policy {
    /// The part of an `AdmissionRequest` that the policy looks at; what it does not name is skipped, not kept.
    type Request: DeserializeOwned;
    /// `deny_unknown_fields` is wise: a misspelt setting is then refused, not ignored.
    type Settings: DeserializeOwned;

    /// Decides about one request.
    fn validate(request: Self::Request, settings: &Self::Settings) -> Response;

    /// Says what is wrong with settings that have the right shape; the message is for who wrote the policy.
    fn validate_settings(settings: &Self::Settings) -> Result<(), String>;
}

/// The answer to `validate`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Response {
    pub accepted: bool,
    /// Shown to the user on a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// HTTP status code of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The whole object as it should be. The host makes a JSON Patch of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutated_object: Option<Value>,
}

impl Response {
    #[must_use]
    pub fn accept() -> Self {
        Self { accepted: true, ..Self::default() }
    }

    #[must_use]
    pub fn reject(message: String) -> Self {
        Self { message: Some(message), code: Some(403), ..Self::default() }
    }

    #[must_use]
    pub fn mutate(object: Value) -> Self {
        Self { accepted: true, mutated_object: Some(object), ..Self::default() }
    }
}

#[derive(Deserialize)]
struct ValidationRequest<P: Policy> {
    request: P::Request,
    settings: P::Settings,
}

#[derive(Serialize)]
struct SettingsResponse {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Answers one call of the host. An error is for calls that have no answer: the host denies the request then.
pub fn answer<P: Policy>(operation: &[u8], payload: &[u8]) -> Result<Vec<u8>, String> {
    match operation {
        b"validate" => {
            let ValidationRequest::<P> { request, settings } =
                serde_json::from_slice(payload).map_err(|error| format!("cannot read the request: {error}"))?;
            to_json(&P::validate(request, &settings))
        }
        b"validate_settings" => {
            let checked = serde_json::from_slice(payload)
                .map_err(|error| error.to_string())
                .and_then(|settings| P::validate_settings(&settings));
            to_json(&SettingsResponse { valid: checked.is_ok(), message: checked.err() })
        }
        b"protocol_version" => to_json(&"v1"),
        unknown => Err(format!("unknown operation {:?}", String::from_utf8_lossy(unknown))),
    }
}

fn to_json(answer: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(answer).map_err(|error| format!("cannot write the answer: {error}"))
}

/// Exports a policy as a waPC module, with its metadata in the custom section where Kubewarden's tools and
/// Proviso look for it. Nothing on other targets, where the same crate is built to be tested.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty, metadata: $path:literal) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)] // An exported name and a named section are "unsafe attributes" to Rust.
        mod exports {
            const METADATA: &[u8] = include_bytes!($path);

            #[used]
            #[unsafe(link_section = "io.kubewarden.metadata")]
            static SECTION: [u8; METADATA.len()] = *include_bytes!($path);

            #[unsafe(no_mangle)]
            extern "C" fn __guest_call(operation_len: usize, payload_len: usize) -> i32 {
                $crate::abi::call(operation_len, payload_len, $crate::answer::<$policy>)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct OnlyNamed;

    #[derive(Deserialize)]
    struct Named {
        name: String,
    }

    impl Policy for OnlyNamed {
        type Request = Named;
        type Settings = Named;

        fn validate(request: Named, settings: &Named) -> Response {
            if request.name == settings.name { Response::accept() } else { Response::reject("another".to_owned()) }
        }

        fn validate_settings(settings: &Named) -> Result<(), String> {
            if settings.name.is_empty() { Err("name is empty".to_owned()) } else { Ok(()) }
        }
    }

    fn ask(operation: &str, payload: &str) -> String {
        match answer::<OnlyNamed>(operation.as_bytes(), payload.as_bytes()) {
            Ok(answer) => String::from_utf8(answer).expect("JSON is UTF-8"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn every_operation_answers_as_kubewarden_expects() {
        for (operation, payload, expected) in [
            ("validate", r#"{"request":{"name":"a"},"settings":{"name":"a"}}"#, r#"{"accepted":true}"#),
            (
                "validate",
                r#"{"request":{"name":"a"},"settings":{"name":"b"}}"#,
                r#"{"accepted":false,"message":"another","code":403}"#,
            ),
            ("validate_settings", r#"{"name":"a"}"#, r#"{"valid":true}"#),
            ("validate_settings", r#"{"name":""}"#, r#"{"valid":false,"message":"name is empty"}"#),
            ("validate_settings", "{}", r#"{"valid":false,"message":"missing field `name` at line 1 column 2"}"#),
            ("protocol_version", "", r#""v1""#),
            ("mutate", "", r#"error: unknown operation "mutate""#),
        ] {
            assert_eq!(ask(operation, payload), expected, "{operation} {payload}");
        }
    }

    #[test]
    fn an_unreadable_request_is_an_error_and_no_verdict() {
        assert!(ask("validate", r#"{"request":{}}"#).starts_with("error: cannot read the request: missing field"));
    }
}
