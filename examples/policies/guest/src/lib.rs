//! The library for policies as waPC modules of Kubewarden. This module has the operations and payloads, `abi` has the exports
//! and imports. A policy implements [`Policy`] and calls [`export_policy!`].

#[cfg(target_arch = "wasm32")]
pub mod abi;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A policy: two pure functions.
pub trait Policy {
    /// The part of an `AdmissionRequest` that the policy reads; other fields are skipped during parsing.
    type Request: DeserializeOwned;
    /// The settings. Use `deny_unknown_fields`, so that a misspelt setting is an error.
    type Settings: DeserializeOwned;

    /// Decides about one request.
    fn validate(request: Self::Request, settings: &Self::Settings) -> Response;

    /// Checks settings that were parsed. The error is a message for the author of the policy.
    fn validate_settings(settings: &Self::Settings) -> Result<(), String>;
}

/// The answer to `validate`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Response {
    pub accepted: bool,
    /// The message of a denial, which the user sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status code of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The whole changed object. The host computes the JSON Patch.
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

/// Answers one call of the host. Returns an error for a call without an answer: the host then denies the request.
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

/// Exports a policy as a waPC module, with its metadata in the custom section that Kubewarden's tools and Proviso
/// read. The macro expands to nothing on other targets, where the crate is built for its tests.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty, metadata: $path:literal) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)] // Rust calls `no_mangle` and `link_section` unsafe attributes.
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
    fn an_invalid_request_is_an_error_without_a_verdict() {
        assert!(ask("validate", r#"{"request":{}}"#).starts_with("error: cannot read the request: missing field"));
    }
}
