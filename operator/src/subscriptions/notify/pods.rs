//! The pods of a component: those that its workload controls. A label alone does not make a pod a part of the workload, because everybody
//! who creates pods in the namespace can set labels.

use std::collections::HashSet;
use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::core::Selector;
use kube::{Api, Resource, ResourceExt};
use proviso_crds::{Component, ComponentKind, PolicySubscription};
use serde::de::DeserializeOwned;

use crate::subscriptions::Shared;
use crate::subscriptions::component::is_owned;

/// The annotation of a pod that names the container in which `kubectl exec` runs commands by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A pod of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::subscriptions) struct Pod {
    pub name: String,
    pub uid: String,
    pub is_ready: bool,
    /// True if the pod has a node: its kubelet may have read the stored policies, also if no container of the pod runs yet.
    pub has_started: bool,
    /// The time since which the pod is Ready, or not Ready, in whole seconds.
    ready_changed: Option<Timestamp>,
    pub containers: Vec<String>,
    default_container: Option<String>,
}

impl Pod {
    /// Returns the container in which a command runs: `requested`, or else the default container of the pod. `None` if the pod does not
    /// have the container.
    pub fn container<'a>(&'a self, requested: Option<&'a str>) -> Option<&'a str> {
        let wanted = requested.or(self.default_container.as_deref()).or(self.containers.first().map(String::as_str))?;
        self.containers.iter().any(|container| container == wanted).then_some(wanted)
    }

    /// Returns true if the pod may have read the policies before an update that began at this time, and was not Ready then.
    pub fn may_have_missed(&self, update: Timestamp) -> bool {
        if self.is_ready {
            self.ready_changed.is_none_or(|changed| changed.as_second() >= update.as_second())
        } else {
            self.has_started
        }
    }
}

impl From<&v1::Pod> for Pod {
    fn from(pod: &v1::Pod) -> Self {
        let status = pod.status.as_ref();
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            is_ready: ready.is_some_and(|condition| condition.status == "True"),
            has_started: pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()),
            ready_changed: ready.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0),
            containers: pod.spec.iter().flat_map(|spec| &spec.containers).map(|it| it.name.clone()).collect(),
            default_container: pod.annotations().get(DEFAULT_CONTAINER).cloned(),
        }
    }
}

/// Returns the pods of the component that are not being deleted and have not ended, by name. None if the workload does not exist.
pub(in crate::subscriptions) async fn of_component(
    shared: &Shared,
    subscription: &PolicySubscription,
    namespace: &str,
) -> kube::Result<Vec<Pod>> {
    let Some(Component { kind, name }) = &subscription.spec.component else { return Ok(Vec::new()) };
    let client = &shared.context.client;
    let found = match kind {
        ComponentKind::Deployment => {
            let found = get::<Deployment>(shared, namespace, name).await?;
            found.map(|it| (it.uid(), it.spec.map(|spec| spec.selector)))
        }
        ComponentKind::StatefulSet => {
            let found = get::<StatefulSet>(shared, namespace, name).await?;
            found.map(|it| (it.uid(), it.spec.map(|spec| spec.selector)))
        }
        ComponentKind::DaemonSet => {
            let found = get::<DaemonSet>(shared, namespace, name).await?;
            found.map(|it| (it.uid(), it.spec.map(|spec| spec.selector)))
        }
    };
    let Some((Some(uid), Some(selector))) = found else { return Ok(Vec::new()) };
    let Some(selected) = list_params(selector) else { return Ok(Vec::new()) };
    let mut controllers = HashSet::from([uid.clone()]);
    if *kind == ComponentKind::Deployment {
        let sets = Api::<ReplicaSet>::namespaced(client.clone(), namespace).list_metadata(&selected).await?;
        controllers.extend(sets.items.iter().filter(|set| is_owned(*set, &uid)).filter_map(ResourceExt::uid));
    }
    let pods = Api::<v1::Pod>::namespaced(client.clone(), namespace).list(&selected).await?;
    Ok(of_controllers(&pods.items, &controllers))
}

async fn get<K>(shared: &Shared, namespace: &str, name: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    Api::<K>::namespaced(shared.context.client.clone(), namespace).get_opt(name).await
}

