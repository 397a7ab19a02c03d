//! `PolicyServer`: replicas that evaluate policies, and where they keep what they fetched.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, EnvVar, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::program::SecretRef;
use crate::verification::Verification;

/// What Kubernetes takes for a quantity.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The replicas of a policy server, and how they run.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyServer",
    category = "proviso",
    shortname = "pvs",
    status = "PolicyServerStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas"),
    doc = "Replicas that evaluate the policies that name this policy server. They run in the operator's namespace.",
    // Pods carry the name of the StatefulSet's revision as a label: policy-server-<name>-<up to 10 digits>, 63 at most.
    validation = Rule::new("self.metadata.name.size() <= 38 && !self.metadata.name.contains('.')")
        .message("a policy server's name has at most 38 characters, and no dot"),
    // Another's headless Service is called so.
    validation = Rule::new("!self.metadata.name.endsWith('-replicas')")
        .message("a policy server's name does not end in -replicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))")
        .message("give at most one of `minAvailable` and `maxUnavailable`")
)]
#[serde(rename_all = "camelCase")]
pub struct PolicyServerSpec {
    /// How many replicas evaluate. Every replica serves every policy. Default: 1.
    #[serde(default = "replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// The container image. Default: the one that the operator was told with --policy-server-image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// When the image is pulled. Default: Kubernetes' own, IfNotPresent unless the tag is `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets of type kubernetes.io/dockerconfigjson in the operator's namespace, for the registries of the image and of
    /// the policies' modules. A change of their content needs no restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<SecretRef>,
    /// What each replica may use. Default: no requests, no limits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resources: Resources,
    /// Environment variables of the policy server, such as HTTPS_PROXY.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = Rule::new("self.all(variable, variable.name != 'POD_NAME' && variable.name != 'POD_UID')")
            .message("POD_NAME and POD_UID are set by the operator")
    )]
    pub env: Vec<EnvVar>,
    /// Where fetched and compiled modules are kept: exactly one of `persistentVolumeClaim`, `existingClaim` and `emptyDir`.
    /// Default: an emptyDir, so each replica fetches and compiles for itself.
    // Without a default in the schema: it would stay beside what is applied later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// How modules are fetched from registries and web servers that are not trusted as they are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sources: Sources,
    /// Which signatures modules need; what is not signed so is not used. A change counts for what is prepared after it.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// Limits of one evaluation, and of all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub evaluation: Evaluation,
    /// Previews of experiments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preview: Preview,
    /// Where replicas may and should run, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that keep no replica away, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How replicas spread over nodes or zones, as in a pod. Without a labelSelector, a constraint is about the replicas of
    /// this policy server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Labels of the nodes that replicas may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The PriorityClass of the replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// A ServiceAccount of the operator's namespace to run as; it is granted what a policy server needs. Default: one that
    /// the operator makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub service_account_name: Option<String>,
    /// How many replicas, or which percentage, a drain of nodes must leave. Default: see maxUnavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// How many replicas, or which percentage, a drain of nodes may take at a time. Default: 1, unless minAvailable is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// What is logged. Decisions that allow are at `debug`. Default: info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ImagePullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// What a container may use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct Resources {
    /// What a node must have free for a replica, such as `cpu: 500m` and `memory: 256Mi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, IntOrString>,
    /// What a replica may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, IntOrString>,
}

/// Where fetched and compiled modules are kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.persistentVolumeClaim), has(self.existingClaim), has(self.emptyDir)].exists_one(it, it)")
        .message("needs exactly one of `persistentVolumeClaim`, `existingClaim` and `emptyDir`")
)]
pub struct Cache {
    /// A claim of a volume that all replicas share (ReadWriteMany), made by the operator and deleted with the policy server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<CacheClaim>,
    /// The name of a claim in the operator's namespace, of a volume that all replicas can write to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub existing_claim: Option<String>,
    /// A folder of each replica's own, gone with its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
}

/// A claim of a volume.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)")
        .message("a claim keeps its storage class: change to `emptyDir: {}` first, or to an `existingClaim`")
)]
pub struct CacheClaim {
    /// A StorageClass whose volumes can be mounted by many nodes. Default: the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// How large the volume is, such as `10Gi`. It can grow, if the storage class allows that.
    #[schemars(schema_with = "quantity")]
    #[x_kube(
        validation = Rule::new("type(self) != string || type(oldSelf) != string || quantity(self).compareTo(quantity(oldSelf)) >= 0")
            .message("a volume does not shrink")
    )]
    pub size: IntOrString,
}

/// A folder of a pod's own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {
    /// A replica whose folder grows beyond this is evicted. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub size_limit: Option<IntOrString>,
}

/// Registries and web servers that are not trusted as they are. A change needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Sources {
    /// `host` or `host:port`, for which plain HTTP and any certificate will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(regex(pattern = r"^[^/\s]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub insecure: Vec<String>,
    /// Certificate authorities in PEM, by `host` or `host:port`, that vouch for it beside those that everybody trusts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorities: BTreeMap<String, Vec<String>>,
    /// Where the artifacts of a registry are looked for instead, by `host` or `host:port`: places, `host:port` or `host/path`,
    /// in the order in which they are tried. The registry itself is asked only if it is among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mirrors: BTreeMap<String, Vec<String>>,
}

/// Limits of evaluations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    /// How long one evaluation may take, in seconds; a policy's timeoutEvalSeconds overrides it. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: Option<u32>,
    /// Memory that one wasm evaluation may take, in MiB. Default: 128.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "memoryLimitMiB")]
    #[schemars(range(min = 1, max = 4096))]
    pub memory_limit_mib: Option<u32>,
    /// Wasm evaluations at the same time in one replica; more wait. Default: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 1000))]
    pub concurrency: Option<u32>,
}

/// Previews of experiments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Requests that wait to be previewed in one replica; more are dropped from the preview and counted. Default: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queue_capacity: Option<u32>,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How a policy server is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyServerStatus {
    /// The generation that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many replicas there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many of them are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The replica that prepares new versions of policies for all; none while nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// `Ready`: all replicas are, and run what the spec says. `LeaderElected`: a replica prepares new versions of policies;
    /// without one, those that are live go on. `CertificateValid`: API servers trust the certificate of the replicas.
    /// `Terminating`: the policy server is deleted; what that waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn replicas() -> i32 {
    1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn quantity(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-int-or-string": true, "pattern": QUANTITY})
}

fn quantities(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "additionalProperties": json!(quantity(generator))})
}
