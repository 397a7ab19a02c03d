//! Policy modules: fetching, signature verification, and the content-addressed cache of modules and compiled modules.

mod cache;
mod digest;
mod fetch;
mod file;
mod module;
mod reference;
mod signing;
mod verify;
mod volume;

pub use cache::{Cache, CacheError, VerificationRecord};
pub use digest::{Digest, DigestError};
pub use fetch::{
    ConnectError, FetchAccess, FetchError, FetchOptions, Fetcher, Manifest, Proxies, ProxyError, PullSecretError,
    PushError, SourcesError, TenantLimits,
};
pub use file::{
    create_atomically, remove_durably, remove_if_unchanged, rewrite_atomically, rewrite_if_unchanged, write_atomically,
};
pub use module::{MAX_MODULE, Module};
pub use reference::{Artifact, ArtifactError, Host, HostError, Mirror, ModuleReference, ReferenceError, Version};
pub use signing::{SigningError, SigningKeys};
pub use verify::{
    ConfigurationError, KeyError, PublicKey, Requirement, RootError, Signer, SigningCertificate, Subject, TrustRoot,
    UrlPrefix, Verification, VerifyError, VerifyRequest, VerifyRequestError,
};
pub use volume::Volume;
