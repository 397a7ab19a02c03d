//! `PolicyServer`: the replicas that evaluate policies, and their configuration.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, EnvVar, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::program::SecretRef;
use crate::tenants::Tenants;
use crate::verification::{ConfigMapKeyRef, Verification};

/// The regular expression of Kubernetes quantities.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The spec of a PolicyServer: its replicas and their configuration.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "proviso.dev",
    version = "v1alpha1",
    kind = "PolicyServer",
    category = "proviso",
    shortname = "pvs",
    status = "PolicyServerStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas"),
    doc = "Replicas that evaluate the policies whose `policyServer` names this object. They run in the operator's namespace.",
    // Pods have the name of their StatefulSet revision as a label value, `policy-server-<name>-<up to 10 digits>`. Label values
    // have at most 63 characters.
    validation = Rule::new("self.metadata.name.size() <= 38 && !self.metadata.name.contains('.')")
        .message("a policy server's name has at most 38 characters, and no dot"),
    // The headless Service of a policy server `a` is `policy-server-a-replicas`. A policy server `a-replicas` would have a
    // Service of the same name.
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
    /// The number of replicas. Every replica serves every policy of the policy server. Default: 1.
    #[serde(default = "replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// The container image of the replicas. Default: the operator's `--policy-server-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// The pull policy of the image. Default: the default of Kubernetes, which is Always for the tag `latest` and else
    /// IfNotPresent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets of type kubernetes.io/dockerconfigjson in the operator's namespace, with credentials for the registries of the
    /// image and of the policies' modules: at most 100. A change of their content needs no restart. Default: no Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<SecretRef>,
    /// The resource requests and limits of each replica. Default: no requests and no limits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resources: Resources,
    /// Environment variables of the policy server, such as HTTPS_PROXY: at most 100. The operator sets POD_NAME and POD_UID
    /// itself. Default: no variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = Rule::new("self.all(variable, variable.name != 'POD_NAME' && variable.name != 'POD_UID')")
            .message("POD_NAME and POD_UID are set by the operator")
    )]
    pub env: Vec<EnvVar>,
    /// The volume for fetched and compiled modules: exactly one of `persistentVolumeClaim`, `existingClaim` and `emptyDir`.
    /// Default: an emptyDir of at most 2Gi, with which each replica fetches and compiles modules for itself.
    // The schema has no default for this field: a defaulted `emptyDir` would stay when a user applies another volume later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// Certificates, plain HTTP and mirrors for the registries and web servers that modules are fetched from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sources: Sources,
    /// The signatures that modules need. The policy server refuses a module without them. A change applies to the revisions
    /// that are prepared after it. Default: modules need no signatures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// The users of the PolicyServer, and the limits of namespaced policies on it.
    #[serde(flatten)]
    pub tenants: Tenants,
    /// The key of a ConfigMap in the operator's namespace with the certificate authorities of API servers in PEM. The replicas
    /// then answer only clients that have a certificate of one of these authorities. The API servers must be configured with
    /// their certificates first. A change of the content needs no restart. Default: replicas need no client certificates, and
    /// know API servers by the token in the path of webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "clientCA")]
    pub client_ca: Option<ConfigMapKeyRef>,
    /// Limits on the evaluation of policies.
    #[serde(default, skip_serializing_if = "is_default")]
    pub evaluation: Evaluation,
    /// Limits on the previews of experiments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preview: Preview,
    /// The scheduling constraints of the replicas, as in a pod. With `podAffinity` or `podAntiAffinity`,
    /// `topologySpreadConstraints` has no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// The taints of nodes that the replicas tolerate, as in a pod. If no toleration matches the taint
    /// `node.kubernetes.io/not-ready` or `node.kubernetes.io/unreachable`, replicas tolerate it for 30 seconds, so that
    /// Kubernetes replaces the replicas of a lost node soon. Default: only these two tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// The spreading of replicas over nodes or zones, as in a pod. A constraint without a labelSelector selects the replicas of
    /// this policy server. Default: the numbers of replicas on two nodes differ by at most 1 (`DoNotSchedule`), where nodes
    /// that replicas cannot run on do not count, and the same for zones if possible (`ScheduleAnyway`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// The labels of the nodes that replicas may run on. `kubernetes.io/os: linux` is added, unless the label is given.
    /// Default: all Linux nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The name of the PriorityClass of the replicas. With `system-cluster-critical`, other pods make room for a replica that
    /// finds no node. Default: the default of the cluster. The chart sets `system-cluster-critical` for the policy server
    /// `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// The name of the ServiceAccount of the replicas, in the operator's namespace. The operator grants it the permissions
    /// that a policy server needs. Default: a ServiceAccount that the operator creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub service_account_name: Option<String>,
    /// The number or percentage of replicas that a node drain must leave running, such as `2` or `50%`. Exclusive with
    /// `maxUnavailable`. Default: see `maxUnavailable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// The number or percentage of replicas that a node drain may evict at the same time, such as `1` or `50%`. Exclusive with
    /// `minAvailable`. Default: 1, unless `minAvailable` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// The log level: `error`, `warn`, `info`, `debug` or `trace`. Decisions that allow a request are logged at `debug`.
    /// Default: info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
}

