//! Manifests and configurations of images.
use proviso_artifacts::{Artifact, Digest, FetchAccess};
use serde_json::{Value, json};

use crate::support::{Server, ok, status};

const OTHER: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// Starts a registry with an image, an index of it, and documents with wrong digests.
async fn registry() -> (Server, String, String) {
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({"architecture": architecture, "os": "linux", "config": {"User": "app"}}).to_string();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": digest(&config)}, "layers": []}).to_string();
    let for_other = json!({"digest": OTHER, "platform": {"os": "linux", "architecture": "s390x"}});
    let for_this = json!({"digest": digest(&manifest), "platform": {"os": "linux", "architecture": architecture}});
    let index = json!({"manifests": [for_other, for_this]}).to_string();
    let strange = json!({"manifests": [for_other]}).to_string();
    let odd = json!({"config": {"digest": "sha512:00"}}).to_string();
    let (manifest_digest, index_digest) = (digest(&manifest), digest(&index));
    let known = [
        ("/v2/app/manifests/v1".to_owned(), manifest.clone()),
        (format!("/v2/app/manifests/{manifest_digest}"), manifest),
        ("/v2/app/manifests/many".to_owned(), index),
        ("/v2/app/manifests/strange".to_owned(), strange),
        ("/v2/app/manifests/odd".to_owned(), odd),
        ("/v2/app/manifests/text".to_owned(), "no JSON".to_owned()),
        ("/v2/app/manifests/huge".to_owned(), format!("{:?}", "x".repeat(5 << 20))),
        (format!("/v2/app/manifests/{OTHER}"), "{}".to_owned()),
        (format!("/v2/app/blobs/{}", digest(&config)), config),
    ];
    let server = Server::http(move |request| {
        let found = known.iter().find(|(path, _)| path == request.uri().path());
        found.map_or_else(|| status(404), |(_, content)| ok(content.clone()))
    });
    (server.await, manifest_digest, index_digest)
}

#[tokio::test]
async fn an_image_has_a_manifest_and_a_configuration() {
    let (server, manifest, index) = registry().await;
    let image = |version: &str| -> Artifact { format!("{}/app{version}", server.address).parse().unwrap() };
    let fetcher = server.fetcher();
    for (version, wanted) in
        [(":v1".to_owned(), &manifest), (":many".to_owned(), &index), (format!("@{manifest}"), &manifest)]
    {
        let found = fetcher.manifest(&image(&version), FetchAccess::default()).await.unwrap();
        assert_eq!(&found.digest.to_string(), wanted, "{version}");
        let (found, config) = fetcher.image(&image(&version), FetchAccess::default()).await.unwrap();
        assert_eq!((found.digest.to_string(), &config["config"]["User"]), (manifest.clone(), &Value::from("app")));
    }
    for (version, wanted) in [
        (":none".to_owned(), "there is no"),
        (":strange".to_owned(), "the index has no manifest for linux/"),
        (":odd".to_owned(), "is not a supported digest"),
        (":text".to_owned(), "sent a manifest that is not understood"),
        (":huge".to_owned(), "is larger than"),
        (format!("@{OTHER}"), "its storage is damaged or was tampered with"),
    ] {
        let error = fetcher.image(&image(&version), FetchAccess::default()).await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{version}: {error}");
    }
}

#[tokio::test]
async fn images_at_link_local_addresses_are_refused() {
    let (server, ..) = registry().await;
    let image: Artifact = "169.254.169.254/app:v1".parse().unwrap();
    let error = server.fetcher().manifest(&image, FetchAccess::default()).await.unwrap_err().to_string();
    assert!(error.contains("169.254.169.254"), "{error}");
}
