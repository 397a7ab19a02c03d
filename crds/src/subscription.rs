//! `PolicySubscription`: which configuration policies a component wants, and how it gets them (ONAP DCAE's policy flow).

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The id of a policy.
const POLICY_ID: &str =
    r"^(cluster|ns\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The name of most objects.
const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The name of containers and Services.
const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The policies that one component is configured by.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicySubscription",
    namespaced,
    category = "proviso",
    shortname = "pvsub",
    doc = "The configuration policies that a component wants, and how it gets them. This version of Proviso stores \
           subscriptions and does not act on them yet: nothing is delivered and nobody is notified.",
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
    /// The component, as the object of this namespace that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<Component>,
    /// The component, by its service component name, for one that Kubernetes does not run. At most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scn: Option<String>,
    /// What it wants: policies that any of these items selects, 1 to 100 items.
    #[schemars(length(min = 1, max = 100))]
    pub policies: Vec<Subscribed>,
    /// How it gets them.
    pub delivery: Delivery,
}

/// An object that runs a component.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Component {
    pub kind: ComponentKind,
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
}

/// What runs components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ComponentKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// Policies: exactly one of `id` and `filter`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.id) != has(self.filter)").message("needs exactly one of `id` and `filter`"))]
pub struct Subscribed {
    /// One policy: `cluster.<name>`, or `ns.<namespace>.<name>` for a Policy of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = POLICY_ID))]
    pub id: Option<String>,
    /// All policies that these criteria select, also those that come later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// Criteria, of which at least one is given and all must hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.nameRegex) || has(self.configName) || has(self.owner) || (has(self.attributes) && self.attributes.size() > 0)")
        .message("needs at least one of `nameRegex`, `configName`, `owner` and `attributes`")
)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    /// A regular expression (RE2) that the whole id of the policy matches. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    // What is no regular expression cannot be evaluated, and that is told with what is wrong with it.
    #[x_kube(validation = Rule::new("''.matches(self) in [true, false]").message("is no regular expression"))]
    pub name_regex: Option<String>,
    /// The policy's `configName`. At most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub config_name: Option<String>,
    /// The policy's `owner`. At most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub owner: Option<String>,
    /// Attributes that the policy has with these values, at most 64 of at most 1024 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "attributes")]
    pub attributes: BTreeMap<String, String>,
    /// Whether the filter is meant to select one policy and no more. Default: false.
    #[serde(default)]
    pub unique: bool,
}

/// How a component gets its policies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The ConfigMap of this namespace that the policies are written to. If they are too large for one, there are more,
    /// whose names begin with this one. At most 240 characters.
    #[schemars(length(max = 240), regex(pattern = NAME))]
    pub config_map: String,
    /// How the component learns that they have changed. Default: not at all, it looks for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
}

/// A notification: exactly one of `exec` and `http`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.exec) != has(self.http)").message("needs exactly one of `exec` and `http`"))]
pub struct Notify {
    /// A command in each pod of the component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<NotifyExec>,
    /// A POST to a Service of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<NotifyHttp>,
}

/// A command. It gets two arguments more: `policies`, and JSON with what was updated and removed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NotifyExec {
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub container: String,
    /// The program and its arguments, 1 to 64.
    #[schemars(length(min = 1, max = 64), inner(length(max = 1024)))]
    pub command: Vec<String>,
}

/// An HTTP endpoint. The body is JSON with what was updated and removed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NotifyHttp {
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub service: String,
    /// Begins with a slash. At most 1024 characters.
    #[schemars(length(max = 1024), regex(pattern = "^/"))]
    pub path: String,
    /// 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

fn attributes(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 1024},
    })
}
