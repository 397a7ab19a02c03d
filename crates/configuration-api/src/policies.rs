//! The routes of ONAP's policy-handler.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Response, StatusCode};
use jiff::Timestamp;
use proviso_core::PolicyId;
use proviso_core::configuration::{ConfigurationPolicy, DEFAULT_MESSAGE_LIMIT, Items};
use serde_json::{Map, Value, json};

use crate::answer::{Form, Refusal, Result, json_answer, json_text, respond};
use crate::api::{Api, Shown, python_time};
use crate::call::{Call, json_body};
use crate::deployed::Deployed;
use crate::filter::{OnapFilter, versioned};
use crate::store::{ConfigurationStore, Permission};

/// The maximum size of a filter, in bytes.
const MAX_FILTER: usize = 256 * 1024;

/// `GET /policy_latest/{policy_id}`: the newest version of a policy; 404 with `{}` if there is none. The name `<policy id>.<version>.xml`
/// selects this version, if it is the newest one.
pub(crate) async fn latest<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path(id): Path<String>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        let not_found = || json_answer(StatusCode::NOT_FOUND, &json!({}));
        // The name of a policy may look like the name of a version of another one.
        for (id, version) in [(id.as_str(), None)].into_iter().chain(versioned(&id).map(|(id, it)| (id, Some(it)))) {
            let Ok(id) = id.parse::<PolicyId>() else { continue };
            if !api.is_allowed(call.caller(), Permission::ReadPolicy(&id)).await? {
                continue;
            }
            let found = api.store.catalog().await?.get(&id).cloned();
            let found = found.filter(|found| version.is_none_or(|version| version == found.version.generation));
            let Some(policy) = found else { continue };
            let mut bodies = api.shown_bodies(call.caller(), &[policy], None).await?;
            return match bodies.remove(&id) {
                Some(Shown::Item(item)) => Ok(json_text(StatusCode::OK, policy_json(&id, item.body()))),
                Some(Shown::Failed(error)) => Ok(json_answer(StatusCode::NOT_FOUND, &errored(&id, &error))),
                None => Ok(not_found()),
            };
        }
        Ok(not_found())
    };
    respond(Form::Handler, answered.await)
}

/// `POST /policies_latest`: the newest version of each policy that a filter selects; 404 if it selects none.
pub(crate) async fn find<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    call: Call,
    request: Request,
) -> Response<Body> {
    let answered = async {
        let body = json_body(request, MAX_FILTER).await?;
        let filter = OnapFilter::parse(&body)?;
        let _permit = api.large_answer().await?;
        let catalog = api.store.catalog().await?;
        let policies = api.listed_policies(call.caller(), &catalog, |policy| filter.selects(policy)).await?;
        if filter.is_unique() && policies.len() > 1 {
            return Err(not_unique(&policies));
        }
        let found = bodies(&api, &call, &policies).await?;
        let is_empty = found.latest.is_empty() && found.errored.is_empty();
        let status = if is_empty { StatusCode::NOT_FOUND } else { StatusCode::OK };
        let json = format!(
            r#"{{"errored_policies":{},"latest_policies":{},"policy_filter":{body}}}"#,
            Value::Object(found.errored),
            latest_policies(&found.latest),
        );
        Ok(json_text(status, json))
    };
    respond(Form::Handler, answered.await)
}

