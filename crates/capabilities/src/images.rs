//! The capabilities `oci/*`: manifests, digests and signatures of images in registries.

mod reference;

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use proviso_artifacts::{Artifact, FetchAccess, FetchError, Fetcher, Manifest, VerifyRequest};
use serde_json::{Value, json};

use crate::error::HostCallError;
use crate::program_grants::ProgramGrants;
use crate::requests;

/// The maximum age of a cached answer. A tag can move at any time.
const CACHE_TTL: Duration = Duration::from_mins(1);
/// The maximum memory of the cache, in bytes.
const MAX_CACHE_BYTES: u64 = 16 << 20;

/// Queries registries and caches the answers.
#[derive(Debug)]
pub struct Images {
    fetcher: Arc<Fetcher>,
    /// The answers by operation, permissions of the fetch, and question.
    cache: Cache<(String, Vec<String>, String), Arc<Vec<u8>>>,
}

impl Images {
    /// Returns a client that queries registries with `fetcher`: mirrors, proxies and credentials are the same as for modules.
    #[must_use]
    pub fn new(fetcher: Arc<Fetcher>) -> Self {
        /// The memory of an entry besides its question and answer, in bytes.
        const ENTRY_OVERHEAD: usize = 512;
        let cache = Cache::builder().max_capacity(MAX_CACHE_BYTES).time_to_live(CACHE_TTL);
        let cache = cache.weigher(|(_, _, question): &(String, Vec<String>, String), answer: &Arc<Vec<u8>>| {
            u32::try_from(ENTRY_OVERHEAD + question.len() + answer.len()).unwrap_or(u32::MAX)
        });
        Self { fetcher, cache: cache.build() }
    }
}

/// Answers an operation of `oci/*`.
pub(crate) async fn answer(
    images: &Images,
    grants: &ProgramGrants,
    operation: &str,
    payload: &[u8],
) -> Result<Vec<u8>, HostCallError> {
    let call = format!("oci/{operation}");
    if matches!(operation, "v1/verify" | "v2/verify") {
        return verify(images, grants, operation, &call, payload).await;
    }
    let image: String = requests::read(&call, payload)?;
    let artifact = reference::parse(&image)
        .map_err(|error| HostCallError::Image { image: image.clone(), why: format!("{error}") })?;
    let key = (operation.to_owned(), grants.fetch_scope(), artifact.to_string());
    let fetching = fetch_answer(&images.fetcher, operation, &artifact, grants.fetch_access());
    let answer = Box::pin(images.cache.try_get_with(key, fetching))
        .await
        .map_err(|error: Arc<FetchError>| HostCallError::Image { why: explain(grants, &image, &error), image })?;
    Ok(answer.to_vec())
}

/// Verifies the signatures of an image. An untrusted image is an error, as Kubewarden's policies expect.
async fn verify(
    images: &Images,
    grants: &ProgramGrants,
    operation: &str,
    call: &str,
    payload: &[u8],
) -> Result<Vec<u8>, HostCallError> {
    let request =
        if operation == "v1/verify" { VerifyRequest::version1(payload) } else { VerifyRequest::version2(payload) };
    let VerifyRequest { image, requirements } =
        request.map_err(|error| HostCallError::Request { call: call.to_owned(), error: error.to_string() })?;
    let key = (operation.to_owned(), grants.fetch_scope(), String::from_utf8_lossy(payload).into_owned());
    let verifying = async {
        let digest = images.fetcher.verify(&image, requirements, grants.fetch_access()).await?;
        Ok(Arc::new(write(&json!({"is_trusted": true, "digest": digest.to_string()}))))
    };
    let answer = Box::pin(images.cache.try_get_with(key, verifying)).await;
    let untrusted = |error: Arc<FetchError>| {
        let image = image.to_string();
        HostCallError::Untrusted { why: explain(grants, &image, &error), image }
    };
    answer.map(|answer| answer.to_vec()).map_err(untrusted)
}

/// Returns the text of an error for the program. The author of a namespaced policy gets its category, and the log has the cause.
fn explain(grants: &ProgramGrants, image: &str, error: &FetchError) -> String {
    if grants.tenant.is_none() {
        return error.to_string();
    }
    let namespace = grants.namespace.as_deref().unwrap_or_default();
    tracing::info!(namespace, image, reason = error.reason().as_str(), %error, "an image of a namespaced policy cannot be looked up");
    error.category()
}

async fn fetch_answer(
    fetcher: &Fetcher,
    operation: &str,
    artifact: &Artifact,
    access: FetchAccess<'_>,
) -> Result<Arc<Vec<u8>>, FetchError> {
    let answer = match operation {
        "v1/oci_manifest_config" => {
            let (manifest, config) = fetcher.image(artifact, access).await?;
            let Manifest { digest, content } = manifest;
            json!({"manifest": content, "digest": digest.to_string(), "config": config})
        }
        "v1/oci_manifest" => fetcher.manifest(artifact, access).await?.content,
        _ => json!({"digest": fetcher.manifest(artifact, access).await?.digest.to_string()}),
    };
    Ok(Arc::new(write(&answer)))
}

fn write(answer: &Value) -> Vec<u8> {
    // A value that was parsed from JSON always serializes.
    serde_json::to_vec(answer).unwrap_or_default()
}
