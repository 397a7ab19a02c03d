//! The state of one component, as config-binding returns it: its application records and its stored policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_core::configuration::{Digest, EVENT_KEY, Place, StoredParts, reference};
use proviso_crds::PolicySubscription;
use proviso_rest_api::Caller;
use serde_json::{Map, Value, json};

use crate::answer::{Refusal, Result};
use crate::api::{Api, now, service_component_name};
use crate::binding::{DMAAP, RELATIONSHIPS, bind};
use crate::store::{ConfigurationStore, Permission};

/// The key of the configuration itself.
const CONFIG: &str = "config";
/// The key of the policies.
pub(crate) const POLICIES: &str = "policies";
/// The maximum number of namespaces in which a component is looked for.
const MAX_NAMESPACES: usize = 100;
/// The number of digits of the digest in an index.
const INDEX_DIGITS: usize = 16;

/// The state of a component.
#[derive(Debug)]
pub(crate) struct ComponentState {
    /// The records of the application by their keys; `None` if the subscription names none.
    pub records: Option<BTreeMap<String, Value>>,
    /// The description of the last change of the policies; `None` if no policies were stored yet.
    pub event: Option<Value>,
    /// The policy bodies as JSON, by id.
    pub items: BTreeMap<PolicyId, Arc<str>>,
    /// The index: the `update_id` of the event, and for a component with application records a digest of them after a dot.
    pub index: String,
}

impl<S: ConfigurationStore> Api<S> {
    /// Returns the subscription with this service component name. If there are several that the caller may read, that of a workload in
    /// its own namespace counts, else the oldest one: a subscription that claims the name of another one later does not replace it.
    pub(crate) async fn component(
        &self,
        caller: Option<&Caller>,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<Arc<PolicySubscription>> {
        let mut found = self.store.subscriptions().await?;
        found.retain(|it| {
            service_component_name(it) == name
                && namespace.is_none_or(|namespace| it.namespace().as_deref() == Some(namespace))
        });
        found.sort_by_cached_key(|it| {
            (it.spec.scn.is_some(), it.metadata.creation_timestamp.clone(), it.namespace(), it.name_any())
        });
        let mut namespaces = BTreeSet::new();
        for subscription in found {
            let own = subscription.namespace().unwrap_or_default();
            if !namespaces.insert(own.clone()) {
                continue;
            }
            if namespaces.len() > MAX_NAMESPACES {
                break;
            }
            let permission = Permission::ReadSubscription { namespace: &own, name: &subscription.name_any() };
            if self.is_allowed(caller, permission).await? {
                return Ok(subscription);
            }
        }
        Err(Refusal::not_found(&format!("the component {name:?}")))
    }

    /// Reads the state of a component. The caller has the permission to read its subscription.
    pub(crate) async fn state(
        &self,
        caller: Option<&Caller>,
        subscription: &PolicySubscription,
    ) -> Result<ComponentState> {
        let _permit = self.component_read().await?;
        let stored = self.store.stored(subscription).await?;
        let items = self.items(caller, subscription, &stored).await?;
        let event = event(&stored);
        let (records, application) = self.records(caller, subscription).await?;
        let update = event.as_ref().and_then(|event| event["update_id"].as_str()).unwrap_or("0");
        let index = match application {
            None => index_of(update),
            Some(digest) => format!("{}.{digest}", index_of(update)),
        };
        Ok(ComponentState { records, event, items, index })
    }

    /// Returns the stored policy bodies as the caller may see them.
    pub(crate) async fn items(
        &self,
        caller: Option<&Caller>,
        subscription: &PolicySubscription,
        stored: &StoredParts,
    ) -> Result<BTreeMap<PolicyId, Arc<str>>> {
        let has_secrets = stored.items.values().any(proviso_core::configuration::Item::is_confidential);
        let reads_secrets = has_secrets
            && self.is_allowed(caller, Permission::ReadSecrets(subscription.namespace().as_deref())).await?;
        let items = stored.items.iter().map(|(id, item)| {
            let is_shown = reads_secrets || !item.is_confidential();
            (id.clone(), if is_shown { in_one_line(item.body()) } else { reference(id, item.version()) })
        });
        Ok(items.collect())
    }

    /// Returns the application records, and their digest. `None` if the subscription names none.
    async fn records(
        &self,
        caller: Option<&Caller>,
        subscription: &PolicySubscription,
    ) -> Result<(Option<BTreeMap<String, Value>>, Option<String>)> {
        let Some(application) = &subscription.spec.application else { return Ok((None, None)) };
        let namespace = subscription.namespace().unwrap_or_default();
        let name = &application.config_map;
        // The author of a subscription must not give others a ConfigMap that they may not read.
        if !self.is_allowed(caller, Permission::ReadConfigMap { namespace: &namespace, name }).await? {
            let message = format!(
                "you may not read the ConfigMap {name:?} in the namespace {namespace:?}, which has the component's own configuration: get the permission to `get` this ConfigMap"
            );
            return Err(Refusal::forbidden(message));
        }
        let data = self.store.application(subscription).await?.unwrap_or_default();
        let digest = Digest::of(&json!(data).to_string()).to_string();
        let digits = digest.trim_start_matches("sha256:").chars().take(INDEX_DIGITS).collect();
        let records = data.into_iter().map(|(key, text)| {
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            (key, value)
        });
        Ok((Some(records.collect()), Some(digits)))
    }
}

impl ComponentState {
    /// Returns the configuration of the component with its templates replaced. `None` if the component has no configuration.
    pub(crate) fn config(&self) -> Option<Value> {
        let records = self.records.as_ref()?;
        let dmaap = records.get(DMAAP).and_then(Value::as_object);
        Some(bind(records.get(CONFIG)?.clone(), dmaap))
    }

