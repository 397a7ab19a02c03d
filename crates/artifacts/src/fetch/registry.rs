//! Pulls a module from a registry with the OCI distribution protocol: a manifest, and the blob of its one wasm layer.
//! Policies of Kubewarden have this format.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use url::Url;

use super::client::Client;
use super::error::FetchError;
use super::{FetchOptions, Fetcher};
use crate::cache::VerificationRecord;
use crate::digest::{Digest, DigestError};
use crate::module::{MAX_MODULE, Module};
use crate::reference::{Artifact, Version};
use crate::verify::Checks;

/// The media types of manifests that can describe a module.
pub(super) const MANIFEST_TYPES: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
/// The media types of manifests and of indexes, which images for several platforms have.
pub(super) const IMAGE_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                      application/vnd.docker.distribution.manifest.v2+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json";
/// The media types of layers with a module: of Kubewarden, and of the CNCF guidance for wasm artifacts.
pub(super) const MODULE_TYPES: [&str; 2] = ["application/vnd.wasm.content.layer.v1+wasm", "application/wasm"];
/// The maximum size of a manifest, in bytes: registries must accept manifests up to this size.
pub(super) const MAX_MANIFEST: u64 = 4 * 1024 * 1024;

#[derive(Deserialize)]
struct Manifest {
    /// The layers; `None` in an index of several manifests.
    layers: Option<Vec<Layer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

impl Fetcher {
    /// Pulls the module of an artifact.
    pub(super) async fn pull(
        &self,
        client: &mut Client,
        artifact: &Artifact,
        wanted: &FetchOptions<'_>,
        checks: Option<&Arc<Checks>>,
    ) -> Result<Module, FetchError> {
        // A pinned blob has its digest as its name, so that a moved tag does not matter.
        if let (Some(pin), Version::Tag(_)) = (wanted.pin, artifact.version())
            && self.is_verified(checks, pin).await
            && let Some(module) = self.blob(client, artifact, pin).await?
        {
            return Ok(module);
        }
        // A repeated verification uses the manifest of the last verification, so that a moved tag does not matter.
        let before = match (checks, wanted.pin) {
            (Some(_), Some(pin)) => self.verified(pin).await.map(|before| artifact.with(before.manifest)),
            _ => None,
        };
        let bytes = match manifest(client, before.as_ref().unwrap_or(artifact), MANIFEST_TYPES).await {
            Err(FetchError::NotFound { .. }) if before.is_some() => manifest(client, artifact, MANIFEST_TYPES).await?,
            result => result?,
        };
        let (signed, digest) = (Digest::of(&bytes), module_digest(&bytes, artifact)?);
        match (wanted.pin, wanted.digest) {
            (Some(pinned), _) if pinned != digest => {
                return Err(FetchError::Moved { reference: artifact.to_string(), pinned, now: digest });
            }
            (_, Some(wanted)) if wanted != digest => return Err(FetchError::Digest { actual: digest, wanted }),
            _ => {}
        }
        if let Some(checks) = checks
            && !self.is_verified(Some(checks), digest).await
        {
            self.check(client, artifact, signed, checks).await?;
            self.remember(digest, VerificationRecord { manifest: signed, against: checks.fingerprint }).await;
        }
        if let Some(module) = self.cached(digest).await {
            return Ok(module);
        }
        let module = self.blob(client, artifact, digest).await?;
        // The manifest names the blob, so the registry is not consistent yet or lost the blob.
        module.ok_or_else(|| FetchError::NotFound { reference: format!("{artifact} ({digest})"), may_appear: true })
    }

    /// Fetches the blob with this digest; `None` if the registry does not have it.
    async fn blob(
        &self,
        client: &mut Client,
        artifact: &Artifact,
        wanted: Digest,
    ) -> Result<Option<Module>, FetchError> {
        let answer = client.get(&address(artifact, "blobs", &wanted.to_string())?, "*/*").await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer = client.ok(answer)?;
        let host = answer.host.clone();
        let module = answer.read_module(&self.memory).await?;
        let actual = module.digest;
        if actual == wanted {
            Ok(Some(module))
        } else {
            Err(FetchError::Corrupt { host, what: "module", actual, wanted })
        }
    }
}

/// Returns the current digest of the manifest or index that `artifact` names.
pub(super) async fn digest(client: &mut Client, artifact: &Artifact) -> Result<Digest, FetchError> {
    manifest(client, artifact, IMAGE_TYPES).await.map(|bytes| Digest::of(&bytes))
}

async fn manifest(client: &mut Client, artifact: &Artifact, accept: &'static str) -> Result<Bytes, FetchError> {
    document(client, artifact, Document::Manifest, artifact.version(), accept).await
}

/// The kind of a document of an artifact.
#[derive(Clone, Copy)]
pub(super) enum Document {
    Manifest,
    Configuration,
}

/// Fetches a document of an artifact. Verifies the digest if `version` is a digest.
pub(super) async fn document(
    client: &mut Client,
    artifact: &Artifact,
    document: Document,
    version: &Version,
    accept: &'static str,
) -> Result<Bytes, FetchError> {
    let (kind, what) = match document {
        Document::Manifest => ("manifests", "manifest"),
        Document::Configuration => ("blobs", "configuration"),
    };
    let (name, digest) = match version {
        Version::Tag(tag) => (tag.clone(), None),
        Version::Digest(digest) => (digest.to_string(), Some(*digest)),
    };
    let answer = client.get(&address(artifact, kind, &name)?, accept).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Err(FetchError::NotFound { reference: artifact.to_string(), may_appear: digest.is_none() });
    }
    let answer = client.ok(answer)?;
    let host = answer.host.clone();
    let bytes = answer.read(what, MAX_MANIFEST).await?;
    let actual = Digest::of(&bytes);
    match digest {
        Some(wanted) if wanted != actual => Err(FetchError::Corrupt { host, what, actual, wanted }),
        _ => Ok(bytes),
    }
}

