//! The names of the objects that belong to a policy server, and their place.

/// The place of all policy servers, and their default image.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The namespace of the operator.
    pub namespace: String,
    /// The image of policy servers that name none.
    pub image: String,
}

/// The name of almost every object that belongs to a policy server.
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

pub(super) fn sources_name(server: &str) -> String {
    format!("{}-sources", name(server))
}

pub(super) fn cache_name(server: &str) -> String {
    format!("{}-cache", name(server))
}

/// The name of the binding of the cluster. It has a prefix: its name is in no namespace.
pub(super) fn cluster_role_binding_name(server: &str) -> String {
    format!("proviso-{}", name(server))
}
