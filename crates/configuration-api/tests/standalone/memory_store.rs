//! A store in memory, with permissions of its callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use kube::ResourceExt as _;
use proviso_configuration_api::{Body, Changes, ConfigurationStore, Permission, instance_of};
use proviso_core::configuration::{
    Audience, Catalog, ConfigurationPolicy, Entry, Item, Part, Place, Record, StoredParts, Version,
};
use proviso_core::{PolicyId, configuration};
use proviso_crds::{PolicySubscription, PolicySubscriptionStatus};
use proviso_rest_api::{Caller, Code, Error};
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

pub type Result<T> = std::result::Result<T, Error>;

/// The update id of the first stored policies.
pub const UPDATE: &str = "0e79edc0-6c64-425e-a618-cc13ef50cd56";

#[derive(Default)]
pub struct State {
    pub policies: Vec<(ConfigurationPolicy, Body)>,
    pub unreadable: Vec<PolicyId>,
    pub subscriptions: Vec<PolicySubscription>,
    /// The stored parts by the name of the subscription.
    pub parts: BTreeMap<String, Vec<Part>>,
    /// The application records by the name of the subscription.
    pub applications: BTreeMap<String, BTreeMap<String, String>>,
    /// The permissions of the user `limited`. Other callers have all.
    pub grants: BTreeSet<String>,
    pub catch_ups: Vec<(String, Vec<String>)>,
    pub resends: Vec<String>,
    pub is_unavailable: bool,
}

