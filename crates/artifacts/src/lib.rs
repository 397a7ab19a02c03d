//! Policy modules: where they come from, and the content-addressed cache that keeps them and their compiled forms.

mod cache;
mod digest;
mod fetch;
mod file;
mod module;
mod reference;
mod signing;
mod verify;
mod volume;

pub use cache::{Cache, CacheError, Verified};
pub use digest::{Digest, DigestError};
pub use fetch::{ConnectError, FetchError, Fetcher, Proxies, ProxyError, PullSecretError, SourcesError, Wanted};
pub use file::{create_atomically, remove_for_good, rewrite_atomically, write_atomically};
pub use module::{MAX_MODULE, Module};
pub use reference::{Artifact, ArtifactError, Host, HostError, Mirror, ModuleReference, ReferenceError, Version};
pub use signing::{SigningError, SigningKeys};
pub use verify::{
    ConfigurationError, KeyError, PublicKey, Requirement, RootError, Signer, SigningCertificate, Subject, TrustRoot,
    UrlPrefix, Verification, VerifyError, VerifyRequest, VerifyRequestError,
};
pub use volume::Volume;