/// Returns the parameters of a list of the objects that the selector selects. The API server admits no workload with an invalid selector.
fn list_params(selector: LabelSelector) -> Option<ListParams> {
    let selector = Selector::try_from(selector).ok()?;
    Some(ListParams::default().labels_from(&selector))
}

fn of_controllers(pods: &[v1::Pod], controllers: &HashSet<String>) -> Vec<Pod> {
    let is_of_workload = |pod: &v1::Pod| controllers.iter().any(|uid| is_owned(pod, uid));
    let is_running = |pod: &v1::Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let mut pods: Vec<_> = pods.iter().filter(|pod| is_of_workload(pod) && is_running(pod)).map(Pod::from).collect();
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    pods
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, owner: &str, ready: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "uid": format!("uid-{name}"),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": owner, "controller": true,
                }],
            },
            "spec": {"nodeName": "node", "containers": [{"name": "sidecar"}, {"name": "collector"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-28T10:00:00Z"}],
            },
        })
    }

    #[test]
    fn only_running_pods_of_the_workload_count() {
        let mut stranger = pod("stranger", "mine", "True");
        stranger["metadata"]["ownerReferences"][0]["controller"] = false.into();
        let mut deleted = pod("deleted", "mine", "True");
        deleted["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z".into();
        let mut ended = pod("ended", "mine", "False");
        ended["status"]["phase"] = "Failed".into();
        let mut pending = pod("pending", "mine", "False");
        pending["status"] = json!({"phase": "Pending"});
        let mut unscheduled = pending.clone();
        unscheduled["metadata"]["name"] = "unscheduled".into();
        unscheduled["spec"]["nodeName"] = Value::Null;
        let pods = [
            pod("b", "mine", "False"),
            pod("a", "mine", "True"),
            pod("c", "other", "True"),
            stranger,
            deleted,
            ended,
            pending,
            unscheduled,
        ];
        let pods: Vec<v1::Pod> = pods.into_iter().map(|pod| serde_json::from_value(pod).unwrap()).collect();
        let found = of_controllers(&pods, &HashSet::from(["mine".to_owned()]));
        let found: Vec<_> = found.iter().map(|pod| (pod.name.as_str(), pod.is_ready, pod.has_started)).collect();
        let expected = [("a", true, true), ("b", false, true), ("pending", false, true), ("unscheduled", false, false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_that_was_not_ready_at_an_update_may_have_missed_it() {
        let pod = |ready: &str, node: Value| {
            let mut pod = pod("a", "mine", ready);
            pod["spec"]["nodeName"] = node;
            Pod::from(&serde_json::from_value::<v1::Pod>(pod).unwrap())
        };
        let [before, same_second, after] = ["2026-11-28T09:59:59.9Z", "2026-11-28T10:00:00.9Z", "2026-11-28T10:00:01Z"]
            .map(|time| time.parse().unwrap());
        let ready = pod("True", json!("node"));
        let missed = [before, same_second, after].map(|update| ready.may_have_missed(update));
        assert_eq!(missed, [true, true, false]);
        assert!(pod("False", json!("node")).may_have_missed(after));
        assert!(!pod("False", Value::Null).may_have_missed(after), "it reads the policies when it starts");
    }

    #[test]
    fn the_container_is_the_requested_one_or_the_default_of_the_pod() {
        let read = |pod: Value| Pod::from(&serde_json::from_value::<v1::Pod>(pod).unwrap());
        let plain = read(pod("a", "mine", "True"));
        assert_eq!(plain.container(None), Some("sidecar"));
        assert_eq!(plain.container(Some("collector")), Some("collector"));
        assert_eq!(plain.container(Some("missing")), None);
        let mut annotated = pod("a", "mine", "True");
        annotated["metadata"]["annotations"] = json!({DEFAULT_CONTAINER: "collector"});
        assert_eq!(read(annotated.clone()).container(None), Some("collector"));
        annotated["metadata"]["annotations"][DEFAULT_CONTAINER] = "gone".into();
        assert_eq!(read(annotated).container(None), None);
    }
}
