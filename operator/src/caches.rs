//! The caches that the controllers share.

use futures_util::TryFutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _};
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL, SERVER_LABEL};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer};

use crate::cache::{Cache, Cached, labelled};
use crate::guarded::Guarded;
use crate::objects::watching;
use crate::revisions::Revision;

/// Declares the caches: of the objects in the `cluster`, or in the `namespace` of the operator; of `all` objects, or of those that
/// were made for policy servers.
macro_rules! caches {
    ($($field:ident: $kind:ty, $where:ident, $which:ident;)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Caches {
            $(pub $field: Cache<$kind>,)*
        }

        impl Caches {
            /// Follows the objects of all kinds until it is dropped. `namespace` is that of the operator.
            pub async fn follow(&self, client: &Client, namespace: &str) {
                tokio::join!($(self.$field.follow($where(client, namespace), $which()),)*);
            }

            /// Waits until the objects of all kinds were listed: a reconcile before that would miss some.
            pub async fn listed(&self) {
                tokio::join!($(self.$field.listed(),)*);
            }
        }
    };
}

caches! {
    policies: Guarded<Policy>, cluster, all;
    cluster_policies: Guarded<ClusterPolicy>, cluster, all;
    experiments: Guarded<PolicyExperiment>, cluster, all;
    cluster_experiments: Guarded<ClusterPolicyExperiment>, cluster, all;
    revisions: Guarded<Revision>, namespace, all;
    servers: Guarded<PolicyServer>, cluster, all;
    // Also those that lost their label: the operator finds its own by their names.
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
    watching()
}

fn of_servers() -> watcher::Config {
    watching().labels(SERVER_LABEL)
}

impl Caches {
    /// Writes a revision, and takes over the answer: see [`Cache::write`].
    pub async fn write_revision(&self, write: impl Future<Output = kube::Result<PolicyRevision>>) -> kube::Result<()> {
        self.revisions.write(write.map_ok(|revision| Guarded(Ok(revision)))).await
    }
}

macro_rules! cached_as_sent {
    ($($kind:ty: $labels:expr;)*) => {$(
        impl Cached for $kind {
            type Sent = Self;

            fn from_sent(mut sent: Self) -> Self {
                // The fields' managers take half of the memory.
                sent.meta_mut().managed_fields = None;
                sent
            }

            fn keys(&self) -> Vec<String> {
                labelled(self, &$labels)
            }
        }
    )*};
}

cached_as_sent! {
    ValidatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
    MutatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
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