/// The pull policy of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ImagePullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// The resource requests and limits of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct Resources {
    /// The resources that a node must have free for a replica, such as `cpu: 500m` and `memory: 256Mi`. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, IntOrString>,
    /// The maximum resources of a replica, such as `memory: 1Gi`. Default: no limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, IntOrString>,
}

/// The volume for fetched and compiled modules.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.persistentVolumeClaim), has(self.existingClaim), has(self.emptyDir)].exists_one(it, it)")
        .message("needs exactly one of `persistentVolumeClaim`, `existingClaim` and `emptyDir`")
)]
pub struct Cache {
    /// A ReadWriteMany volume that all replicas share. The operator creates its PersistentVolumeClaim, and deletes the
    /// claim with the policy server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<CacheClaim>,
    /// The name of an existing PersistentVolumeClaim in the operator's namespace. All replicas must be able to write to its
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub existing_claim: Option<String>,
    /// An emptyDir volume of each replica, which is deleted with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
}

/// A PersistentVolumeClaim for the module cache.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)")
        .message("a claim keeps its storage class: change to `emptyDir: {}` first, or to an `existingClaim`")
)]
pub struct CacheClaim {
    /// The name of a StorageClass whose volumes many nodes can mount. Immutable. Default: the cluster's default StorageClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// The size of the volume as a quantity, such as `10Gi`. The size can be increased if the StorageClass allows it. A volume
    /// does not shrink. If Kubernetes refuses a change, the condition `Ready` has the cause, and the earlier size can be set
    /// again.
    // No rule compares the size with the earlier one: it would refuse to undo an increase that Kubernetes has refused.
    #[schemars(schema_with = "quantity")]
    pub size: IntOrString,
}

/// An emptyDir volume for the module cache.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {
    /// The maximum size of the volume as a quantity, such as `1Gi`. Kubernetes evicts a replica that exceeds it: the replica is
    /// created again with an empty cache, and fetches and compiles its modules anew. Default: 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub size_limit: Option<IntOrString>,
}

/// The settings of registries and web servers that modules are fetched from. A change needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Sources {
    /// The servers, as `host` or `host:port`, that may use any certificate, or plain HTTP: at most 1000. Default: no servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(regex(pattern = r"^[^/\s]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub insecure: Vec<String>,
    /// Additional certificate authorities in PEM that are trusted for a server, by the `host` or `host:port` of the server.
    /// Default: only the authorities that the system trusts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorities: BTreeMap<String, Vec<String>>,
    /// The mirrors of a registry, by the `host` or `host:port` of the registry. Each mirror is `host:port` or `host/path`,
    /// and mirrors are tried in order. The registry itself is used only if the list includes it. Default: no mirrors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mirrors: BTreeMap<String, Vec<String>>,
}

/// Limits on the evaluation of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    /// The maximum time of one evaluation, in seconds: 1 to 30. The `timeoutEvalSeconds` of a policy overrides it. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: Option<u32>,
    /// The maximum `timeoutEvalSeconds` of policies in namespaces, in seconds: 1 to 30. A longer time of such a policy is
    /// shortened. Default: `timeoutSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub namespaced_timeout_seconds: Option<u32>,
    /// The maximum memory of one wasm evaluation, in MiB: 1 to 4096. All evaluations in a replica together take at most a quarter
    /// of its memory limit, those of one policy at most a quarter of that, or one evaluation within the half. Default: 128.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "memoryLimitMiB")]
    #[schemars(range(min = 1, max = 4096))]
    pub memory_limit_mib: Option<u32>,
    /// The maximum number of concurrent evaluations in one replica: 2 to 1000, and fewer if its limits of memory and CPU are
    /// small. One policy uses at most a quarter, the policies of one namespace a half. Further evaluations wait for up to 250 ms.
    /// Default: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 1000))]
    pub concurrency: Option<u32>,
}

/// Limits on the previews of experiments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// The maximum number of requests that wait for a preview in one replica: 1 to 1000000. Further requests are not
    /// previewed, but counted as dropped. Default: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queue_capacity: Option<u32>,
}

/// The log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The status of a policy server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyServerStatus {
    /// The `metadata.generation` that the rest of the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of replicas that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The number of replicas that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The name of the leader, the replica that prepares new revisions for all replicas. Absent while there is no leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The conditions of the policy server. `Ready`: all replicas are Ready and run the current spec, and the API server has
    /// accepted all objects of the policy server. `LeaderElected`: a replica is the leader; without a leader, live generations
    /// go on answering and new revisions wait. `CertificateValid`: API servers trust the certificate of the replicas.
    /// `Terminating`: the policy server is being deleted; the message names the objects that the deletion waits for.
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
