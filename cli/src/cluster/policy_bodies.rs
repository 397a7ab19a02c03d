//! The bodies of policies that a component of a cluster has, from its `ConfigMap`s and Secrets, and those that it should have, from the
//! policies.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::configuration::{Entry, ITEM_PREFIX, Item, PREVIOUS_PREFIX, Version};
use proviso_crds::PolicySpec;
use proviso_crds::names::SUBSCRIPTION_LABEL;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Cluster;
use crate::access::Access;
use crate::error::Error;
use crate::found::Omitted;
use crate::objects::{PolicyObject, SubscriptionObject};
use crate::report::{Bodies, Body, ItemReport, ItemState};

/// The stored bodies of a component, by key: `items.<policy id>` and `previous.<policy id>`.
type Stored = BTreeMap<String, Vec<Item>>;

impl Cluster {
    /// Returns the bodies of the policies that are not up to date, and the objects that the user may not read.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn bodies(
        &self,
        subscription: &SubscriptionObject,
        items: &[ItemReport],
    ) -> Result<(Bodies, Vec<Omitted>), Error> {
        let (stored, unseen) = self.stored(subscription).await?;
        let acknowledged = subscription.status.record().acknowledged;
        let mut bodies = Bodies::default();
        for item in items.iter().filter(|item| item.state != ItemState::Current) {
            let Ok(id) = item.policy.parse::<PolicyId>() else { continue };
            if item.has.is_some() {
                bodies.has.insert(item.policy.clone(), body_with(&stored, &id, acknowledged.get(&id)));
            }
            if let Some(version) = &item.should {
                let should = self.desired(&stored, &id, version, acknowledged.get(&id)).await?;
                bodies.should.insert(item.policy.clone(), should);
            }
        }
        Ok((bodies, unseen))
    }

    /// Reads the objects that store the policies of a component.
    async fn stored(&self, subscription: &SubscriptionObject) -> Result<(Stored, Vec<Omitted>), Error> {
        let (mut stored, mut unseen) = (Stored::new(), Vec::new());
        match self.parts::<ConfigMap>(subscription, "configmaps").await {
            Ok(parts) => {
                for (key, text) in parts.into_iter().flat_map(|part| part.data.unwrap_or_default()) {
                    add(&mut stored, key, &text, false);
                }
            }
            Err(error @ Error::Forbidden { .. }) => unseen.push(Omitted::forbidden("the stored policies", &error)),
            Err(error) => return Err(error),
        }
        match self.parts::<Secret>(subscription, "secrets").await {
            Ok(parts) => {
                for (key, bytes) in parts.into_iter().flat_map(|part| part.data.unwrap_or_default()) {
                    add(&mut stored, key, &String::from_utf8_lossy(&bytes.0), true);
                }
            }
            Err(error @ Error::Forbidden { .. }) => unseen.push(Omitted::forbidden("confidential policies", &error)),
            Err(error) => return Err(error),
        }
        Ok((stored, unseen))
    }

    /// Returns the objects of one kind that belong to a subscription.
    async fn parts<K>(&self, subscription: &SubscriptionObject, resource: &'static str) -> Result<Vec<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let namespace = &subscription.name.namespace;
        let access = Access { verb: "list", resource, subresource: None, namespace: Some(namespace.clone()) };
        let ours = ListParams::default().labels(&format!("{SUBSCRIPTION_LABEL}={}", subscription.uid));
        let listed = Api::<K>::namespaced(self.client.clone(), namespace).list(&ours).await;
        let mut parts = listed.map_err(|error| self.error(error, access))?.items;
        // A user may set the label on any object, so the owner decides.
        parts.retain(|part| part.owner_references().iter().any(|owner| owner.uid == subscription.uid));
        Ok(parts)
    }

    /// Returns the body that the component should have in this version.
    async fn desired(
        &self,
        stored: &Stored,
        id: &PolicyId,
        version: &str,
        acknowledged: Option<&Entry>,
    ) -> Result<Body, Error> {
        let Ok(version) = version.parse::<Version>() else {
            return Ok(Err(format!("{version:?} is no version")));
        };
        // While an update is in flight or has failed, its body is stored already.
        let sent = stored.get(&format!("{ITEM_PREFIX}{id}")).into_iter().flatten();
        let mut sent = sent.filter(|item| *item.version() == version && Some(&item.entry()) != acknowledged);
        if let Some(item) = sent.next() {
            return Ok(parse(item));
        }
        if let Some(candidate) = &version.candidate {
            let name = &candidate.experiment;
            return Ok(Err(format!("it is the candidate of the experiment {name}: see its spec")));
        }
        let policy = match self.get::<PolicyObject>(id).await {
            Ok(Some(policy)) => policy,
            Ok(None) => return Ok(Err("the policy does not exist any more".to_owned())),
            Err(error @ Error::Forbidden { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        if policy.generation == version.generation {
            return Ok(computed(id, version, &policy.spec));
        }
        let revisions = match self.revisions(&policy).await {
            Ok(revisions) => revisions.items,
            Err(error @ Error::Forbidden { .. }) => {
                return Ok(Err(format!("generation {version} is not the newest one, and {error}")));
            }
            Err(error) => return Err(error),
        };
        Ok(match revisions.iter().find(|revision| revision.generation == version.generation) {
            Some(revision) => computed(id, version, &revision.data),
            None => Err(format!("there is no revision of generation {version}")),
        })
    }
}

/// Adds a stored body. A key without a policy, and a body that somebody has damaged, are left out.
fn add(stored: &mut Stored, key: String, text: &str, is_confidential: bool) {
    if let Ok(item) = Item::read(text, is_confidential) {
        stored.entry(key).or_default().push(item);
    }
}

/// Returns the body that the component has acknowledged.
fn body_with(stored: &Stored, id: &PolicyId, acknowledged: Option<&Entry>) -> Body {
    let keys = [ITEM_PREFIX, PREVIOUS_PREFIX].map(|prefix| format!("{prefix}{id}"));
    let mut items = keys.iter().filter_map(|key| stored.get(key)).flatten();
    match items.find(|item| Some(&item.entry()) == acknowledged) {
        Some(item) => parse(item),
        None => Err("it is not stored in a ConfigMap or Secret that you may read".to_owned()),
    }
}

fn parse(item: &Item) -> Body {
    serde_json::from_str(item.body()).map_err(|error| error.to_string())
}

/// Returns the body of a policy with this spec.
fn computed(id: &PolicyId, version: Version, spec: &Value) -> Body {
    let spec: PolicySpec = serde_json::from_value(spec.clone()).map_err(|error| format!("its spec: {error}"))?;
    let Some(configuration) = spec.configuration else {
        return Err("the policy has no `spec.configuration` any more".to_owned());
    };
    let Some(content) = &configuration.content else {
        return Err("a template computes it for each component".to_owned());
    };
    let item = Item::new(&configuration.facts(id.clone(), version), &Value::Object(content.clone()));
    item.map_err(|error| error.to_string()).and_then(|item| parse(&item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_acknowledged_body_is_found_under_both_keys() {
        let id: PolicyId = "cluster.memory".parse().unwrap();
        let item = |generation: i64, min: i64| {
            let spec = json!({"configuration": {"configName": "memory", "content": {"min": min}}});
            let body = computed(&id, Version::of(generation), &spec).unwrap();
            Item::read(&body.to_string(), false).unwrap()
        };
        let (old, new) = (item(1, 1), item(2, 2));
        let mut stored = Stored::new();
        add(&mut stored, "items.cluster.memory".to_owned(), new.body(), false);
        add(&mut stored, "previous.cluster.memory".to_owned(), old.body(), false);
        add(&mut stored, "event".to_owned(), r#"{"action":"updated"}"#, false);
        assert_eq!(stored.len(), 2);
        assert_eq!(body_with(&stored, &id, Some(&old.entry())).unwrap()["config"]["min"], 1);
        assert_eq!(body_with(&stored, &id, Some(&new.entry())).unwrap()["config"]["min"], 2);
        let other = item(1, 3);
        assert!(body_with(&stored, &id, Some(&other.entry())).unwrap_err().contains("not stored"));
    }

    #[test]
    fn a_body_that_is_not_known_has_a_cause() {
        let id: PolicyId = "cluster.memory".parse().unwrap();
        for (spec, wanted) in [
            (json!({"configuration": {"configName": "m", "template": {"cel": "{}"}}}), "a template computes it"),
            (json!({"program": {"cel": {"validations": []}}}), "no `spec.configuration`"),
            (json!({"configuration": 1}), "its spec: "),
        ] {
            let error = computed(&id, Version::of(1), &spec).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
