//! The capabilities `oci/*`: what registries say about images.

mod reference;

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use proviso_artifacts::{Artifact, FetchError, Fetcher, Manifest};
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
    /// Answers by operation, pull secrets and image.
    known: Cache<(String, Vec<String>, String), Arc<Vec<u8>>>,
}

impl Images {
    /// Asks registries as modules are fetched.
    #[must_use]
    pub fn new(fetcher: Arc<Fetcher>) -> Self {
        /// What an entry takes beside its answer.
        const ENTRY: usize = 512;
        let known = Cache::builder().max_capacity(KEPT).time_to_live(FRESH);
        let known = known.weigher(|_, answer: &Arc<Vec<u8>>| u32::try_from(ENTRY + answer.len()).unwrap_or(u32::MAX));
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
        return verify(call);
    }
    let image: String = requests::read(&call, payload)?;
    let artifact =
        reference::parse(&image).map_err(|error| AskError::Image { image: image.clone(), why: format!("{error}") })?;
    let key = (operation.to_owned(), rights.pull_secrets.clone(), artifact.to_string());
    let asking = images.known.try_get_with(key, ask(&images.fetcher, operation, &artifact, &rights.pull_secrets));
    let answer = asking.await.map_err(|error: Arc<FetchError>| AskError::Image { image, why: error.to_string() })?;
    Ok(answer.to_vec())
}

/// Verifies signatures of an image: not yet.
fn verify(call: String) -> Result<Vec<u8>, AskError> {
    Err(AskError::NotYet(call))
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
