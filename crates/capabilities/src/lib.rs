//! Host capabilities: the calls by which programs of all engines read objects of a cluster or a folder, query registries,
//! resolve names and verify certificates.
//!
//! Each call passes two checks. The policy's `hostCapabilities` must grant the capability. To read objects, the
//! `contextAwareResources` of the policy, or of the group member that calls, must name the kind. Caches are bounded, and
//! identical concurrent queries share one request.

mod certificate;
mod cluster;
mod dns;
mod error;
mod folder;
mod grants;
mod host_context;
mod images;
mod kind;
mod kubernetes;
mod policy_host;
mod program_grants;
mod requests;

pub use cluster::{Cluster, Limits};
pub use error::{HostCallError, KindUnavailable, LimitScope};
pub use folder::FolderObjects;
pub use grants::Grants;
pub use host_context::HostContext;
pub use images::Images;
pub use kind::Kind;
pub use policy_host::PolicyHost;
pub use program_grants::ProgramGrants;
