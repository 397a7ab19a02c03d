//! `PolicySubscription`: the configuration policies of a component, and their delivery to it (the policy flow of ONAP DCAE). No
//! controller acts on this kind yet.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The regular expression of policy ids.
const POLICY_ID: &str =
    r"^(cluster|ns\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The regular expression of object names (DNS subdomains).
const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The regular expression of the names of containers and Services (DNS labels).
const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The spec of a PolicySubscription: one component, its policies and their delivery. Not implemented yet: this spec has no
/// effect.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicySubscription",
    namespaced,
    category = "proviso",
    shortname = "pvsub",
    doc = "The configuration policies of a component, and their delivery to it. Not implemented yet: this kind has no effect. \
           Proviso stores PolicySubscriptions, but delivers no policies and notifies no components.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.component.kind"),
    printcolumn(name = "Component", type_ = "string", json_path = ".spec.component.name"),
    printcolumn(name = "SCN", type_ = "string", json_path = ".spec.scn"),
    printcolumn(name = "ConfigMap", type_ = "string", json_path = ".spec.delivery.configMap"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("has(self.component) != has(self.scn)")
        .message("needs exactly one of `component` and `scn`")
)]
#[serde(rename_all = "camelCase")]
pub struct PolicySubscriptionSpec {
    /// The component, as a reference to the workload in this namespace that runs it. Exclusive with `scn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<Component>,
    /// The service component name of a component that does not run in Kubernetes: 1 to 253 characters. Exclusive with
    /// `component`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scn: Option<String>,
    /// The policies of the component: every policy that at least one of these selectors selects. 1 to 100 selectors.
    #[schemars(length(min = 1, max = 100))]
    pub policies: Vec<PolicySelector>,
    /// The delivery of the policies to the component. Not implemented yet: this field has no effect.
    pub delivery: Delivery,
}

/// A reference to the workload that runs a component.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Component {
    /// The kind of the workload: `Deployment`, `StatefulSet` or `DaemonSet`.
    pub kind: ComponentKind,
    /// The name of the workload.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
}

/// The kinds of workloads that run components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ComponentKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// A selector of policies: exactly one of `id` and `filter`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.id) != has(self.filter)").message("needs exactly one of `id` and `filter`"))]
pub struct PolicySelector {
    /// The id of one policy: `cluster.<name>` for a ClusterPolicy, `ns.<namespace>.<name>` for a Policy of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = POLICY_ID))]
    pub id: Option<String>,
    /// The criteria of the policies. The selector also selects policies that are created later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// Criteria that a policy must all meet. At least one criterion is required.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.nameRegex) || has(self.configName) || has(self.owner) || (has(self.attributes) && self.attributes.size() > 0)")
        .message("needs at least one of `nameRegex`, `configName`, `owner` and `attributes`")
)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    /// A regular expression (RE2) that must match the whole id of the policy: 1 to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    // The evaluation of this rule fails for an invalid regular expression, and the API server reports the syntax error.
    #[x_kube(validation = Rule::new("''.matches(self) in [true, false]").message("is not a valid regular expression"))]
    pub name_regex: Option<String>,
    /// The required `configName` of the policy: 1 to 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub config_name: Option<String>,
    /// The required `owner` of the policy: 1 to 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub owner: Option<String>,
    /// The required attributes of the policy and their values: at most 64 attributes, with values of at most 1024 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "attributes")]
    pub attributes: BTreeMap<String, String>,
    /// True if the filter is expected to select at most one policy. Default: false.
    #[serde(default)]
    pub unique: bool,
}

/// The delivery of policies to a component.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The name of the ConfigMap in this namespace for the policies: at most 240 characters. Policies that are too large
    /// for one ConfigMap are split over several, whose names begin with this name.
    #[schemars(length(max = 240), regex(pattern = NAME))]
    pub config_map: String,
    /// The notification of the component about changes of its policies. Default: no notification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
}

/// A notification: exactly one of `exec` and `http`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.exec) != has(self.http)").message("needs exactly one of `exec` and `http`"))]
pub struct Notify {
    /// A command that runs in each pod of the component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<NotifyExec>,
    /// A POST request to a Service in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<NotifyHttp>,
}

/// A command. Two arguments are appended to it: `policies`, and JSON with the updated and the removed policies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NotifyExec {
    /// The name of the container in which the command runs.
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub container: String,
    /// The program and its arguments: 1 to 64 strings of at most 1024 characters.
    #[schemars(length(min = 1, max = 64), inner(length(max = 1024)))]
    pub command: Vec<String>,
}

/// An HTTP endpoint. The body of the request is JSON with the updated and the removed policies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NotifyHttp {
    /// The name of the Service.
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub service: String,
    /// The path of the endpoint. It begins with a slash and has at most 1024 characters.
    #[schemars(length(max = 1024), regex(pattern = "^/"))]
    pub path: String,
    /// The port of the Service: 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

fn attributes(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 1024},
    })
}
