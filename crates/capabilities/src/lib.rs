//! What policies may ask of the world outside, for all engines: the objects of a cluster or a folder, registries, names,
//! certificates. Two gates stand before every call: what the policy's spec gives it (`hostCapabilities`), and which kinds of
//! objects the very member that asks may read (`contextAwareResources`). Whatever is kept is bounded, and nothing is asked twice
//! at once.

mod certificate;
mod cluster;
mod error;
mod folder;
mod gates;
mod images;
mod kind;
mod kubernetes;
mod names;
mod program_host;
mod requests;
mod rights;
mod world;

pub use cluster::{Cluster, Limits};
pub use error::{AskError, Trouble, Whose};
pub use folder::FolderObjects;
pub use gates::Gates;
pub use images::Images;
pub use kind::Kind;
pub use program_host::ProgramHost;
pub use rights::Rights;
pub use world::World;
