//! The capabilities `oci/*`: what registries say about images.

mod reference;

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use proviso_artifacts::{Artifact, FetchError, Fetcher, Manifest, VerifyRequest};
use serde_json::{Value, json};

use crate::error::AskError;
use crate::requests;
use crate::rights::Rights;

/// How old an answer may be: tags move.
const FRESH: Duration = Duration::from_mins(1);
/// How much memory the answers may take, in bytes.
const KEPT: u64 = 16 << 20;

/// What registries said.
#[derive(Debug)]
pub struct Images {
    fetcher: Arc<Fetcher>,
    /// Answers by operation, pull secrets and what was asked.
    known: Cache<(String, Vec<String>, String), Arc<Vec<u8>>>,
}

impl Images {
    /// Asks registries as modules are fetched.
    #[must_use]
    pub fn new(fetcher: Arc<Fetcher>) -> Self {
        /// What an entry takes beside its answer.
        const ENTRY: usize = 512;
        let known = Cache::builder().max_capacity(KEPT).time_to_live(FRESH);
        let known = known.weigher(|(_, _, asked): &(String, Vec<String>, String), answer: &Arc<Vec<u8>>| {
            u32::try_from(ENTRY + asked.len() + answer.len()).unwrap_or(u32::MAX)
        });
        Self { fetcher, known: known.build() }
    }
}

/// Answers one of the operations.
pub(crate) async fn answer(
    images: &Images,
    rights: &Rights,
    operation: &str,
    payload: &[u8],
) -> Result<Vec<u8>, AskError> {
    let call = format!("oci/{operation}");
    if matches!(operation, "v1/verify" | "v2/verify") {
        return verify(images, rights, operation, &call, payload).await;
    }
    let image: String = requests::read(&call, payload)?;
    let artifact =
        reference::parse(&image).map_err(|error| AskError::Image { image: image.clone(), why: format!("{error}") })?;
    let key = (operation.to_owned(), rights.pull_secrets.clone(), artifact.to_string());
    let asking = ask(&images.fetcher, operation, &artifact, &rights.pull_secrets);
    let answer = Box::pin(images.known.try_get_with(key, asking))
        .await
        .map_err(|error: Arc<FetchError>| AskError::Image { image, why: error.to_string() })?;
    Ok(answer.to_vec())
}

/// Verifies signatures of an image. One that is not trusted is an error, as policies expect.
async fn verify(
    images: &Images,
    rights: &Rights,
    operation: &str,
    call: &str,
    payload: &[u8],
) -> Result<Vec<u8>, AskError> {
    let request =
        if operation == "v1/verify" { VerifyRequest::version1(payload) } else { VerifyRequest::version2(payload) };
    let VerifyRequest { image, requirements } =
        request.map_err(|error| AskError::Request { call: call.to_owned(), error: error.to_string() })?;
    let key = (operation.to_owned(), rights.pull_secrets.clone(), String::from_utf8_lossy(payload).into_owned());
    let verifying = async {
        let digest = images.fetcher.verify(&image, requirements, &rights.pull_secrets).await?;
        Ok(Arc::new(write(&json!({"is_trusted": true, "digest": digest.to_string()}))))
    };
    let answer = Box::pin(images.known.try_get_with(key, verifying)).await;
    let untrusted = |error: Arc<FetchError>| AskError::Untrusted { image: image.to_string(), why: error.to_string() };
    answer.map(|answer| answer.to_vec()).map_err(untrusted)
}

async fn ask(
    fetcher: &Fetcher,
    operation: &str,
    artifact: &Artifact,
    secrets: &[String],
) -> Result<Arc<Vec<u8>>, FetchError> {
    let answer = match operation {
        "v1/oci_manifest_config" => {
            let (manifest, config) = fetcher.image(artifact, secrets).await?;
            let Manifest { digest, content } = manifest;
            json!({"manifest": content, "digest": digest.to_string(), "config": config})
        }
        "v1/oci_manifest" => fetcher.manifest(artifact, secrets).await?.content,
        _ => json!({"digest": fetcher.manifest(artifact, secrets).await?.digest.to_string()}),
    };
    Ok(Arc::new(write(&answer)))
}

fn write(answer: &Value) -> Vec<u8> {
    // What was JSON can be JSON again.
    serde_json::to_vec(answer).unwrap_or_default()
}
