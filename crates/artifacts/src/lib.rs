//! Policy modules: where they come from, and the content-addressed cache that keeps them and their compiled forms.

mod cache;
mod digest;
mod file;
mod reference;
mod signing;

pub use cache::{Cache, CacheError};
pub use digest::{Digest, DigestError};
pub use file::write_atomically;
pub use reference::{FetchError, MAX_MODULE, Module, ModuleReference, ReferenceError};
pub use signing::{SigningError, SigningKey};
