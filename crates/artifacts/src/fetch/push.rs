//! Pushes a module to a registry with the OCI distribution protocol: the blob of the module, the blob of an empty
//! configuration, and the manifest that names both. Proviso and Kubewarden can fetch the result.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::json;

use super::client::{Answer, Client};
use super::error::FetchError;
use super::registry::{MODULE_TYPES, address};
use super::{FetchAccess, Fetcher};
use crate::digest::Digest;
use crate::module::Module;
use crate::reference::{Artifact, Version};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.wasm.config.v1+json";
const BLOB: &str = "application/octet-stream";

/// The error of a module that could not be pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("{0} names a digest: give a tag; the digest follows from the content")]
    Digest(Artifact),
    #[error("{host} refused the {what}: it answers {status}{}", remedy(*status))]
    Refused { host: crate::Host, what: &'static str, status: StatusCode },
    #[error("{0} gave no URL on the same server for the upload (header Location)")]
    NoLocation(crate::Host),
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

fn remedy(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ": check that the credentials (a pull secret for this server) allow writing"
        }
        StatusCode::PAYLOAD_TOO_LARGE => ": the content is too large for this registry",
        StatusCode::NOT_FOUND => ": the repository may have to be created first",
        _ => "",
    }
}

impl Fetcher {
    /// Pushes a module under a tag and returns the digest of its manifest.
    ///
    /// # Errors
    /// Returns [`PushError::Digest`] if the artifact has a digest instead of a tag, and another error if the registry cannot be
    /// reached or refuses the module.
    pub async fn push(&self, artifact: &Artifact, module: &Module) -> Result<Digest, PushError> {
        let Version::Tag(tag) = artifact.version() else { return Err(PushError::Digest(artifact.clone())) };
        let timeout = || FetchError::Timeout { what: format!("pushing {artifact}"), limit: self.timeout };
        let pushing = async {
            let (trust, secrets) = self.load(FetchAccess::default()).await?;
            let credential = secrets.find(artifact.host(), artifact.repository()).cloned();
            let client = &mut Client::new(trust, credential, true);
            let config = Bytes::from_static(b"{}");
            blob(client, artifact, "configuration", config.clone()).await?;
            blob(client, artifact, "module", module.bytes.clone()).await?;
            let descriptor = |kind: &str, bytes: &Bytes| json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
            let manifest = json!({
                "schemaVersion": 2, "mediaType": MANIFEST,
                "config": descriptor(CONFIG, &config), "layers": [descriptor(MODULE_TYPES[0], &module.bytes)],
            });
            let manifest = Bytes::from(manifest.to_string());
            let url = address(artifact, "manifests", tag)?;
            let answer = client.write(&Method::PUT, &url, (MANIFEST, manifest.clone())).await?;
            expect(&answer, StatusCode::CREATED, "manifest")?;
            Ok(Digest::of(&manifest))
        };
        tokio::time::timeout(self.timeout, pushing).await.unwrap_or_else(|_| Err(timeout().into()))
    }
}

/// Uploads a blob in one request, unless the registry has the blob.
async fn blob(client: &mut Client, artifact: &Artifact, what: &'static str, content: Bytes) -> Result<(), PushError> {
    let digest = Digest::of(&content).to_string();
    let known = client.write(&Method::HEAD, &address(artifact, "blobs", &digest)?, (BLOB, Bytes::new())).await?;
    if known.status == StatusCode::OK {
        return Ok(());
    }
    let begin = address(artifact, "blobs", "uploads/")?;
    let answer = client.write(&Method::POST, &begin, (BLOB, Bytes::new())).await?;
    expect(&answer, StatusCode::ACCEPTED, what)?;
    let mut upload = answer.location(&begin).ok_or_else(|| PushError::NoLocation(answer.host.clone()))?;
    if crate::Host::of(&upload) != crate::Host::of(&begin) {
        // An upload to another server would send it the credentials.
        return Err(PushError::NoLocation(answer.host));
    }
    // The location of an insecure registry has the scheme http. The client selects plain HTTP itself.
    let _ = upload.set_scheme(begin.scheme());
    upload.query_pairs_mut().append_pair("digest", &digest);
    let answer = client.write(&Method::PUT, &upload, (BLOB, content)).await?;
    expect(&answer, StatusCode::CREATED, what)
}

fn expect(answer: &Answer, wanted: StatusCode, what: &'static str) -> Result<(), PushError> {
    if answer.status == wanted {
        return Ok(());
    }
    Err(PushError::Refused { host: answer.host.clone(), what, status: answer.status })
}
