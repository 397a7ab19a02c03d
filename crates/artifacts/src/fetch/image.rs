//! What registries say about images, for policies that ask: their manifests, and what these are about. Within the limits of
//! modules, and smaller ones of size.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::Fetcher;
use super::client::Client;
use super::error::FetchError;
use super::tried::Tried;
use crate::digest::Digest;
use crate::reference::{Artifact, Version};

/// The kinds of manifest that describe images, and of those that list several.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// The largest manifest or configuration, in bytes: what registries have to take.
const MAX_SIZE: u64 = 4 * 1024 * 1024;

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
        let (manifest, _) = self.look_up(image, pull_secrets, false).await?;
        Ok(manifest)
    }

    /// Asks for the manifest of an image and its configuration. Of an index, those of this machine's platform.
    ///
    /// # Errors
    /// When the registry has none, or does not show it.
    pub async fn image(&self, image: &Artifact, pull_secrets: &[String]) -> Result<(Manifest, Value), FetchError> {
        self.look_up(image, pull_secrets, true).await
    }

    /// Asks where an image may be, one after the other: its mirrors, or its own registry.
    async fn look_up(
        &self,
        image: &Artifact,
        pull_secrets: &[String],
        with_configuration: bool,
    ) -> Result<(Manifest, Value), FetchError> {
        let asking = Box::pin(async {
            let (trust, secrets) = self.load(pull_secrets).await?;
            let mut tried = Tried::default();
            for place in trust.sources.places(image) {
                let credential = secrets.find(place.host(), place.repository());
                let mut client = Client::new(&trust, credential, true);
                let asked = if with_configuration {
                    configured(&mut client, &place).await
                } else {
                    manifest(&mut client, &place, &name(&place)).await.map(|manifest| (manifest, Value::Null))
                };
                match asked {
                    Ok(found) => return Ok(found),
                    Err(error) => tried.add(error),
                }
            }
            Err(tried.into_error())
        });
        self.in_time(&image.to_string(), asking).await
    }
}

/// The manifest of an image and its configuration.
async fn configured(client: &mut Client<'_>, image: &Artifact) -> Result<(Manifest, Value), FetchError> {
    let mut found = manifest(client, image, &name(image)).await?;
    let mut outline = outline(image, &found)?;
    if outline.config.is_none() {
        let digest = of_platform(image, &outline.manifests)?;
        found = manifest(client, image, &digest).await?;
        outline = self::outline(image, &found)?;
    }
    let config = outline.config.ok_or_else(|| no_image(image, "its manifest names no configuration"))?;
    let (_, config) = document(client, image, "blobs", &config.digest, "*/*").await?;
    Ok((found, config))
}

fn name(image: &Artifact) -> String {
    match image.version() {
        Version::Tag(tag) => tag.clone(),
        Version::Digest(digest) => digest.to_string(),
    }
}

async fn manifest(client: &mut Client<'_>, image: &Artifact, name: &str) -> Result<Manifest, FetchError> {
    let (digest, content) = document(client, image, "manifests", name, MANIFESTS).await?;
    Ok(Manifest { digest, content })
}

/// A document of the image, by its digest or a tag: what has a digest must have that one.
async fn document(
    client: &mut Client<'_>,
    image: &Artifact,
    sort: &str,
    name: &str,
    accept: &'static str,
) -> Result<(Digest, Value), FetchError> {
    let wanted = name.parse::<Digest>().ok();
    if wanted.is_none() && name.contains(':') {
        return Err(no_image(image, &format!("{name:?} is no digest that is known here")));
    }
    let (host, repository) = (image.endpoint(), image.repository());
    let url = Url::parse(&format!("https://{host}/v2/{repository}/{sort}/{name}"))
        .map_err(|error| no_image(image, &error.to_string()))?;
    let answer = client.get(&url, accept).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Err(FetchError::NotFound { reference: image.to_string(), may_come: wanted.is_none() });
    }
    let answer = client.ok(answer)?;
    let host = answer.host.clone();
    let what = if sort == "blobs" { "configuration" } else { "manifest" };
    let bytes = answer.read(what, MAX_SIZE).await?;
    let actual = Digest::of(&bytes);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != actual) {
        return Err(FetchError::Corrupt { host, what, actual, wanted });
    }
    let content = serde_json::from_slice(&bytes).map_err(|error| FetchError::Malformed {
        host,
        what,
        error: error.to_string(),
    })?;
    Ok((actual, content))
}

fn outline(image: &Artifact, manifest: &Manifest) -> Result<Outline, FetchError> {
    Outline::deserialize(&manifest.content).map_err(|error| no_image(image, &error.to_string()))
}

/// The digest of the manifest for this machine's platform.
fn of_platform(image: &Artifact, manifests: &[Descriptor]) -> Result<String, FetchError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits =
        |it: &&Descriptor| it.platform.as_ref().is_some_and(|it| it.os == "linux" && it.architecture == architecture);
    let found = manifests.iter().find(fits).map(|it| it.digest.clone());
    found.ok_or_else(|| no_image(image, &format!("its index has none for linux/{architecture}")))
}

fn no_image(image: &Artifact, why: &str) -> FetchError {
    FetchError::Malformed { host: image.host().clone(), what: "image", error: why.to_owned() }
}
