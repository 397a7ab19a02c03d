//! The answers of `oci/*` in the format of Kubewarden's SDKs, with a real registry.

use std::sync::Arc;

use anyhow::{Result, ensure};
use proviso_capabilities::{FolderObjects, HostContext, Images, PolicyHost};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::sigstore::stage::{SUBJECT, Stage};
use crate::sigstore::{Layer, SIGNED, Sigstore, payload};
use crate::support::{call_host, host_for};

const GITHUB: &str = "https://token.actions.githubusercontent.com";

/// Returns the host of a program that may call all capabilities, with the registry of the stage.
fn image_host(stage: &Stage) -> Arc<PolicyHost> {
    let images = Images::new(Arc::new(stage.fetcher(None)));
    host_for(&Arc::new(HostContext::folder(Arc::<FolderObjects>::default(), images)), &[], None)
}

async fn call(host: &PolicyHost, operation: &str, request: Value) -> Result<Value> {
    call_host(host, &format!("oci/{operation}"), request).await.map_err(|error| anyhow::anyhow!("{operation}: {error}"))
}

#[tokio::test]
async fn manifests_and_configurations_are_those_of_the_registry() -> Result<()> {
    let stage = Stage::start("host-manifests").await?;
    let registry = &stage.registry;
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {"User": "65532", "Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": []},
    });
    let kind = |name: &str| format!("application/vnd.oci.image.{name}+json");
    let described = |media_type: String, digest: &str, size: usize| json!({"mediaType": media_type, "digest": digest, "size": size});
    let bytes = config.to_string().into_bytes();
    let blob = registry.upload("app", &bytes).await?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": kind("manifest.v1"), "layers": [],
        "config": described(kind("config.v1"), &blob, bytes.len()), "annotations": {"a": "b"},
    });
    let digest = registry.push_manifest("app", "v1", &manifest).await?;
    let mut listed = described(kind("manifest.v1"), &digest, manifest.to_string().len());
    listed["platform"] = json!({"os": "linux", "architecture": architecture});
    let index = json!({"schemaVersion": 2, "mediaType": kind("index.v1"), "manifests": [listed]});
    let index_digest = registry.push_manifest("app", "many", &index).await?;

    let host = image_host(&stage);
    let named = |version: &str| json!(format!("{}/app{version}", registry.address()));
    let by_digest = format!("@{digest}");
    for (version, document, document_digest) in
        [(":v1", &manifest, &digest), (&by_digest, &manifest, &digest), (":many", &index, &index_digest)]
    {
        let reply = call(&host, "v1/manifest_digest", named(version)).await?;
        ensure!(reply == json!({"digest": document_digest}), "{version}: {reply}");
        let reply = call(&host, "v1/oci_manifest", named(version)).await?;
        ensure!(reply == *document, "{version}: {reply}");
        // For an index: the manifest for the architecture of this machine.
        let reply = call(&host, "v1/oci_manifest_config", named(version)).await?;
        ensure!(reply == json!({"manifest": manifest, "digest": digest, "config": config}), "{version}: {reply}");
    }
    for operation in ["v1/manifest_digest", "v1/oci_manifest", "v1/oci_manifest_config"] {
        let error = call(&host, operation, named(":none")).await.unwrap_err().to_string();
        ensure!(error.contains("app:none\" cannot be looked up: there is no"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn verification_returns_the_digest_or_an_error_for_each_signer_type() -> Result<()> {
    let (stage, authority) = (Stage::start("host-verify").await?, Sigstore::new());
    let [own, certified, strange] = [KeyPair::generate()?, KeyPair::generate()?, KeyPair::generate()?];
    let certificate = authority.certify(&certified, "", "ann@example.com").pem();
    stage.trust(&authority.root());
    stage
        .attach(&[
            Layer::signed(&own, &payload(&stage.image, &json!({"env": "prod"}))),
            authority.layer(&stage.image, GITHUB, SUBJECT),
            authority.layer_with(&stage.image, &certified, &certificate, SIGNED),
        ])
        .await?;
    let image = format!("{}/a:v1", stage.registry.address());
    let request_v1 = |request: Value| {
        let mut request = request;
        request["image"] = json!(image);
        request
    };
    let request_v2 = |kind: &str, request: Value| {
        let mut request = request_v1(request);
        request["type"] = json!(kind);
        request
    };
    let keys = |key: &KeyPair, env: &str| json!({"pub_keys": [key.public_key_pem()], "annotations": {"env": env}});
    let names = |subject: &str| json!({"keyless": [{"issuer": GITHUB, "subject": subject}], "annotations": null});
    let prefixes = |prefix: &str| json!({"keyless_prefix": [{"issuer": GITHUB, "url_prefix": prefix}]});
    let workflow = |owner: &str, repo: Value| json!({"owner": owner, "repo": repo, "annotations": null});
    let certificate = |chain: &str| json!({"certificate": certificate.as_bytes(), "certificate_chain": [chain.as_bytes()], "require_rekor_bundle": true});
    let other_authority = Sigstore::new().certificate();

    let host = image_host(&stage);
    let (by_key, by_name) = ("SigstorePubKeyVerify", "SigstoreKeylessVerify");
    let (by_prefix, by_workflow, by_certificate) =
        ("SigstoreKeylessPrefixVerify", "SigstoreGithubActionsVerify", "SigstoreCertificateVerify");
    for (operation, signed, other) in [
        (
            "v1/verify",
            json!({by_key: request_v1(keys(&own, "prod"))}),
            json!({by_key: request_v1(keys(&strange, "prod"))}),
        ),
        (
            "v1/verify",
            json!({by_name: request_v1(names(SUBJECT))}),
            json!({by_name: request_v1(names("https://github.com/evil"))}),
        ),
        ("v2/verify", request_v2(by_key, keys(&own, "prod")), request_v2(by_key, keys(&own, "test"))),
        ("v2/verify", request_v2(by_name, names(SUBJECT)), request_v2(by_name, names("https://github.com/evil"))),
        (
            "v2/verify",
            request_v2(by_prefix, prefixes("https://github.com/org/")),
            request_v2(by_prefix, prefixes("https://github.com/or/")),
        ),
        (
            "v2/verify",
            request_v2(by_workflow, workflow("org", Value::Null)),
            request_v2(by_workflow, workflow("evil", Value::Null)),
        ),
        (
            "v2/verify",
            request_v2(by_workflow, workflow("org", json!("repo"))),
            request_v2(by_workflow, workflow("org", json!("other"))),
        ),
        (
            "v2/verify",
            request_v2(by_certificate, certificate(&authority.certificate())),
            request_v2(by_certificate, certificate(&other_authority)),
        ),
    ] {
        let reply = call(&host, operation, signed.clone()).await?;
        ensure!(reply == json!({"is_trusted": true, "digest": stage.image}), "{operation} {signed}: {reply}");
        let error = call(&host, operation, other.clone()).await.err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains("a:v1\" is not trusted: ") && error.contains(&stage.image), "{other}: {error:?}");
    }
    Ok(())
}
