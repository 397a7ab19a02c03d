//! The caches that the controllers share.

use futures_util::TryFutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _};
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL, SERVER_LABEL};
use proviso_crds::{
    ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer, PolicySubscription,
    TENANT,
};

use crate::cache::{Cache, Cached, label_values};
use crate::malformed::MaybeMalformed;
use crate::objects::watch_config;
use crate::revisions::Revision;

/// Declares a cache in each line: field, kind, scope and selection. The scope is the whole `cluster` or the
/// `namespace` of the operator. The selection is `all` objects, or only the objects that belong to policy servers
/// (`of_servers`).
macro_rules! caches {
    ($($field:ident: $kind:ty, $where:ident, $which:ident;)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Caches {
            $(pub $field: Cache<$kind>,)*
        }

        impl Caches {
            /// Watches the objects of all kinds until the future is dropped. `namespace` is the namespace of the
            /// operator.
            pub async fn follow(&self, client: &Client, namespace: &str) {
                tokio::join!($(self.$field.follow($where(client, namespace), $which()),)*);
            }

            /// Waits until all kinds have been listed. A reconcile before that would miss objects.
            pub async fn listed(&self) {
                tokio::join!($(self.$field.listed(),)*);
            }
        }
    };
}

caches! {
    policies: MaybeMalformed<Policy>, cluster, all;
    cluster_policies: MaybeMalformed<ClusterPolicy>, cluster, all;
    experiments: MaybeMalformed<PolicyExperiment>, cluster, all;
    cluster_experiments: MaybeMalformed<ClusterPolicyExperiment>, cluster, all;
    revisions: MaybeMalformed<Revision>, namespace, all;
    servers: MaybeMalformed<PolicyServer>, cluster, all;
    subscriptions: MaybeMalformed<PolicySubscription>, cluster, all;
    // Their labels: a PolicyServer may select the namespaces that may use it, and a label names the tenant.
    namespaces: PartialObjectMeta<Namespace>, cluster, all;
    // All webhook configurations: the operator finds its own by name, even if the label was removed.
    validating: ValidatingWebhookConfiguration, cluster, all;
    mutating: MutatingWebhookConfiguration, cluster, all;
    pods: Pod, namespace, of_servers;
    stateful_sets: StatefulSet, namespace, of_servers;
    services: Service, namespace, of_servers;
    disruption_budgets: PodDisruptionBudget, namespace, of_servers;
    secrets: Secret, namespace, of_servers;
    config_maps: ConfigMap, namespace, of_servers;
    claims: PersistentVolumeClaim, namespace, of_servers;
    service_accounts: ServiceAccount, namespace, of_servers;
    roles: Role, namespace, of_servers;
    role_bindings: RoleBinding, namespace, of_servers;
    cluster_role_bindings: ClusterRoleBinding, cluster, of_servers;
    leases: Lease, namespace, of_servers;
}

fn cluster<K: kube::Resource<DynamicType = ()>>(client: &Client, _: &str) -> Api<K> {
    Api::all(client.clone())
}

fn namespace<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

fn all() -> watcher::Config {
    watch_config()
}

fn of_servers() -> watcher::Config {
    watch_config().labels(SERVER_LABEL)
}

impl Caches {
    /// Writes a revision and caches the response: see [`Cache::write`].
    pub async fn write_revision(&self, write: impl Future<Output = kube::Result<PolicyRevision>>) -> kube::Result<()> {
        self.revisions.write(write.map_ok(|revision| MaybeMalformed(Ok(revision)))).await
    }
}

macro_rules! cached_as_sent {
    ($($kind:ty: $labels:expr;)*) => {$(
        impl Cached for $kind {
            type Sent = Self;

            fn from_sent(mut sent: Self) -> Self {
                // `managedFields` would take half of the memory.
                sent.meta_mut().managed_fields = None;
                sent
            }

            fn keys(&self) -> Vec<String> {
                label_values(self, &$labels)
            }
        }
    )*};
}

cached_as_sent! {
    ValidatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
    MutatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
    PartialObjectMeta<Namespace>: [TENANT];
    Pod: [SERVER_LABEL];
    StatefulSet: [SERVER_LABEL];
    Service: [SERVER_LABEL];
    PodDisruptionBudget: [SERVER_LABEL];
    Secret: [SERVER_LABEL];
    ConfigMap: [SERVER_LABEL];
    PersistentVolumeClaim: [SERVER_LABEL];
    ServiceAccount: [SERVER_LABEL];
    Role: [SERVER_LABEL];
    RoleBinding: [SERVER_LABEL];
    ClusterRoleBinding: [SERVER_LABEL];
    Lease: [SERVER_LABEL];
}
