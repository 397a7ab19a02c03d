//! The names of the objects of a policy server, and the defaults of all policy servers.

/// The namespace and the default image of all policy servers.
#[derive(Clone, Debug)]
pub(crate) struct ServerDefaults {
    /// The namespace of the operator.
    pub namespace: String,
    /// The image of policy servers that name no image.
    pub image: String,
    /// True if the metrics of policy servers are served with TLS and authentication.
    pub authenticates_metrics: bool,
}

/// The key of the data of the Secret of caller tokens.
pub(crate) const CALLER_TOKENS: &str = "tokens";

/// Returns the name of most objects of a policy server.
pub(crate) fn name(server: &str) -> String {
    format!("policy-server-{server}")
}

pub(super) fn replicas_name(server: &str) -> String {
    format!("{}-replicas", name(server))
}

pub(super) fn tls_name(server: &str) -> String {
    format!("{}-tls", name(server))
}

pub(super) fn signing_name(server: &str) -> String {
    format!("{}-signing", name(server))
}

/// Returns the name of the Secret of caller tokens.
pub(crate) fn callers_name(server: &str) -> String {
    format!("{}-callers", name(server))
}

pub(super) fn sources_name(server: &str) -> String {
    format!("{}-sources", name(server))
}

pub(super) fn cache_name(server: &str) -> String {
    format!("{}-cache", name(server))
}

/// Returns the name of the `ClusterRoleBinding`, with a prefix because it is in no namespace.
pub(super) fn cluster_role_binding_name(server: &str) -> String {
    format!("proviso-{}", name(server))
}
