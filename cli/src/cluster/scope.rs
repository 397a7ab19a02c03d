//! The objects that a command is about.

use proviso_core::PolicyId;

/// The objects that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    One(PolicyId),
    /// All in the namespace of this one, or all of the cluster.
    Beside(PolicyId),
    /// Both kinds.
    All {
        of_all_namespaces: bool,
    },
}
