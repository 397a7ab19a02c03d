//! The objects that a command is about.

use proviso_core::PolicyId;

/// The objects that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The object with this id.
    One(PolicyId),
    /// All objects in the namespace of this id; if the id is cluster-scoped, all cluster-scoped objects.
    SameNamespace(PolicyId),
    /// The objects of both kinds: all cluster-scoped objects, and those of the user's namespace or of all namespaces.
    All { of_all_namespaces: bool },
}
