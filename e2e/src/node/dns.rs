//! `CoreDNS`: a Deployment with an image of the program that was built.

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};

use crate::binaries::Tier;
use crate::until::WAIT_TIMEOUT;
use crate::{Image, manifests, until};

const IMAGE: &str = "localhost/coredns:1";

pub(super) fn image() -> Result<Image> {
    Ok(Image::new(IMAGE).file(Tier::Node.folder()?.join("coredns"), "/coredns").entrypoint(["/coredns"]))
}

pub(super) async fn install(client: &Client) -> Result<()> {
    manifests::apply(client, include_str!("coredns.yaml")).await
}

pub(super) async fn until_ready(client: &Client) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), "kube-system");
    until("a ready CoreDNS", WAIT_TIMEOUT, async || {
        let ready = deployments.get("coredns").await?.status.and_then(|status| status.ready_replicas);
        ensure!(ready.is_some_and(|replicas| replicas > 0), "no replica is ready");
        Ok(())
    })
    .await
}
