//! The push half of the OCI distribution protocol, as far as one module needs it: its blob, the blob of a
//! configuration that says nothing, and the manifest that names both. What is pushed can be fetched, here and by Kubewarden.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::json;

use super::Fetcher;
use super::client::{Answer, Client};
use super::error::FetchError;
use super::registry::{LAYERS, address};
use crate::digest::Digest;
use crate::module::Module;
use crate::reference::{Artifact, Version};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.wasm.config.v1+json";
const BLOB: &str = "application/octet-stream";

/// A module that could not be pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("{0} names a digest: an artifact is pushed under a tag, and the registry tells its digest")]
    Digest(Artifact),
    #[error("{host} does not take the {what}: it answers {status}{}", remedy(*status))]
    Refused { host: crate::Host, what: &'static str, status: StatusCode },
    #[error("{0} does not say where the module is to be uploaded to")]
    NoLocation(crate::Host),
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

fn remedy(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ": do the credentials (a pull secret for this server) allow to write?"
        }
        StatusCode::PAYLOAD_TOO_LARGE => ": it takes none of this size",
        StatusCode::NOT_FOUND => ": does the repository have to be made first?",
        _ => "",
    }
}

impl Fetcher {
    /// Pushes a module under a tag, and returns the digest of its manifest.
    ///
    /// # Errors
    /// When the reference has no tag, or the registry cannot be reached or does not take it.
    pub async fn push(&self, artifact: &Artifact, module: &Module) -> Result<Digest, PushError> {
        let Version::Tag(tag) = artifact.version() else { return Err(PushError::Digest(artifact.clone())) };
        let timeout = || FetchError::Timeout { what: format!("pushing {artifact}"), limit: self.deadline };
        let pushing = async {
            let (trust, secrets) = self.load(&[]).await?;
            let credential = secrets.find(artifact.host(), artifact.repository()).cloned();
            let client = &mut Client::new(trust, credential, true);
            let config = Bytes::from_static(b"{}");
            blob(client, artifact, "configuration", config.clone()).await?;
            blob(client, artifact, "module", module.bytes.clone()).await?;
            let described = |kind: &str, bytes: &Bytes| json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
            let manifest = json!({
                "schemaVersion": 2, "mediaType": MANIFEST,
                "config": described(CONFIG, &config), "layers": [described(LAYERS[0], &module.bytes)],
            });
            let manifest = Bytes::from(manifest.to_string());
            let url = address(artifact, "manifests", tag)?;
            let answer = client.write(&Method::PUT, &url, (MANIFEST, manifest.clone())).await?;
            expect(&answer, StatusCode::CREATED, "manifest")?;
            Ok(Digest::of(&manifest))
        };
        tokio::time::timeout(self.deadline, pushing).await.unwrap_or_else(|_| Err(timeout().into()))
    }
}

/// Uploads a blob, as a whole, unless the registry has it.
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
        // Whom else it names would get the credentials.
        return Err(PushError::NoLocation(answer.host));
    }
    // A registry behind plain HTTP says so in its address; the client knows it already.
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
