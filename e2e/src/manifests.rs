//! Applies manifests without kubectl. Tests start a hundred control planes, and each run of kubectl costs a process and a
//! download of the OpenAPI documents.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt as _};
use serde::Deserialize as _;

use crate::until;

const ESTABLISHED_TIMEOUT: Duration = Duration::from_mins(1);

/// Applies every document of a manifest, in order.
///
/// # Errors
/// If a document is not a Kubernetes object, or the API server refuses it.
pub async fn apply(client: &Client, manifest: &str) -> Result<()> {
    for document in serde_yaml::Deserializer::from_str(manifest) {
        let object = DynamicObject::deserialize(document)?;
        let types = object.types.as_ref().context("an object with its apiVersion and kind")?;
        let resource = ApiResource::from_gvk(&types.try_into()?);
        let api = match object.namespace() {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let parameters = PatchParams::apply("proviso-e2e").force();
        api.patch(&object.name_any(), &parameters, &Patch::Apply(&object)).await?;
    }
    Ok(())
}

/// Applies the CRDs of a folder (`*.yaml`), and waits until the API server serves each kind.
///
/// # Errors
/// If the folder cannot be read, or the API server refuses a CRD, or does not serve its kind within a minute.
pub async fn apply_crds(client: &Client, folder: &Path) -> Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let manifest = std::fs::read_to_string(&path)?;
            apply(client, &manifest).await.with_context(|| path.display().to_string())?;
            let definition: CustomResourceDefinition = serde_yaml::from_str(&manifest)?;
            names.push(definition.name_any());
        }
    }
    for name in names {
        until(&format!("{name} to be served"), ESTABLISHED_TIMEOUT, async || {
            let definition = definitions.get(&name).await?;
            let conditions = definition.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_established = conditions.iter().any(|it| it.type_ == "Established" && it.status == "True");
            ensure!(is_established, "{conditions:?}");
            // The storage of an established kind is ready a moment later, so the kind is listed.
            let spec = definition.spec;
            let version = spec.versions.iter().find(|version| version.storage).context("a stored version")?;
            let path = format!("/apis/{}/{}/{}?limit=1", spec.group, version.name, spec.names.plural);
            client.request_text(http::Request::get(path).body(Vec::new())?).await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}
