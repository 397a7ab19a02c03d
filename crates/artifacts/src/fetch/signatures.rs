//! The signatures that a registry has beside an image: under cosign's tag `sha256-<digest>.sig`, and among the
//! referrers of the image (OCI distribution 1.1), or under the tag that stands in for these.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;

use super::client::Client;
use super::error::FetchError;
use super::registry::{MANIFESTS, MAX_MANIFEST, address, malformed, parse};
use crate::digest::{Digest, DigestError};
use crate::reference::Artifact;
use crate::verify::Candidate;

/// Layers that were signed.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The beginning of the types of all versions of Sigstore's bundle.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// Of artifacts with such layers, where they are referrers.
const COSIGN: &str = "application/vnd.dev.cosign.artifact.sig";
/// Of a list of referrers.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// How many signatures of one image are looked at: anybody who may push could add to them.
const MOST: usize = 50;
/// The largest of what one signature consists of, in bytes.
const MAX_SIGNATURE: u64 = 1024 * 1024;

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

/// What there is of signatures of the image with this digest.
pub(super) async fn find(
    client: &mut Client,
    artifact: &Artifact,
    image: Digest,
) -> Result<Vec<Candidate>, FetchError> {
    let stem = format!("sha256-{}", image.hex());
    let mut found = Vec::new();
    if let Some(manifest) = manifest(client, artifact, &format!("{stem}.sig"), MANIFESTS).await? {
        layers(client, artifact, &manifest, &mut found).await?;
    }
    let index = match get(client, artifact, "referrers", &image.to_string(), INDEX).await? {
        // One that knows no referrers has them under a tag, where whoever adds one keeps the list.
        None => manifest(client, artifact, &stem, INDEX).await?,
        index => index,
    };
    let Some(index) = index else { return Ok(found) };
    let Index { manifests } = parse(artifact, "list of referrers", &index)?;
    let is_signature = |referrer: &&Referrer| {
        // Some registries do not say of which type one is.
        referrer.artifact_type.as_deref().is_none_or(|kind| kind.starts_with(BUNDLE) || kind.starts_with(COSIGN))
    };
    for referrer in manifests.iter().filter(is_signature).take(MOST) {
        let digest: Digest = digest(artifact, &referrer.digest)?;
        let Some(manifest) = manifest(client, artifact, &digest.to_string(), MANIFESTS).await? else { continue };
        check(artifact, "manifest", &manifest, digest)?;
        layers(client, artifact, &manifest, &mut found).await?;
    }
    Ok(found)
}

/// Reads the layers of a manifest that are signatures.
async fn layers(
    client: &mut Client,
    artifact: &Artifact,
    manifest: &[u8],
    found: &mut Vec<Candidate>,
) -> Result<(), FetchError> {
    let Manifest { layers } = parse(artifact, "manifest of signatures", manifest)?;
    for layer in layers {
        let is_layer = layer.media_type == SIMPLE_SIGNING;
        if found.len() >= MOST || !(is_layer || layer.media_type.starts_with(BUNDLE)) {
            continue;
        }
        let digest = digest(artifact, &layer.digest)?;
        let Some(blob) = get(client, artifact, "blobs", &digest.to_string(), "*/*").await? else { continue };
        check(artifact, "signature", &blob, digest)?;
        found.push(if is_layer {
            Candidate::Layer { payload: blob, annotations: layer.annotations.unwrap_or_default() }
        } else {
            Candidate::Bundle(blob)
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

/// None if the registry has no such thing, or knows no such things.
async fn get(
    client: &mut Client,
    artifact: &Artifact,
    kind: &'static str,
    name: &str,
    accept: &'static str,
) -> Result<Option<Bytes>, FetchError> {
    let answer = client.get(&address(artifact, kind, name)?, accept).await?;
    let is_unknown = kind == "referrers"
        && matches!(
            answer.status,
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_ACCEPTABLE
        );
    if answer.status == StatusCode::NOT_FOUND || is_unknown {
        return Ok(None);
    }
    let limit = if kind == "blobs" { MAX_SIGNATURE } else { MAX_MANIFEST };
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
