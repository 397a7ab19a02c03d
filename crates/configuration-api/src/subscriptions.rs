//! Proviso's own routes: subscriptions, with the policies that a component has and should have.

mod comparison;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use kube::ResourceExt as _;
use proviso_core::configuration::{CompiledSubscription, resolve};
use proviso_crds::PolicySubscription;
use serde_json::{Value, json};

use crate::answer::{Form, Refusal, Result, json_answer, respond};
use crate::api::{Api, service_component_name};
use crate::call::Call;
use crate::components::event;
use crate::store::{ConfigurationStore, Permission};
use comparison::{Compared, Comparison};

/// The path of the collection.
pub(crate) const COLLECTION: &str = "/api/v1alpha1/subscriptions";
/// The suffix of a path that requests a resend.
const RESEND: &str = ":resend";

/// `GET /api/v1alpha1/subscriptions`: the subscriptions that the caller may list, by namespace and name.
pub(crate) async fn list<S: ConfigurationStore>(State(api): State<Arc<Api<S>>>, call: Call) -> Response<Body> {
    let answered = async {
        call.check_parameters(&["namespace", "max_page_size", "page_token"])?;
        let size = match call.parameter("max_page_size") {
            None | Some("" | "0") => usize::MAX,
            Some(text) => text.parse().map_err(|_| Refusal::invalid("max_page_size", "is not a number"))?,
        };
        let after = call.parameter("page_token").filter(|token| !token.is_empty()).unwrap_or_default();
        let mut subscriptions = api.listed_subscriptions(call.caller()).await?;
        if let Some(namespace) = call.parameter("namespace") {
            subscriptions.retain(|it| it.namespace().as_deref() == Some(namespace));
        }
        let mut named: Vec<_> =
            subscriptions.iter().map(|it| (key(it), it)).filter(|(key, _)| **key > *after).collect();
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        let has_more = named.len() > size;
        named.truncate(size);
        let next = named.last().filter(|_| has_more).map(|(key, _)| key.clone()).unwrap_or_default();
        let subscriptions: Vec<_> = named.into_iter().map(|(_, it)| summary(it)).collect();
        Ok(json_answer(StatusCode::OK, &json!({"subscriptions": subscriptions, "next_page_token": next})))
    };
    respond(Form::Problem, answered.await)
}

/// `GET /api/v1alpha1/subscriptions/{namespace}/{name}`: a subscription, and each policy that its component has or should have.
pub(crate) async fn get<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path((namespace, name)): Path<(String, String)>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        call.check_parameters(&[])?;
        let subscription = find(&api, &call, (&namespace, &name)).await?;
        let selectors = subscription.spec.subscription(&namespace);
        let selectors = selectors.map_err(|error| Refusal::internal(error.to_string()))?;
        let catalog = api.store.catalog().await?;
        let permit = api.large_answer().await?;
        let resolving = tokio::task::spawn_blocking(move || resolve(&CompiledSubscription::new(&selectors), &catalog));
        let resolution = resolving.await.map_err(|error| Refusal::internal(error.to_string()))?;
        // Without the permit: slow templates of one tenant hold up no answers about others.
        drop(permit);
        let selected: Vec<_> = resolution.selected.values().cloned().collect();
        let should = api.shown_bodies(call.caller(), &selected, Some(&subscription)).await?;
        let _permit = api.large_answer().await?;
        let stored = api.store.stored(&subscription).await?;
        let items = api.items(call.caller(), &subscription, &stored).await?;
        let event = event(&stored);
        let status = subscription.status.clone().unwrap_or_default();
        let comparing = tokio::task::spawn_blocking(move || {
            let keep = &resolution.keep;
            Comparison { status: &status, stored: &stored, items: &items, should: &should, keep }.compared()
        });
        let Compared { policies, has, should } =
            comparing.await.map_err(|error| Refusal::internal(error.to_string()))?;
        let body = json!({
            "subscription": *subscription, "service_component_name": service_component_name(&subscription),
            "event": event, "policies": policies, "has": has, "should": should,
        });
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Problem, answered.await)
}

/// `POST /api/v1alpha1/subscriptions/{namespace}/{name}:resend`: sends all policies to the component again.
pub(crate) async fn resend<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    Path((namespace, name)): Path<(String, String)>,
    call: Call,
) -> Response<Body> {
    let answered = async {
        call.check_parameters(&[])?;
        let Some(name) = name.strip_suffix(RESEND) else {
            return Err(Refusal::method_not_allowed(format!("POST needs a method after the name: {name}{RESEND}")));
        };
        let subscription = find(&api, &call, (&namespace, name)).await?;
        if !api.is_allowed(call.caller(), Permission::ChangeSubscription { namespace: &namespace, name }).await? {
            let message = format!(
                "you may not request a resend: get the permission to `patch` policysubscriptions.proviso.dev {name:?} in the namespace {namespace:?}"
            );
            return Err(Refusal::forbidden(message));
        }
        let resend = api.store.request_resend(call.caller(), &subscription).await?;
        tracing::info!(
            user = call.user(),
            subscription = key(&subscription),
            request = call.request_id,
            "resend requested"
        );
        let body = json!({"namespace": namespace, "name": name, "resend": resend});
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Problem, answered.await)
}

/// Returns the subscription of this name. One that the caller may not read has the same error as one that does not exist.
async fn find<S: ConfigurationStore>(
    api: &Api<S>,
    call: &Call,
    (namespace, name): (&str, &str),
) -> Result<Arc<PolicySubscription>> {
    let not_found = || Refusal::not_found(&format!("the subscription {namespace}/{name}"));
    if !api.is_allowed(call.caller(), Permission::ReadSubscription { namespace, name }).await? {
        return Err(not_found());
    }
    let subscriptions = api.store.subscriptions().await?;
    let is_named =
        |it: &&Arc<PolicySubscription>| it.namespace().as_deref() == Some(namespace) && it.name_any() == name;
    subscriptions.iter().find(is_named).cloned().ok_or_else(not_found)
}

/// Returns the name of a subscription with its namespace.
fn key(subscription: &PolicySubscription) -> String {
    format!("{}/{}", subscription.namespace().unwrap_or_default(), subscription.name_any())
}

/// Returns a subscription without the list of its policies, which may have 2,000 entries.
fn summary(subscription: &PolicySubscription) -> Value {
    let mut summary = json!(subscription);
    if let Some(status) = summary["status"].as_object_mut() {
        for list in ["policies", "unconfirmed"] {
            status.remove(list);
        }
    }
    summary
}