    /// Returns the record with this key. The configuration itself is no record.
    pub(crate) fn record(&self, key: &str) -> Option<&Value> {
        self.records.as_ref()?.get(key).filter(|_| key != CONFIG && key != POLICIES)
    }

    /// Returns true if the component has records without a configuration: then it must not start with an empty one.
    pub(crate) fn misses_config(&self) -> bool {
        self.records.as_ref().is_some_and(|records| !records.contains_key(CONFIG))
    }

    /// Returns the members of `/service_component_all/{scn}`: the configuration, the policies and the other records. The text is the same
    /// as long as the state is.
    pub(crate) fn members(&self) -> String {
        let mut text = format!("\"config\":{}", self.config().unwrap_or_else(|| json!({})));
        if self.event.is_some() || !self.items.is_empty() {
            let event = self.event.clone().unwrap_or_else(|| json!({}));
            let items: Vec<_> = self.items.values().map(|body| &**body).collect();
            // Writing to a string does not fail.
            let _ = write!(text, ",\"policies\":{{\"event\":{event},\"items\":[{}]}}", items.join(","));
        }
        for (key, value) in self.records.iter().flatten() {
            let is_member = [CONFIG, POLICIES, RELATIONSHIPS, DMAAP, "requestID", "timestamp"].contains(&key.as_str());
            if !is_member {
                let _ = write!(text, ",{}:{value}", Value::from(key.as_str()));
            }
        }
        text
    }

    /// Returns the keys of the component in Consul with their values, below its service component name.
    pub(crate) fn keys(&self, name: &str) -> BTreeMap<String, String> {
        let mut keys = BTreeMap::new();
        for (key, value) in self.records.iter().flatten() {
            match key.as_str() {
                CONFIG => _ = keys.insert(name.to_owned(), value.to_string()),
                POLICIES => {}
                _ => _ = keys.insert(format!("{name}:{key}"), value.to_string()),
            }
        }
        if let Some(event) = &self.event {
            keys.insert(format!("{name}:{POLICIES}/event"), event.to_string());
        }
        let items = self.items.iter().map(|(id, body)| (format!("{name}:{POLICIES}/items/{id}"), body.to_string()));
        keys.extend(items);
        keys
    }
}

/// Returns the answer of `/service_component_all/{scn}` with these members.
pub(crate) fn all(members: &str, request_id: &str) -> String {
    format!(r#"{{{members},"requestID":{},"timestamp":"{}"}}"#, Value::from(request_id), now())
}

/// Returns JSON without line breaks, which an edit by hand may have added between its elements. A line break would end a line of a
/// server-sent event.
fn in_one_line(json: &Arc<str>) -> Arc<str> {
    if json.contains(['\r', '\n']) { json.replace(['\r', '\n'], " ").into() } else { Arc::clone(json) }
}

/// Returns the stored event.
pub(crate) fn event(stored: &StoredParts) -> Option<Value> {
    let mut parts = stored.parts.iter().filter(|part| part.place == Place::ConfigMap);
    let text = parts.find_map(|part| part.data.get(EVENT_KEY))?;
    // After an edit by hand, the event may be anything. The operator repairs it.
    Some(serde_json::from_str::<Map<String, Value>>(text).map_or_else(|_| json!({}), Value::Object))
}

/// Returns an `update_id` as an index. Text that is no UUID, for example after an edit by hand, is replaced by its digest, because an
/// index is a part of headers and events.
fn index_of(update: &str) -> String {
    let is_plain =
        (1..=64).contains(&update.len()) && update.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-');
    if is_plain {
        return update.to_owned();
    }
    Digest::of(update).to_string().trim_start_matches("sha256:").chars().take(INDEX_DIGITS).collect()
}
