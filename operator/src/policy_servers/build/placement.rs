//! The placement of the replicas: the loss of one node leaves a replica that answers, and the lost replicas return on
//! other nodes. The fields of the spec replace the defaults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use proviso_crds::PolicyServer;
use proviso_crds::names::SERVER_LABEL;

/// The taints of nodes that report that they are not ready, and of nodes that do not report.
const LOST_NODE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// The time that a replica stays on a node with these taints, in seconds. The default of Kubernetes is 300. A replica
/// has no data that a longer wait would save, and the node may be the only one with replicas.
const TOLERATION_SECONDS: i64 = 30;

/// Returns the labels of the nodes that replicas may run on. The images are Linux images, and the default spreading
/// would require a replica on each Windows node without a taint.
pub(super) fn node_selector(server: &PolicyServer) -> BTreeMap<String, String> {
    let mut selector = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
    selector.extend(server.spec.node_selector.clone());
    selector
}

/// Returns the tolerations of the spec, and a short toleration of each taint of lost nodes that these do not match.
pub(super) fn tolerations(server: &PolicyServer) -> Vec<Toleration> {
    let own = &server.spec.tolerations;
    // The same condition as in the admission plugin of Kubernetes that adds the default of 300 s. An empty key or
    // effect matches all.
    let is_tolerated = |taint: &str| {
        own.iter().any(|toleration| {
            ["", taint].contains(&toleration.key.as_deref().unwrap_or_default())
                && ["", "NoExecute"].contains(&toleration.effect.as_deref().unwrap_or_default())
        })
    };
    let short = |taint: &str| Toleration {
        key: Some(taint.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(TOLERATION_SECONDS),
        ..Toleration::default()
    };
    let added = LOST_NODE_TAINTS.into_iter().filter(|taint| !is_tolerated(taint)).map(short);
    own.iter().cloned().chain(added).collect()
}

/// Returns the constraints of the spec. Without constraints, and without rules about other pods in `affinity`, returns
/// the default. A constraint without a selector selects the replicas.
pub(super) fn topology_spread_constraints(server: &PolicyServer) -> Vec<TopologySpreadConstraint> {
    let spec = &server.spec;
    let has_pod_rules =
        spec.affinity.as_ref().is_some_and(|it| it.pod_affinity.is_some() || it.pod_anti_affinity.is_some());
    let mut constraints = spec.topology_spread_constraints.clone();
    if constraints.is_empty() && !has_pod_rules {
        constraints = default_constraints().into();
    }
    let own = LabelSelector {
        match_labels: Some([(SERVER_LABEL.to_owned(), server.name_any())].into()),
        ..LabelSelector::default()
    };
    for constraint in &mut constraints {
        constraint.label_selector.get_or_insert_with(|| own.clone());
    }
    constraints
}

/// Returns the default: an even number of replicas on the nodes, and if possible in the zones.
///
/// For nodes, `ScheduleAnyway` would only be a preference, which other scores of the scheduler outweigh: both replicas
/// could run on one node. A required anti-affinity would leave the second replica unscheduled in a cluster of one node,
/// and during the drain of one of two nodes. `DoNotSchedule` with a skew of 1 compares only the nodes that a replica
/// may run on: a single node gets all replicas, and of several nodes none gets a second replica while another one has
/// none. `Honor` excludes nodes with taints. Without it, a lost or drained node would count as a node without replicas,
/// and would keep its replica from starting on a node that has one.
///
/// Zones are a preference, because a zone may have no room, and a volume may be available in one zone only.
fn default_constraints() -> [TopologySpreadConstraint; 2] {
    let constraint = |topology_key: &str, when_unsatisfiable: &str| TopologySpreadConstraint {
        max_skew: 1,
        topology_key: topology_key.to_owned(),
        when_unsatisfiable: when_unsatisfiable.to_owned(),
        node_taints_policy: Some("Honor".to_owned()),
        ..TopologySpreadConstraint::default()
    };
    let nodes = constraint("kubernetes.io/hostname", "DoNotSchedule");
    [nodes, constraint("topology.kubernetes.io/zone", "ScheduleAnyway")]
}
