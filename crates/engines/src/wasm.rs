//! WebAssembly modules with the waPC calling convention of Kubewarden policies, directly on wasmtime.
//! A module is compiled once, loaded into every server and instantiated afresh for each evaluation.

mod answer;
mod call;
mod config;
mod engine;
mod guest_memory;
mod log;
mod metadata;
mod module;
mod payload;
mod program;
mod snapshot;
mod state;
mod ticker;
mod wapc;
mod wasi;

pub use config::{Config, EngineError};
pub use engine::{Engine, VerifiedCode};
pub use metadata::{ContextAwareResource, ExecutionMode, Metadata, PolicyType, Rule};
pub use module::Module;
pub use program::Program;