/// `GET /policies_latest`: the newest version of each policy that a component has or should have, and the changes that components wait
/// for as a message of `PUT /policy`; 404 if no component has policies or filters. `?data_segment=2` selects a segment of a message
/// that is larger than 10 MiB.
pub(crate) async fn latest_of_components<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        let segment = match call.parameter("data_segment") {
            None => 1,
            Some(text) => text.parse::<usize>().ok().filter(|number| *number > 0).ok_or_else(|| {
                Refusal::invalid("data_segment", "is not the number of a segment, which begins with 1")
            })?,
        };
        let _permit = api.large_answer().await?;
        let deployed = Deployed::new(&api.listed_subscriptions(call.caller()).await?);
        if deployed.is_empty() {
            return Ok(json_answer(StatusCode::NOT_FOUND, &json!({"warning": "got no deployed policies"})));
        }
        let catalog = api.store.catalog().await?;
        let matched = tokio::task::spawn_blocking({
            let catalog = Arc::clone(&catalog);
            move || (deployed.matched(&catalog), deployed)
        });
        let (matched, deployed) = matched.await.map_err(|error| Refusal::internal(error.to_string()))?;
        let policies =
            api.listed_policies(call.caller(), &catalog, |policy| matched.policies.contains(&policy.id)).await?;
        let found = bodies(&api, &call, &policies).await?;
        let message = deployed.update(&catalog, &matched, &found.latest);
        let empty =
            || r#"{"catch_up":true,"latest_policies":{},"policy_filter_matches":{},"removed_policies":{}}"#.to_owned();
        let segments =
            message.segments(DEFAULT_MESSAGE_LIMIT).map_err(|error| Refusal::too_large(error.to_string()))?;
        let update = match segments.get(segment - 1) {
            Some(update) => update.clone(),
            None if segment == 1 => empty(),
            None => {
                let description = format!("is more than the number of segments, which is {}", segments.len().max(1));
                return Err(Refusal::invalid("data_segment", &description));
            }
        };
        // The policies are in the answer with the first segment only.
        let latest = if segment == 1 { latest_policies(&found.latest) } else { "{}".to_owned() };
        let json = format!(
            r#"{{"errored_policies":{},"latest_policies":{latest},"policy_update":{update}}}"#,
            Value::Object(found.errored),
        );
        Ok(json_text(StatusCode::OK, json))
    };
    respond(Form::Handler, answered.await)
}

/// `GET /catch_up`: makes all components that the caller may change compare their policies with those that they should have.
pub(crate) async fn catch_up<S: ConfigurationStore>(State(api): State<Arc<Api<S>>>, call: Call) -> Response<Body> {
    let answered = async {
        let started = python_time(Timestamp::now());
        let subscriptions = api.changeable_subscriptions(call.caller()).await?;
        if subscriptions.is_empty() && !api.store.subscriptions().await?.is_empty() {
            return Err(no_change());
        }
        tracing::info!(
            user = call.user(),
            components = subscriptions.len(),
            request = call.request_id,
            "catch-up requested"
        );
        api.store.request_catch_up(call.caller(), subscriptions).await?;
        let body = json!({"catch-up requested": started, "request_id": call.request_id});
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Handler, answered.await)
}

/// Returns the refusal of a caller that may not request a catch-up of any component.
pub(crate) fn no_change() -> Refusal {
    Refusal::forbidden(
        "you may not request a catch-up: get the permission to `patch` policysubscriptions.proviso.dev in a namespace with subscriptions",
    )
}

/// The bodies of policies, and the policies whose bodies have an error.
struct Found {
    latest: Items,
    errored: Map<String, Value>,
}

async fn bodies<S: ConfigurationStore>(
    api: &Api<S>,
    call: &Call,
    policies: &[Arc<ConfigurationPolicy>],
) -> Result<Found> {
    let mut found = Found { latest: BTreeMap::new(), errored: Map::new() };
    for (id, body) in api.shown_bodies(call.caller(), policies, None).await? {
        match body {
            Shown::Item(item) => _ = found.latest.insert(id, item),
            Shown::Failed(error) => _ = found.errored.insert(id.to_string(), errored(&id, &error)),
        }
    }
    Ok(found)
}

fn not_unique(policies: &[Arc<ConfigurationPolicy>]) -> Refusal {
    let count = policies.len();
    let named: Vec<_> = policies.iter().take(5).map(|policy| policy.id.as_str()).collect();
    let more = if count > named.len() { ", …" } else { "" };
    let named = named.join(", ");
    Refusal::invalid(
        "unique",
        &format!("is true, and the filter selects {count} policies ({named}{more}): add criteria"),
    )
}

/// Returns the JSON of a policy: `{"policy_body": …, "policy_id": …}`.
pub(crate) fn policy_json(id: &PolicyId, body: &str) -> String {
    // An id needs no escapes in JSON.
    format!(r#"{{"policy_body":{body},"policy_id":"{id}"}}"#)
}

fn latest_policies(items: &Items) -> String {
    let members: Vec<_> =
        items.iter().map(|(id, item)| format!(r#""{id}":{}"#, policy_json(id, item.body()))).collect();
    format!("{{{}}}", members.join(","))
}

fn errored(id: &PolicyId, error: &str) -> Value {
    json!({"error": error, "policy_id": id})
}
