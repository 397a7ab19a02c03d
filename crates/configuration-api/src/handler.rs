//! The routes of ONAP's deployment-handler.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_core::configuration::reference;
use proviso_crds::PolicySubscription;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::answer::{Form, Refusal, Result, json_answer, respond};
use crate::api::{Api, now, service_component_name};
use crate::call::{Call, not_json, read_json};
use crate::deployed::{Component, Deployed};
use crate::filter::to_onap;
use crate::policies::no_change;
use crate::store::ConfigurationStore;

/// The maximum size of a message of `PUT /policy`, in bytes. policy-handler divides messages of more than 10 MiB, but counts neither the
/// separators nor the members beside the policies, and sends a larger policy alone.
const MAX_UPDATE: usize = 16 * 1024 * 1024;

/// `GET /policy`: the policies and filters of all components.
pub(crate) async fn policies<S: ConfigurationStore>(State(api): State<Arc<Api<S>>>, call: Call) -> Response<Body> {
    let answered = async {
        let started = now();
        let deployed = Deployed::new(&api.listed_subscriptions(call.caller()).await?);
        let policies: Map<_, _> = deployed
            .policies()
            .into_iter()
            .map(|(id, policy)| {
                let versions: Map<_, _> =
                    policy.versions.iter().map(|version| (version.to_string(), json!(true))).collect();
                let policy = json!({
                    "policy_id": id, "policy_versions": versions, "pending_update": policy.is_pending,
                });
                (id.to_string(), policy)
            })
            .collect();
        let filters = deployed.components.iter().flat_map(|component| {
            component.filters().map(|(id, filter)| {
                let filter = json!({
                    "policy_filter_id": id, "policy_filter": to_onap(filter), "pending_update": component.is_pending,
                });
                (id, filter)
            })
        });
        let filters: Map<_, _> = filters.collect();
        let message = format!("{} policies and {} filters of components", policies.len(), filters.len());
        let body = json!({
            "requestID": call.request_id, "started": started, "server_instance_uuid": api.store.instance().to_string(),
            "policies": policies, "policy_filters": filters, "ended": now(), "status": 200, "message": message,
        });
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Handler, answered.await)
}

/// `GET /policy/components`: the policies and filters of each component. The bodies are references, because the answer has all
/// components.
pub(crate) async fn components<S: ConfigurationStore>(State(api): State<Arc<Api<S>>>, call: Call) -> Response<Body> {
    let answered = async {
        let started = now();
        let subscriptions = api.listed_subscriptions(call.caller()).await?;
        let (mut instances, mut with_policies) = (Vec::new(), Vec::new());
        let (mut policies, mut filters) = (Vec::new(), Vec::new());
        for subscription in &subscriptions {
            let Some(component) = Component::new(subscription) else { continue };
            let (own_policies, own_filters) = members(&component);
            instances.push(json!({
                "id": component.id, "deployment_id": component.namespace,
                "runtime_properties": {
                    "service_component_name": service_component_name(subscription),
                    "policies": by_id(&own_policies, "policy_id"),
                    "policy_filters": by_id(&own_filters, "policy_filter_id"),
                },
            }));
            with_policies.push(json!({
                "node_instance_id": component.id, "deployment_id": component.namespace,
                "policies_count": own_policies.len(), "policy_filters_count": own_filters.len(),
            }));
            for (list, own) in [(&mut policies, own_policies), (&mut filters, own_filters)] {
                list.extend(own.into_iter().map(|mut member| {
                    member["component_id"] = json!(component.id);
                    member["deployment_id"] = json!(component.namespace);
                    member
                }));
            }
        }
        let message =
            format!("{} components with {} policies and {} filters", instances.len(), policies.len(), filters.len());
        let body = json!({
            "requestID": call.request_id, "started": started, "server_instance_uuid": api.store.instance().to_string(),
            "node_instance_ids": with_policies, "component_policies": policies, "component_policy_filters": filters,
            "node_instances": instances, "ended": now(), "status": 200, "message": message,
        });
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Handler, answered.await)
}

/// Returns the policies and filters of a component.
fn members(component: &Component) -> (Vec<Value>, Vec<Value>) {
    let policies = component.policies.iter().map(|(id, version)| {
        let body: Value = serde_json::from_str(&reference(id, version)).unwrap_or_default();
        json!({"policy_id": id, "policy_body": body})
    });
    let filters =
        component.filters().map(|(id, filter)| json!({"policy_filter_id": id, "policy_filter": to_onap(filter)}));
    (policies.collect(), filters.collect())
}

fn by_id(members: &[Value], id: &str) -> Value {
    let members = members.iter().filter_map(|member| Some((member[id].as_str()?.to_owned(), member.clone())));
    Value::Object(members.collect())
}

