//! What registries say about images, for policies that ask: their manifests, and what these are about. Within the limits of
//! modules, and smaller ones of size.

use serde::Deserialize;
use serde_json::Value;

use super::Fetcher;
use super::client::Client;
use super::error::FetchError;
use super::registry::{Document, IMAGES, document, malformed, parse};
use crate::digest::Digest;
use crate::reference::{Artifact, Version};

/// What a registry has under the name of an image: a manifest, or an index of manifests.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub digest: Digest,
    pub content: Value,
}

/// As much of a manifest as leads to another document.
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
    /// Asks for the manifest of an image, or the index.
    ///
    /// # Errors
    /// When the registry has none, or does not show it.
    pub async fn manifest(&self, image: &Artifact, pull_secrets: &[String]) -> Result<Manifest, FetchError> {
        let ask = |mut client, place| async move { manifest(&mut client, &place, place.version()).await };
        self.in_time(&image.to_string(), Box::pin(self.ask(image, pull_secrets, ask))).await
    }

    /// Asks for the manifest of an image and its configuration. Of an index, those of this machine's platform.
    ///
    /// # Errors
    /// When the registry has none, or does not show it.
    pub async fn image(&self, image: &Artifact, pull_secrets: &[String]) -> Result<(Manifest, Value), FetchError> {
        let ask = |mut client, place| async move { configured(&mut client, &place).await };
        self.in_time(&image.to_string(), Box::pin(self.ask(image, pull_secrets, ask))).await
    }
}

/// The manifest of an image and its configuration.
async fn configured(client: &mut Client, image: &Artifact) -> Result<(Manifest, Value), FetchError> {
    let mut found = manifest(client, image, image.version()).await?;
    let mut outline = outline(image, &found)?;
    if outline.config.is_none() {
        let platform = of_platform(image, &outline.manifests)?;
        found = manifest(client, image, &version(image, platform)?).await?;
        outline = self::outline(image, &found)?;
    }
    let config = outline.config.ok_or_else(|| malformed(image, "image", &"its manifest names no configuration"))?;
    let bytes = document(client, image, Document::Configuration, &version(image, &config)?, "*/*").await?;
    Ok((found, parse(image, "configuration", &bytes)?))
}

async fn manifest(client: &mut Client, image: &Artifact, version: &Version) -> Result<Manifest, FetchError> {
    let bytes = document(client, image, Document::Manifest, version, IMAGES).await?;
    Ok(Manifest { digest: Digest::of(&bytes), content: parse(image, "manifest", &bytes)? })
}

fn outline(image: &Artifact, manifest: &Manifest) -> Result<Outline, FetchError> {
    Outline::deserialize(&manifest.content).map_err(|error| malformed(image, "image", &error))
}

fn version(image: &Artifact, Descriptor { digest, .. }: &Descriptor) -> Result<Version, FetchError> {
    let unknown = |_| malformed(image, "image", &format!("{digest:?} is no digest that is known here"));
    digest.parse().map(Version::Digest).map_err(unknown)
}

/// The manifest for this machine's platform.
fn of_platform<'a>(image: &Artifact, manifests: &'a [Descriptor]) -> Result<&'a Descriptor, FetchError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits =
        |it: &&Descriptor| it.platform.as_ref().is_some_and(|it| it.os == "linux" && it.architecture == architecture);
    let none = || malformed(image, "image", &format!("its index has none for linux/{architecture}"));
    manifests.iter().find(fits).ok_or_else(none)
}
