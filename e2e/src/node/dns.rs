//! `CoreDNS`: a Deployment like others, from an image of the program that was built.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt as _};
use serde::Deserialize as _;

use crate::binaries::Component;
use crate::control_plane::PATIENCE;
use crate::{Image, until};

const IMAGE: &str = "localhost/coredns:1";

pub(super) fn image() -> Result<Image> {
    Ok(Image::new(IMAGE).file(Component::CoreDns.folder()?.join("coredns"), "/coredns").entrypoint(["/coredns"]))
}

pub(super) async fn install(client: &Client) -> Result<()> {
    for document in serde_yaml::Deserializer::from_str(include_str!("coredns.yaml")) {
        let object = DynamicObject::deserialize(document)?;
        let types = object.types.as_ref().context("an object with its apiVersion and kind")?;
        let resource = ApiResource::from_gvk(&types.try_into()?);
        let api = match object.namespace() {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.patch(&object.name_any(), &PatchParams::apply("proviso-e2e"), &Patch::Apply(&object)).await?;
    }
    Ok(())
}

pub(super) async fn until_ready(client: &Client) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), "kube-system");
    until("a ready CoreDNS", PATIENCE, async || {
        let ready = deployments.get("coredns").await?.status.and_then(|status| status.ready_replicas);
        ensure!(ready.is_some_and(|replicas| replicas > 0), "no replica is ready");
        Ok(())
    })
    .await
}
