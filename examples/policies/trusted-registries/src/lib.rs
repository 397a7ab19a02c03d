//! Denies images of other registries than the allowed ones, and images without a version. `images` finds the images of an
//! object, `reference` parses their references.

mod images;
mod reference;

use guest::{Policy, Response};
use serde::Deserialize;

use images::{Image, Images};
use reference::Reference;

guest::export_policy!(crate::TrustedRegistries, metadata: "../metadata.json");

#[derive(Debug)]
pub struct TrustedRegistries;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The allowed registries, as `host[:port][/path]`.
    registries: Vec<String>,
    /// Allows the tag `latest`, and images with neither tag nor digest, which means the same.
    #[serde(default)]
    allow_latest: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    object: Option<Images>,
    old_object: Option<Images>,
}

impl Policy for TrustedRegistries {
    type Request = Request;
    type Settings = Settings;

    fn validate(request: Request, settings: &Settings) -> Response {
        let Some(images) = request.object.map(Images::collect) else {
            return Response::accept(); // DELETE
        };
        // An image that the object had before is not checked again, so that users can still scale or label
        // workloads that are older than the policy.
        let known = request.old_object.map(Images::collect).unwrap_or_default();
        let problems: Vec<String> = images
            .iter()
            .filter(|image| !known.iter().any(|known| known.reference == image.reference))
            .filter_map(|image| Some(format!("{}: {}", image.owner, problem(image, settings)?)))
            .collect();
        if problems.is_empty() { Response::accept() } else { Response::reject(problems.join("; ")) }
    }

    fn validate_settings(settings: &Settings) -> Result<(), String> {
        if settings.registries.is_empty() {
            return Err("registries is empty, so that every image would be refused; name at least one".to_owned());
        }
        settings.registries.iter().try_for_each(|registry| reference::check_prefix(registry))
    }
}

/// Returns the problem of an image; `None` if the image is allowed.
fn problem(image: &Image, settings: &Settings) -> Option<String> {
    let text = image.reference.as_str();
    let reference = match Reference::parse(text) {
        Ok(reference) => reference,
        Err(error) => return Some(format!("{text:?} is no image reference: {error}")),
    };
    if !settings.registries.iter().any(|prefix| reference.is_under(prefix)) {
        return Some(format!(
            "image {text:?} is {}, which is in none of the allowed registries ({})",
            reference.name(),
            settings.registries.join(", ")
        ));
    }
    if !settings.allow_latest && reference.is_latest() {
        return Some(format!("image {text:?} names no version: give it a tag other than \"latest\", or a digest"));
    }
    None
}

#[cfg(test)]
mod tests;
