//! `PolicySubscription`: the configuration policies of a component, and their delivery to it (the policy flow of ONAP DCAE).

mod check;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{CustomResource, KubeSchema};
use proviso_core::{PolicyId, configuration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::validation::FieldError;

pub use status::{
    DeliveredPolicy, LastUpdate, MAX_PENDING, PendingChange, PolicySubscriptionStatus, RejectedChange, UpdateResult,
};

/// The regular expression of policy ids.
const POLICY_ID: &str =
    r"^(cluster|ns\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The regular expression of object names (DNS subdomains).
const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The regular expression of the names of containers and Services (DNS labels).
const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The spec of a PolicySubscription: one component, its policies and their delivery.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicySubscription",
    namespaced,
    category = "proviso",
    shortname = "pvsub",
    status = "PolicySubscriptionStatus",
    doc = "The configuration policies of a component, and their delivery to it.",
    validation = Rule::new("self.metadata.name.size() <= 150").message("a subscription's name has at most 150 characters"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.component.kind"),
    printcolumn(name = "Component", type_ = "string", json_path = ".spec.component.name"),
    printcolumn(name = "SCN", type_ = "string", json_path = ".spec.scn"),
    printcolumn(name = "ConfigMap", type_ = "string", json_path = ".spec.delivery.configMap"),
    printcolumn(name = "Policies", type_ = "string", json_path = ".status.summary"),
    printcolumn(
        name = "Delivered",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Delivered')].status"
    ),
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
    /// `component`, whose service component name is `<namespace>.<name of the subscription>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scn: Option<String>,
    /// The policies of the component: every policy that at least one of these selectors selects. 1 to 100 selectors.
    #[schemars(length(min = 1, max = 100))]
    pub policies: Vec<PolicySelector>,
    /// The experiments whose candidates the component gets instead of the live versions, while their previews are active: at most 20.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub canary_for: Vec<CanaryFor>,
    /// The component's own configuration, which the REST API returns beside the policies. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<Application>,
    /// The delivery of the policies to the component.
    pub delivery: Delivery,
}

/// An experiment that a component is a canary for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct CanaryFor {
    /// The id of the policy: `cluster.<name>` for a ClusterPolicy, `ns.<namespace>.<name>` for a Policy of this namespace.
    #[schemars(length(max = 253), regex(pattern = POLICY_ID))]
    pub policy: String,
    /// The name of the experiment.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub experiment: String,
}

/// The component's own configuration, as ONAP's config-binding service returns it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    /// The name of a ConfigMap in this namespace. Its key `config` is the configuration (`<scn>` in Consul), and another key `<key>` is the
    /// record `<scn>:<key>`. A value that is JSON is returned as JSON, and any other value as a string.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub config_map: String,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
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
#[serde(rename_all = "camelCase")]
pub struct Notify {
    /// The time limit of one notification of one pod, in seconds: 1 to 300. The operator ends the command or request after it, and sends
    /// the notification again later. Default: 30.
    #[serde(default = "notify_timeout")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: u32,
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
    /// The name of the container in which the command runs. Default: the container that the annotation
    /// `kubectl.kubernetes.io/default-container` of the pod names, or else its first container. It has no effect without a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub container: Option<String>,
    /// The program and its arguments: 1 to 64 strings of at most 1024 characters.
    #[schemars(length(min = 1, max = 64), inner(length(max = 1024)))]
    pub command: Vec<String>,
}

/// An HTTP endpoint. The body of the request is JSON with the updated and the removed policies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct NotifyHttp {
    /// The name of the Service. Without a cluster: the name of the host, such as `localhost`.
    #[schemars(length(max = 63), regex(pattern = LABEL))]
    pub service: String,
    /// The path of the endpoint. It begins with a slash and has at most 1024 characters.
    #[schemars(length(max = 1024), regex(pattern = "^/"))]
    pub path: String,
    /// The port of the Service: 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

pub(crate) fn attributes(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 1024},
    })
}

fn notify_timeout() -> u32 {
    30
}

impl ComponentKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
        }
    }
}

impl Notify {
    /// Returns the time limit of one notification of one pod: at least 1 s.
    #[must_use]
    pub fn time_limit(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.max(1).into())
    }
}

impl PolicySubscriptionSpec {
    /// Returns the service component name of the component (ONAP: `scn`): `spec.scn`, or else `<namespace>.<name of the subscription>`.
    #[must_use]
    pub fn service_component_name(&self, namespace: &str, name: &str) -> String {
        self.scn.clone().unwrap_or_else(|| format!("{namespace}.{name}"))
    }

    /// Returns the selectors of the subscription. A selector whose id is not a policy id selects nothing, and its error is returned with the
    /// path of the field. `namespace` is that of the subscription.
    ///
    /// # Errors
    /// Returns the first field that is not valid. The schema of the CRD refuses such an object.
    pub fn subscription(&self, namespace: &str) -> Result<configuration::Subscription, FieldError> {
        let id = |field: String, text: &str| {
            text.parse::<PolicyId>().map_err(|error| FieldError::new(field, format!("is no policy id: {error}")))
        };
        let selectors =
            self.policies.iter().enumerate().map(|(index, selector)| match (&selector.id, &selector.filter) {
                (Some(text), None) => Ok(configuration::Selector::Id(id(format!("spec.policies[{index}].id"), text)?)),
                (None, Some(filter)) => Ok(configuration::Selector::Filter(filter.into())),
                _ => Err(FieldError::new(format!("spec.policies[{index}]"), "needs exactly one of `id` and `filter`")),
            });
        let canaries = self.canary_for.iter().enumerate().map(|(index, canary)| {
            let policy = id(format!("spec.canaryFor[{index}].policy"), &canary.policy)?;
            Ok(configuration::CanaryFor { policy, experiment: canary.experiment.clone() })
        });
        Ok(configuration::Subscription {
            namespace: namespace.to_owned(),
            selectors: selectors.collect::<Result<_, _>>()?,
            canary_for: canaries.collect::<Result<_, _>>()?,
        })
    }
}

impl From<&Filter> for configuration::Filter {
    fn from(filter: &Filter) -> Self {
        let Filter { name_regex, config_name, owner, attributes, unique } = filter.clone();
        Self { name_regex, config_name, owner, attributes, unique }
    }
}
