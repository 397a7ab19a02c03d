//! The arguments that name a cluster.

use std::path::PathBuf;

use clap::Args;

/// The cluster, the user and the namespace.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct Connection {
    /// Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; default: the current context
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// Namespace of the policy; default: that of the context
    #[arg(long, short, global = true, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Namespace of the operator and of the revisions
    #[arg(long, global = true, value_name = "NAME", env = "PROVISO_NAMESPACE", default_value = "proviso-system")]
    pub proviso_namespace: String,
}
