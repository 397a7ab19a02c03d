//! WebAssembly modules with the calling conventions of Kubewarden policies (waPC, compiled Rego, WASI commands), directly
//! on wasmtime. A module is compiled once, loaded into every server and instantiated afresh for each evaluation.

mod abi;
mod answer;
mod call;
mod compile;
mod config;
mod documents;
mod engine;
mod export;
mod guest_memory;
mod host_call;
mod limits;
mod log;
mod metadata;
mod module;
mod module_info;
mod opa;
mod outcome;
mod pace;
mod payload;
mod program;
mod snapshot;
mod snapshot_mode;
mod state;
mod ticker;
mod wapc;
mod wasi;

pub use compile::VerifiedCode;
pub use config::{Config, EngineError};
pub use engine::Engine;
pub use metadata::{ContextAwareResource, ExecutionMode, Metadata, PolicyType, Rule};
pub use module::Module;
pub use program::Program;
pub use snapshot_mode::{Snapshot, SnapshotMode};
