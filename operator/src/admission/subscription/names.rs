//! The ConfigMaps and service component names of all subscriptions, which the webhook compares. Every replica of the operator keeps them.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_crds::{PolicySubscription, PolicySubscriptionSpec};

use crate::cache::{Cache, Cached, Name, name};
use crate::malformed::MaybeMalformed;
use crate::objects::watch_config;

/// The number of subscriptions in one page of a list, which are in memory at the same time.
const PAGE_SIZE: u32 = 50;

/// A subscription without its spec and status, except for the names that only one subscription should have.
#[derive(Clone, Debug)]
struct NamedSubscription {
    metadata: ObjectMeta,
    keys: Vec<String>,
}

/// The names of all subscriptions.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionNames(Cache<NamedSubscription>);

impl SubscriptionNames {
    /// Watches the subscriptions until the future is dropped.
    pub async fn follow(&self, client: &Client) {
        self.0.follow(Api::all(client.clone()), watch_config().page_size(PAGE_SIZE)).await;
    }

    pub(super) async fn listed(&self) {
        self.0.listed().await;
    }

    /// Returns a warning about the names that another subscription has; `None` if there is none.
    pub(super) fn warning(&self, namespace: &str, subscription: &str, spec: &PolicySubscriptionSpec) -> Option<String> {
        let own: Name = (Some(namespace.to_owned()), subscription.to_owned());
        let other = |key: &str| {
            // Names in other namespaces are none of the user's business.
            let mut names: Vec<_> = self.0.reader().names(key).into_iter().filter(|name| *name != own).collect();
            names.sort_by_key(|(namespace, _)| *namespace != own.0);
            let (namespace, name) = names.into_iter().next()?;
            let is_own = namespace == own.0;
            Some(if is_own {
                format!("the PolicySubscription {name}")
            } else {
                "a PolicySubscription in another namespace".into()
            })
        };
        let config_map = other(&config_map_key(namespace, spec)).map(|other| {
            format!(
                "spec.delivery.configMap: {other} has the ConfigMap {} too, and only the older one of both is \
                 delivered: choose another name",
                spec.delivery.config_map
            )
        });
        let scn = other(&scn_key(namespace, subscription, spec)).map(|other| {
            format!(
                "spec.scn: {other} has the service component name {} too, so that the REST API returns only one of \
                 both for it: choose another name",
                spec.service_component_name(namespace, subscription)
            )
        });
        let warnings: Vec<_> = config_map.into_iter().chain(scn).collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }
}

fn config_map_key(namespace: &str, spec: &PolicySubscriptionSpec) -> String {
    format!("configmap/{namespace}/{}", spec.delivery.config_map)
}

fn scn_key(namespace: &str, name: &str, spec: &PolicySubscriptionSpec) -> String {
    format!("scn/{}", spec.service_component_name(namespace, name))
}

impl Cached for NamedSubscription {
    type Sent = MaybeMalformed<PolicySubscription>;

    fn from_sent(sent: Self::Sent) -> Self {
        let (namespace, name) = name(&sent);
        let namespace = namespace.unwrap_or_default();
        let spec = sent.0.as_ref().ok().filter(|known| known.metadata.deletion_timestamp.is_none()).map(|it| &it.spec);
        let keys = spec.map(|spec| vec![config_map_key(&namespace, spec), scn_key(&namespace, &name, spec)]);
        let metadata = ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            resource_version: sent.resource_version(),
            ..ObjectMeta::default()
        };
        Self { metadata, keys: keys.unwrap_or_default() }
    }

    fn keys(&self) -> Vec<String> {
        self.keys.clone()
    }
}

impl Resource for NamedSubscription {
    type DynamicType = ();
    type Scope = <PolicySubscription as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        PolicySubscription::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        PolicySubscription::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        PolicySubscription::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        PolicySubscription::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn subscription(namespace: &str, name: &str, scn: Option<&str>, config_map: &str) -> PolicySubscription {
        serde_json::from_value(json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"},
            "spec": {"scn": scn, "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": config_map}},
        }))
        .unwrap()
    }

    #[test]
    fn a_name_that_another_subscription_has_is_a_warning() {
        let names = SubscriptionNames::default();
        for known in
            [subscription("team", "a", Some("collector"), "policies"), subscription("other", "b", None, "policies")]
        {
            names.0.apply_event(Event::Apply(MaybeMalformed(Ok(known))));
        }
        let warning = |namespace: &str, name: &str, scn: Option<&str>, config_map: &str| {
            let spec = subscription(namespace, name, scn, config_map).spec;
            names.warning(namespace, name, &spec).unwrap_or_default()
        };
        assert_eq!(warning("team", "a", Some("collector"), "policies"), "", "its own names");
        assert_eq!(warning("third", "a", None, "policies"), "", "a ConfigMap of another namespace");
        let same_config_map = warning("team", "c", None, "policies");
        assert!(
            same_config_map.starts_with("spec.delivery.configMap: the PolicySubscription a has "),
            "{same_config_map}"
        );
        let same_scn = warning("third", "c", Some("other.b"), "policies");
        assert!(same_scn.starts_with("spec.scn: a PolicySubscription in another namespace has "), "{same_scn}");
        let in_own_namespace = warning("other", "c", Some("other.b"), "c");
        assert!(in_own_namespace.starts_with("spec.scn: the PolicySubscription b has "), "{in_own_namespace}");
        let both = warning("team", "c", Some("collector"), "policies");
        assert!(both.contains("configMap") && both.contains("spec.scn"), "{both}");
    }
}