/// `PUT /policy`: makes the components that the policies of the message concern compare their policies with those that they should
/// have. The answer comes before the comparison. The bodies in the message are not used: policies are objects of the store.
pub(crate) async fn update<S: ConfigurationStore>(
    State(api): State<Arc<Api<S>>>,
    call: Call,
    request: Request,
) -> Response<Body> {
    let answered = async {
        let started = now();
        let received = read_json(request, MAX_UPDATE).await?;
        let named = named_policies(&received.bytes)?;
        drop(received);
        let changeable = api.changeable_subscriptions(call.caller()).await?;
        if changeable.is_empty() && !api.store.subscriptions().await?.is_empty() {
            return Err(no_change());
        }
        let concerned = match &named {
            Named::All => changeable,
            Named::Only(ids) => concerned(&api, changeable, ids).await?,
        };
        tracing::info!(
            user = call.user(),
            components = concerned.len(),
            request = call.request_id,
            "policy update received"
        );
        if !concerned.is_empty() {
            api.store.request_catch_up(call.caller(), concerned).await?;
        }
        let body = json!({
            "requestID": call.request_id, "started": started, "server_instance_uuid": api.store.instance().to_string(),
        });
        Ok(json_answer(StatusCode::OK, &body))
    };
    respond(Form::Handler, answered.await)
}

/// The policies that a message names.
enum Named {
    /// All, because the message is the result of a catch-up.
    All,
    Only(BTreeSet<PolicyId>),
}

/// The members of a message that name policies. A message may be large, so that its bodies are not parsed into values.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    catch_up: Option<&'a RawValue>,
    #[serde(borrow)]
    latest_policies: Option<&'a RawValue>,
    #[serde(borrow)]
    removed_policies: Option<&'a RawValue>,
    #[serde(borrow)]
    policy_filter_matches: Option<&'a RawValue>,
}

/// The policy ids that are the keys of an object.
struct Keys(BTreeSet<PolicyId>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with policy ids as its keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Keys, A::Error> {
                let mut ids = BTreeSet::new();
                while let Some((id, IgnoredAny)) = map.next_entry::<String, _>()? {
                    // A policy of another policy engine has another form of id, and no component of Proviso has it.
                    ids.extend(id.parse::<PolicyId>());
                }
                Ok(Keys(ids))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

fn named_policies(message: &[u8]) -> Result<Named> {
    let message: Message<'_> = serde_json::from_slice(message).map_err(|error| match error.classify() {
        Category::Data => Refusal::invalid("body", &format!("is no policy update: {error}")),
        _ => not_json(&error),
    })?;
    let is_catch_up = match message.catch_up.map(RawValue::get) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Refusal::invalid("catch_up", "is not true or false")),
    };
    let mut ids = BTreeSet::new();
    for (name, policies) in [
        ("latest_policies", message.latest_policies),
        ("removed_policies", message.removed_policies),
        ("policy_filter_matches", message.policy_filter_matches),
    ] {
        let Some(policies) = policies else { continue };
        let Ok(Keys(keys)) = serde_json::from_str(policies.get()) else {
            return Err(Refusal::invalid(name, "is not an object with policy ids as its keys"));
        };
        ids.extend(keys);
    }
    Ok(if is_catch_up { Named::All } else { Named::Only(ids) })
}

/// Returns the subscriptions that one of these policies concerns: they select it, or their components have it.
async fn concerned<S: ConfigurationStore>(
    api: &Api<S>,
    subscriptions: Vec<Arc<PolicySubscription>>,
    ids: &BTreeSet<PolicyId>,
) -> Result<Vec<Arc<PolicySubscription>>> {
    let catalog = api.store.catalog().await?;
    let policies: Vec<_> = ids.iter().filter_map(|id| catalog.get(id).cloned()).collect();
    let ids = ids.clone();
    let _permit = api.large_answer().await?;
    let selecting = tokio::task::spawn_blocking(move || {
        let is_concerned = |subscription: &Arc<PolicySubscription>| {
            let Some(component) = Component::new(subscription) else {
                tracing::debug!(
                    subscription = subscription.name_any(),
                    "a subscription with invalid selectors is skipped"
                );
                return false;
            };
            if component.policies.keys().chain(component.selected_ids()).any(|id| ids.contains(id)) {
                return true;
            }
            let compiled = component.compiled();
            policies.iter().any(|policy| compiled.is_concerned_by(policy))
        };
        subscriptions.into_iter().filter(is_concerned).collect()
    });
    selecting.await.map_err(|error| Refusal::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_policies_in_three_members() {
        let message = json!({
            "catch_up": false,
            "latest_policies": {"cluster.a": {"policy_id": "cluster.a", "policy_body": {}}, "DCAE.Config_x": {}},
            "removed_policies": {"ns.team.b": true},
            "policy_filter_matches": {"cluster.c": {"f": true}},
        });
        let named = |message: &Value| named_policies(message.to_string().as_bytes());
        let Named::Only(ids) = named(&message).ok().unwrap() else { panic!("not a catch-up") };
        assert_eq!(ids.iter().map(PolicyId::as_str).collect::<Vec<_>>(), ["cluster.a", "cluster.c", "ns.team.b"]);
        assert!(matches!(named(&json!({"catch_up": true})), Ok(Named::All)));
        assert!(matches!(named(&json!({"catch_up": null, "latest_policies": null})), Ok(Named::Only(_))));
        for (message, field) in [
            (json!([]), "body"),
            (json!({"catch_up": "yes"}), "catch_up"),
            (json!({"latest_policies": []}), "latest_policies"),
            (json!({"removed_policies": "cluster.a"}), "removed_policies"),
        ] {
            let refusal = named(&message).err().unwrap();
            assert!(refusal.message.starts_with(&format!("{field}: ")), "{}", refusal.message);
        }
    }
}
