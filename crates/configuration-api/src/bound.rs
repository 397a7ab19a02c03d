//! The routes of ONAP's config-binding service.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Response, StatusCode, header};

use crate::answer::{Form, Refusal, Result, json_answer, respond};
use crate::api::Api;
use crate::call::Call;
use crate::components::{POLICIES, all};
use crate::store::ConfigurationStore;
use crate::watches::{long_poll, polled, stream_events, wait};

/// The header with the id of the last event that a client of server-sent events has.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET /service_component/{scn}`: the configuration of a component, with its templates replaced.
pub(crate) async fn config<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path(name): Path<String>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        let subscription = api.component(call.caller(), &name, call.parameter("namespace")).await?;
        let state = api.state(call.caller(), &subscription).await?;
        let config = state.config().ok_or_else(|| no_config(&name))?;
        Ok(json_answer(StatusCode::OK, &config))
    };
    respond(Form::Text, answered.await)
}

/// `GET /service_component_all/{scn}`: the configuration, the policies and the other records of a component; now, after a change (long
/// polling), or now and after each change (server-sent events).
pub(crate) async fn all_records<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path(name): Path<String>,
    call: Call,
    headers: HeaderMap,
) -> Response<Body> {
    respond(Form::Text, read_all(api, name, call, &headers).await)
}

async fn read_all<S: ConfigurationStore>(
    api: Arc<Api<S>>,
    name: String,
    call: Call,
    headers: &HeaderMap,
) -> Result<Response<Body>> {
    let namespace = call.parameter("namespace").map(ToOwned::to_owned);
    let subscription = api.component(call.caller(), &name, namespace.as_deref()).await?;
    let state = api.state(call.caller(), &subscription).await?;
    if state.misses_config() {
        return Err(no_config(&name));
    }
    if accepts_events(headers) {
        let known = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).map(ToOwned::to_owned);
        return stream_events(api, call, (name, namespace), &subscription, known).await;
    }
    let wait = wait(call.parameter("wait"))?;
    match call.parameter("index").map(ToOwned::to_owned) {
        Some(known) if known == state.index => {
            long_poll(api, call, (name, namespace), &subscription, (known, wait)).await
        }
        _ => Ok(polled(&state.index, &all(&state.members(), &call.request_id))),
    }
}

/// Returns true if the client asks for server-sent events.
fn accepts_events(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accept.flat_map(|value| value.split(','));
    types.any(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream"))
}

/// `GET /{key}/{scn}`: the record `<scn>:<key>` of a component.
pub(crate) async fn record<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path((key, name)): Path<(String, String)>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        if key == POLICIES {
            return Err(Refusal::bad_request(
                "policies is no record: GET /service_component_all/{scn} returns the policies of a component",
            ));
        }
        let subscription = api.component(call.caller(), &name, call.parameter("namespace")).await?;
        let state = api.state(call.caller(), &subscription).await?;
        let record = state.record(&key).ok_or_else(|| Refusal::not_found(&format!("the record {name}:{key}")))?;
        Ok(json_answer(StatusCode::OK, record))
    };
    respond(Form::Text, answered.await)
}

/// Answers another method than GET on a path of two segments, which no other route has.
pub(crate) async fn no_path(request: Request) -> Response<Body> {
    Refusal::not_found(&format!("the path {}", request.uri().path())).to_response(Form::Text)
}

fn no_config(name: &str) -> Refusal {
    Refusal::not_found(&format!("the configuration of {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_selects_server_sent_events() {
        for (accept, expected) in [
            ("text/event-stream", true),
            ("application/json, Text/Event-Stream; q=0.5", true),
            ("*/*", false),
            ("text/event-streams", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(accepts_events(&headers), expected, "{accept}");
        }
    }
}
