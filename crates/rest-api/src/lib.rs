//! Policies and experiments as a REST API, as AIP-236 has it: names, masks, filters, pages, errors and long-running
//! operations. What holds them is behind [`PolicyStore`]; who may call is for whoever serves the router.

mod body;
mod error;
mod filter;
mod handlers;
pub mod kubernetes;
mod mask;
mod methods;
mod names;
mod openapi;
mod operation;
mod page;
mod resources;
mod router;
mod store;

pub use error::{Code, Error, FieldViolation};
pub use names::ExperimentName;
pub use openapi::document;
pub use operation::{Awaited, Effect, Progress};
pub use resources::is_reserved;
pub use router::{MAX_BODY, refuse, router};
pub use store::{Caller, Change, Committing, Meta, PolicyStore, Preview, State, StoredExperiment, StoredPolicy};
