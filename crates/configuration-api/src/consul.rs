//! The keys of components as Consul's key-value store has them, read-only.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::answer::{Form, Refusal, Result, json_answer, respond, text};
use crate::api::{Api, service_component_name};
use crate::call::Call;
use crate::store::ConfigurationStore;

/// The header of Consul with the index of an answer.
const INDEX: HeaderName = HeaderName::from_static("x-consul-index");

/// `GET /v1/kv/{key}`, with `?recurse`, `?keys` (and `separator`) and `?raw`.
pub(crate) async fn key<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path(key): Path<String>,
    call: Call,
) -> Response<Body> {
    let mut index = 1;
    let mut response = respond(Form::Text, read(&api, &key, &call, &mut index).await);
    // Clients of Consul read the index of each answer, also that of a key that does not exist.
    response.headers_mut().insert(INDEX, HeaderValue::from(index));
    response
}

/// Sets `index` to the version of the component whose key it is.
async fn read<S: ConfigurationStore>(api: &Api<S>, key: &str, call: &Call, index: &mut u64) -> Result<Response<Body>> {
    let not_found = || Refusal::not_found(&format!("the key {key:?}"));
    // The longest name counts, because a name may have a colon.
    let names = api.store.subscriptions().await?;
    let names = names.iter().map(|it| service_component_name(it));
    let is_of = |name: &str| key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
    let mut names: Vec<_> = names.filter(|name| is_of(name)).collect();
    names.sort_unstable_by_key(|name| std::cmp::Reverse(name.len()));
    names.dedup();
    let mut keys = None;
    for name in names {
        match api.component(call.caller(), &name, call.parameter("namespace")).await {
            Ok(subscription) => {
                *index = subscription.resource_version().and_then(|it| it.parse().ok()).unwrap_or(1);
                keys = Some(api.state(call.caller(), &subscription).await?.keys(&name));
                break;
            }
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let keys = keys.ok_or_else(not_found)?;
    let below = keys.iter().filter(|(other, _)| other.starts_with(key));
    if call.parameter("keys").is_some() {
        let mut names: Vec<_> = below.map(|(name, _)| cut(name, key, call.parameter("separator"))).collect();
        names.dedup();
        if names.is_empty() {
            return Err(not_found());
        }
        return Ok(json_answer(StatusCode::OK, &json!(names)));
    }
    let entry = |(key, value): (&String, &String)| entry(key, value, *index);
    if call.parameter("recurse").is_some() {
        let entries: Vec<_> = below.map(entry).collect();
        if entries.is_empty() {
            return Err(not_found());
        }
        return Ok(json_answer(StatusCode::OK, &json!(entries)));
    }
    let found = keys.get_key_value(key).ok_or_else(not_found)?;
    if call.parameter("raw").is_some() {
        return Ok(text(StatusCode::OK, found.1));
    }
    Ok(json_answer(StatusCode::OK, &json!([entry(found)])))
}

/// Returns an entry of Consul. The indexes are the version of the subscription, which changes with each update of the policies.
fn entry(key: &str, value: &str, version: u64) -> Value {
    json!({
        "LockIndex": 0, "Key": key, "Flags": 0, "Value": STANDARD.encode(value), "CreateIndex": 1, "ModifyIndex": version,
    })
}

/// Returns a key up to the first separator after the prefix.
fn cut(key: &str, prefix: &str, separator: Option<&str>) -> String {
    let Some(separator) = separator.filter(|separator| !separator.is_empty()) else { return key.to_owned() };
    match key.get(prefix.len()..).and_then(|rest| rest.find(separator)) {
        Some(index) => key[..prefix.len() + index + separator.len()].to_owned(),
        None => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_at_the_first_separator_after_the_prefix() {
        let key = "scn:policies/items/cluster.a";
        for (prefix, separator, expected) in [
            ("scn", None, key),
            ("scn", Some("/"), "scn:policies/"),
            ("scn:policies/", Some("/"), "scn:policies/items/"),
            ("scn:policies/items/", Some("/"), key),
            ("scn", Some(""), key),
        ] {
            assert_eq!(cut(key, prefix, separator), expected);
        }
    }
}
