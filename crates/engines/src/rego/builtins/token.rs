//! `io.jwt.decode`: the header and the payload of a token. The signature is not verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use regorus::Value;

use super::digest::hexadecimal;
use super::functions::Function;
use crate::rego::value::Plain;

pub(super) const FUNCTIONS: &[(&str, u8, Function)] = &[("io.jwt.decode", 1, |values| Ok(decode(values)))];

fn decode(values: &[Value]) -> Value {
    let [Value::String(token)] = values else { return Value::Undefined };
    let decoded = || {
        let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok());
        let (header, payload, signature) = (parts.next()??, parts.next()??, parts.next()??);
        let json = |bytes: &[u8]| serde_json::from_slice::<Plain>(bytes).ok().map(|value| value.0);
        let header = json(&header)?;
        let members = header.as_object().ok()?;
        // An encrypted token or a nested token has no readable payload.
        let is_plain =
            members.get(&"enc".into()).is_none() && members.get(&"cty".into()).is_none_or(|of| *of != "JWT".into());
        let last = parts.next().is_none();
        (is_plain && last)
            .then(|| vec![header.clone(), json(&payload).unwrap_or(Value::Undefined), hexadecimal(&signature).into()])
    };
    match decoded() {
        Some(parts) if !parts.contains(&Value::Undefined) => parts.into(),
        _ => Value::Undefined,
    }
}