pub struct MemoryStore {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

pub fn id(text: &str) -> PolicyId {
    text.parse().unwrap()
}

pub fn policy(id_: &str, generation: i64, config_name: &str) -> ConfigurationPolicy {
    ConfigurationPolicy {
        id: id(id_),
        version: Version::of(generation),
        config_name: config_name.to_owned(),
        owner: None,
        attributes: BTreeMap::new(),
        is_confidential: false,
        audience: Audience::All,
    }
}

pub fn item(policy: &ConfigurationPolicy, content: &Value) -> Item {
    Item::new(policy, content).unwrap()
}

pub fn subscription(namespace: &str, name: &str, spec: &Value) -> PolicySubscription {
    let metadata = json!({"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "generation": 1});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// Returns the stored event of an update with this number of policies.
pub fn event(update: &str, count: usize) -> Value {
    json!({"action": "updated", "policies_count": count, "timestamp": "2026-11-28T10:20:30.777Z", "update_id": update})
}

/// Returns the objects that store these bodies.
pub fn parts(update: &str, items: &[(&str, &Item)]) -> Vec<Part> {
    let mut maps: BTreeMap<String, Arc<str>> = BTreeMap::new();
    let mut secrets = BTreeMap::new();
    for (id, item) in items {
        let map = if item.is_confidential() { &mut secrets } else { &mut maps };
        map.insert(format!("{}{id}", configuration::ITEM_PREFIX), Arc::clone(item.body()));
    }
    maps.insert(configuration::EVENT_KEY.to_owned(), event(update, items.len()).to_string().into());
    vec![Part { place: Place::ConfigMap, index: 0, data: maps }, Part { place: Place::Secret, index: 0, data: secrets }]
}

pub fn acknowledged(items: &[(&str, &Item)]) -> PolicySubscriptionStatus {
    let acknowledged: BTreeMap<PolicyId, Entry> = items.iter().map(|(it, item)| (id(it), item.entry())).collect();
    PolicySubscriptionStatus::default().with_record(&Record { acknowledged, ..Record::default() })
}

/// Returns the text of a permission in the grants of a user.
fn text(permission: Permission<'_>) -> String {
    let of = |namespace: Option<&str>| namespace.unwrap_or("*").to_owned();
    match permission {
        Permission::ReadPolicy(id) => format!("get policy {id}"),
        Permission::ListPolicies(namespace) => format!("list policies {}", namespace.unwrap_or("cluster")),
        Permission::ListNamespacedPolicies => "list policies *".to_owned(),
        Permission::ReadSecrets(namespace) => format!("get secrets {}", of(namespace)),
        Permission::ReadConfigMap { namespace, name } => format!("get configmap {namespace}/{name}"),
        Permission::ReadSubscription { namespace, name } => format!("get subscription {namespace}/{name}"),
        Permission::ListSubscriptions(namespace) => format!("list subscriptions {}", of(namespace)),
        Permission::ChangeSubscription { namespace, name } => format!("patch subscription {namespace}/{name}"),
        Permission::ChangeSubscriptions(namespace) => format!("patch subscriptions {}", of(namespace)),
    }
}

impl MemoryStore {
    /// Returns a store with a component in each of two namespaces. `collector` has an older version of `cluster.memory`.
    pub fn new() -> Arc<Self> {
        let memory = ConfigurationPolicy {
            owner: Some("DCAE".to_owned()),
            attributes: [("key1".to_owned(), "value1".to_owned())].into(),
            ..policy("cluster.memory", 3, "memory")
        };
        let secret = ConfigurationPolicy { is_confidential: true, ..policy("ns.team.secret", 1, "secret") };
        let old_memory = item(&ConfigurationPolicy { version: Version::of(2), ..memory.clone() }, &json!({"min": 2}));
        let (new_memory, secret_item) = (item(&memory, &json!({"min": 8})), item(&secret, &json!({"key": "k"})));
        let mut collector = subscription(
            "team",
            "collector",
            &json!({
                "component": {"kind": "Deployment", "name": "collector"},
                "policies": [{"id": "cluster.memory"}, {"filter": {"nameRegex": "ns\\.team\\..*"}}],
                "application": {"configMap": "collector"},
                "delivery": {"configMap": "collector-policies"},
            }),
        );
        let has = [("cluster.memory", &old_memory), ("ns.team.secret", &secret_item)];
        collector.status = Some(acknowledged(&has));
        let gateway = subscription(
            "edge",
            "gateway",
            &json!({
                "scn": "gateway-1", "policies": [{"filter": {"configName": "memory", "attributes": {"key1": "value1"}}}],
                "delivery": {"configMap": "gateway"},
            }),
        );
        let application = [
            ("config", r#"{"topic": "<<feed>>", "level": 1}"#),
            ("dmaap", r#"{"feed": {"url": "u"}}"#),
            ("dti", r#"{"a": [1]}"#),
            ("note", "plain text"),
        ];
        let application = application.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let state = State {
            parts: [("collector".to_owned(), parts(UPDATE, &has))].into(),
            policies: vec![
                (memory, Body::Item(new_memory)),
                (secret, Body::Item(secret_item)),
                (policy("cluster.computed", 4, "computed"), Body::Template),
                (policy("cluster.broken", 5, "broken"), Body::Failed("the body is too large".to_owned())),
            ],
            subscriptions: vec![collector, gateway],
            applications: [("collector".to_owned(), application.into())].into(),
            ..State::default()
        };
        Arc::new(Self { state: Mutex::new(state), changes: watch::Sender::new(0) })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes the state and reports the change.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns the number of watches in progress.
    pub fn watches(&self) -> usize {
        self.changes.receiver_count()
    }

    fn available(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.is_unavailable { Err(Error::new(Code::Unavailable, "NOT_READ", "not read yet")) } else { Ok(state) }
    }
}

impl ConfigurationStore for MemoryStore {
    fn instance(&self) -> Uuid {
        instance_of("test")
    }

    fn is_ready(&self) -> bool {
        !self.state().is_unavailable
    }

    async fn is_allowed(&self, caller: Option<&Caller>, permission: Permission<'_>) -> Result<bool> {
        let state = self.available()?;
        Ok(caller.is_none_or(|caller| caller.user != "limited") || state.grants.contains(&text(permission)))
    }

    async fn catalog(&self) -> Result<Arc<Catalog>> {
        let state = self.available()?;
        let policies = state.policies.iter().map(|(policy, _)| policy.clone());
        Ok(Arc::new(Catalog::new(policies, state.unreadable.iter().cloned())))
    }

    async fn bodies(
        &self,
        policies: &[Arc<ConfigurationPolicy>],
        component: Option<&PolicySubscription>,
    ) -> Result<Vec<Body>> {
        let state = self.available()?;
        let body = |policy: &Arc<ConfigurationPolicy>| {
            let (_, body) = state.policies.iter().find(|(known, _)| known == &**policy).unwrap();
            match (body, component) {
                (Body::Template, Some(component)) => {
                    Body::Item(item(policy, &json!({"component": component.name_any()})))
                }
                (body, _) => body.clone(),
            }
        };
        Ok(policies.iter().map(body).collect())
    }

    async fn subscriptions(&self) -> Result<Vec<Arc<PolicySubscription>>> {
        Ok(self.available()?.subscriptions.iter().cloned().map(Arc::new).collect())
    }

    async fn stored(&self, subscription: &PolicySubscription) -> Result<StoredParts> {
        let parts = self.available()?.parts.get(&subscription.name_any()).cloned().unwrap_or_default();
        Ok(StoredParts::read(parts))
    }

    async fn application(&self, subscription: &PolicySubscription) -> Result<Option<BTreeMap<String, String>>> {
        Ok(self.available()?.applications.get(&subscription.name_any()).cloned())
    }

    async fn watch(&self, _: &PolicySubscription) -> Result<Changes> {
        Ok(Changes::new(self.changes.subscribe(), ()))
    }

    async fn request_catch_up(
        &self,
        caller: Option<&Caller>,
        subscriptions: Vec<Arc<PolicySubscription>>,
    ) -> Result<()> {
        let names = subscriptions.iter().map(|it| it.name_any()).collect();
        self.available()?.catch_ups.push((caller.map(|it| it.user.clone()).unwrap_or_default(), names));
        Ok(())
    }

    async fn request_resend(&self, _: Option<&Caller>, subscription: &PolicySubscription) -> Result<String> {
        self.available()?.resends.push(subscription.name_any());
        Ok("r-1".to_owned())
    }
}
