//! Fetches the signatures of an image: from the tag `sha256-<digest>.sig` of cosign, and from the referrers of the image (OCI
//! distribution 1.1) or their fallback tag `sha256-<digest>`.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;

use super::client::Client;
use super::error::FetchError;
use super::registry::{MANIFEST_TYPES, MAX_MANIFEST, address, malformed, parse};
use crate::digest::{Digest, DigestError};
use crate::reference::Artifact;
use crate::verify::FoundSignature;

/// The media type of signature layers of cosign before version 3.
const SIMPLE_SIGNING_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The common prefix of the media types of all versions of the Sigstore bundle.
const BUNDLE_TYPE_PREFIX: &str = "application/vnd.dev.sigstore.bundle";
/// The prefix of the artifact type of referrers with simple signing layers.
const COSIGN_TYPE_PREFIX: &str = "application/vnd.dev.cosign.artifact.sig";
/// The media type of a list of referrers.
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// The maximum number of signatures to read for one image. Every user with push access can add signatures.
const MAX_SIGNATURES: usize = 50;
/// The maximum size of the blob of one signature, in bytes.
const MAX_SIGNATURE_SIZE: u64 = 1024 * 1024;

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: String,
    #[serde(default)]
    artifact_type: Option<String>,
}

/// Fetches the signatures of the image with the digest `image`.
pub(super) async fn find(
    client: &mut Client,
    artifact: &Artifact,
    image: Digest,
) -> Result<Vec<FoundSignature>, FetchError> {
    let referrers_tag = format!("sha256-{}", image.hex());
    let mut found = Vec::new();
    if let Some(manifest) = manifest(client, artifact, &format!("{referrers_tag}.sig"), MANIFEST_TYPES).await? {
        layers(client, artifact, &manifest, &mut found).await?;
    }
    let index = match get(client, artifact, "referrers", &image.to_string(), INDEX_TYPE).await? {
        // A registry without the referrers API has the list under a tag, which the clients update.
        None => manifest(client, artifact, &referrers_tag, INDEX_TYPE).await?,
        index => index,
    };
    let Some(index) = index else { return Ok(found) };
    let Index { manifests } = parse(artifact, "list of referrers", &index)?;
    let is_signature = |referrer: &&Referrer| {
        // Some registries omit the artifact type.
        let is_signature_type =
            |kind: &str| kind.starts_with(BUNDLE_TYPE_PREFIX) || kind.starts_with(COSIGN_TYPE_PREFIX);
        referrer.artifact_type.as_deref().is_none_or(is_signature_type)
    };
    for referrer in manifests.iter().filter(is_signature).take(MAX_SIGNATURES) {
        let digest: Digest = digest(artifact, &referrer.digest)?;
        let Some(manifest) = manifest(client, artifact, &digest.to_string(), MANIFEST_TYPES).await? else { continue };
        check(artifact, "manifest", &manifest, digest)?;
        layers(client, artifact, &manifest, &mut found).await?;
    }
    Ok(found)
}

/// Fetches the layers of a manifest that are signatures, and appends them to `found`.
async fn layers(
    client: &mut Client,
    artifact: &Artifact,
    manifest: &[u8],
    found: &mut Vec<FoundSignature>,
) -> Result<(), FetchError> {
    let Manifest { layers } = parse(artifact, "manifest of signatures", manifest)?;
    for layer in layers {
        let is_simple_signing = layer.media_type == SIMPLE_SIGNING_TYPE;
        if found.len() >= MAX_SIGNATURES || !(is_simple_signing || layer.media_type.starts_with(BUNDLE_TYPE_PREFIX)) {
            continue;
        }
        let digest = digest(artifact, &layer.digest)?;
        let Some(blob) = get(client, artifact, "blobs", &digest.to_string(), "*/*").await? else { continue };
        check(artifact, "signature", &blob, digest)?;
        found.push(if is_simple_signing {
            FoundSignature::Layer { payload: blob, annotations: layer.annotations.unwrap_or_default() }
        } else {
            FoundSignature::Bundle(blob)
        });
    }
    Ok(())
}

async fn manifest(
    client: &mut Client,
    artifact: &Artifact,
    name: &str,
    accept: &'static str,
) -> Result<Option<Bytes>, FetchError> {
    get(client, artifact, "manifests", name, accept).await
}

/// Fetches a document; `None` if the registry does not have it or does not support this kind of document.
async fn get(
    client: &mut Client,
    artifact: &Artifact,
    kind: &'static str,
    name: &str,
    accept: &'static str,
) -> Result<Option<Bytes>, FetchError> {
    let answer = client.get(&address(artifact, kind, name)?, accept).await?;
    let is_unsupported = kind == "referrers"
        && matches!(
            answer.status,
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_ACCEPTABLE
        );
    if answer.status == StatusCode::NOT_FOUND || is_unsupported {
        return Ok(None);
    }
    let limit = if kind == "blobs" { MAX_SIGNATURE_SIZE } else { MAX_MANIFEST };
    client.ok(answer)?.read("signature", limit).await.map(Some)
}

fn check(artifact: &Artifact, what: &'static str, bytes: &[u8], wanted: Digest) -> Result<(), FetchError> {
    let actual = Digest::of(bytes);
    let corrupt = || FetchError::Corrupt { host: artifact.host().clone(), what, actual, wanted };
    if actual == wanted { Ok(()) } else { Err(corrupt()) }
}

fn digest(artifact: &Artifact, text: &str) -> Result<Digest, FetchError> {
    text.parse().map_err(|error: DigestError| malformed(artifact, "manifest of signatures", &error))
}