/// Parses a JSON document.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    artifact: &Artifact,
    what: &'static str,
    bytes: &'a [u8],
) -> Result<T, FetchError> {
    serde_json::from_slice(bytes).map_err(|error| malformed(artifact, what, &error))
}

pub(super) fn malformed(artifact: &Artifact, what: &'static str, error: &dyn fmt::Display) -> FetchError {
    FetchError::Malformed { host: artifact.host().clone(), what, error: error.to_string() }
}

pub(super) fn address(artifact: &Artifact, kind: &str, name: &str) -> Result<Url, FetchError> {
    let (host, repository) = (artifact.endpoint(), artifact.repository());
    Url::parse(&format!("https://{host}/v2/{repository}/{kind}/{name}"))
        .map_err(|error| FetchError::NoModule { reference: artifact.to_string(), why: error.to_string() })
}

/// Returns the digest of the one layer that is a module.
fn module_digest(manifest: &[u8], artifact: &Artifact) -> Result<Digest, FetchError> {
    let manifest: Manifest = parse(artifact, "manifest", manifest)?;
    let no_module = |why: String| FetchError::NoModule { reference: artifact.to_string(), why };
    let layers = manifest
        .layers
        .ok_or_else(|| no_module("it is an index: name the manifest of the module by its digest".to_owned()))?;
    let modules: Vec<&Layer> =
        layers.iter().filter(|layer| MODULE_TYPES.contains(&layer.media_type.as_str())).collect();
    let [module] = modules[..] else {
        let kinds: Vec<&str> = layers.iter().map(|layer| layer.media_type.as_str()).take(5).collect();
        let why = format!("it must have one layer of the type {}, and has {kinds:?}", MODULE_TYPES[0]);
        return Err(no_module(why));
    };
    if module.size > MAX_MODULE {
        return Err(FetchError::TooLarge { what: format!("the module {artifact}"), limit: MAX_MODULE });
    }
    module.digest.parse().map_err(|error: DigestError| malformed(artifact, "manifest", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_exactly_one_module() {
        let artifact: Artifact = "ghcr.io/a/b:v1".parse().unwrap();
        let digest = Digest::of(b"module");
        let described =
            |kind: &str, size: u64| format!(r#"{{"mediaType":"{kind}","digest":"{digest}","size":{size}}}"#);
        let manifest = |layers: &[String]| format!(r#"{{"layers":[{}]}}"#, layers.join(","));
        let (kubewarden, cncf, readme) =
            (described(MODULE_TYPES[0], 6), described(MODULE_TYPES[1], 6), described("text/markdown", 6));
        for layers in [vec![kubewarden.clone()], vec![cncf.clone()], vec![readme.clone(), kubewarden.clone()]] {
            assert_eq!(module_digest(manifest(&layers).as_bytes(), &artifact).unwrap(), digest);
        }
        for (text, wanted) in [
            (manifest(&[readme]), "text/markdown"),
            (manifest(&[]), "has []"),
            (manifest(&[kubewarden, cncf]), "it must have one layer"),
            (r#"{"manifests":[]}"#.to_owned(), "it is an index"),
            ("<html>".to_owned(), "ghcr.io sent a manifest that is not understood"),
            (manifest(&[described(MODULE_TYPES[0], MAX_MODULE + 1)]), "larger than 67108864 bytes"),
            (manifest(&[described(MODULE_TYPES[0], 6).replace("sha256", "sha512")]), "is not a digest"),
        ] {
            let error = module_digest(text.as_bytes(), &artifact).unwrap_err();
            assert!(error.to_string().contains(wanted) && !error.is_transient(), "{text}: {error}");
        }
    }
}
