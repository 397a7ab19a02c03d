//! Manifests and configurations of images, for policies that request them. The limits of modules apply, with smaller limits
//! of size.

use serde::Deserialize;
use serde_json::Value;

use super::client::Client;
use super::error::FetchError;
use super::registry::{Document, IMAGE_TYPES, document, malformed, parse};
use super::{FetchAccess, Fetcher};
use crate::digest::Digest;
use crate::reference::{Artifact, Version};

/// The manifest of an image, or its index of manifests.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub digest: Digest,
    pub content: Value,
}

/// The parts of a manifest or index that refer to other documents.
#[derive(Deserialize)]
struct Outline {
    config: Option<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

impl Fetcher {
    /// Fetches the manifest of an image, or its index.
    ///
    /// # Errors
    /// Returns an error if the registry has no such image, denies access, or cannot be reached.
    pub async fn manifest(&self, image: &Artifact, access: FetchAccess<'_>) -> Result<Manifest, FetchError> {
        let fetch = |mut client, location| async move { manifest(&mut client, &location, location.version()).await };
        self.limit_time(&image.to_string(), Box::pin(self.try_locations(image, access, fetch))).await
    }

    /// Fetches the manifest of an image and its configuration. From an index it takes the platform of this machine.
    ///
    /// # Errors
    /// Returns an error if the registry has no such image, denies access, or cannot be reached, or if the index has no
    /// manifest for this platform.
    pub async fn image(&self, image: &Artifact, access: FetchAccess<'_>) -> Result<(Manifest, Value), FetchError> {
        let fetch = |mut client, location| async move { manifest_and_configuration(&mut client, &location).await };
        self.limit_time(&image.to_string(), Box::pin(self.try_locations(image, access, fetch))).await
    }
}

/// Fetches the manifest of an image and its configuration.
async fn manifest_and_configuration(client: &mut Client, image: &Artifact) -> Result<(Manifest, Value), FetchError> {
    let mut found = manifest(client, image, image.version()).await?;
    let mut outline = outline(image, &found)?;
    if outline.config.is_none() {
        let platform = for_this_platform(image, &outline.manifests)?;
        found = manifest(client, image, &version(image, platform)?).await?;
        outline = self::outline(image, &found)?;
    }
    let config = outline.config.ok_or_else(|| malformed(image, "manifest", &"it names no configuration"))?;
    let bytes = document(client, image, Document::Configuration, &version(image, &config)?, "*/*").await?;
    Ok((found, parse(image, "configuration", &bytes)?))
}

async fn manifest(client: &mut Client, image: &Artifact, version: &Version) -> Result<Manifest, FetchError> {
    let bytes = document(client, image, Document::Manifest, version, IMAGE_TYPES).await?;
    Ok(Manifest { digest: Digest::of(&bytes), content: parse(image, "manifest", &bytes)? })
}

fn outline(image: &Artifact, manifest: &Manifest) -> Result<Outline, FetchError> {
    Outline::deserialize(&manifest.content).map_err(|error| malformed(image, "manifest", &error))
}

fn version(image: &Artifact, Descriptor { digest, .. }: &Descriptor) -> Result<Version, FetchError> {
    let unsupported = |_| malformed(image, "manifest", &format!("{digest:?} is not a supported digest"));
    digest.parse().map(Version::Digest).map_err(unsupported)
}

/// Returns the manifest for the platform of this machine.
fn for_this_platform<'a>(image: &Artifact, manifests: &'a [Descriptor]) -> Result<&'a Descriptor, FetchError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let matches_platform =
        |it: &&Descriptor| it.platform.as_ref().is_some_and(|it| it.os == "linux" && it.architecture == architecture);
    let missing = || malformed(image, "manifest", &format!("the index has no manifest for linux/{architecture}"));
    manifests.iter().find(matches_platform).ok_or_else(missing)
}
