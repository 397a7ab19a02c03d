//! Modules in a real registry with signatures by keys: the number of required signatures, and verification records.
use anyhow::{Result, ensure};
use proviso_artifacts::{
    Artifact, Cache, Digest, FetchAccess, FetchError, FetchOptions, Fetcher, ModuleReference, PublicKey, Requirement,
    Signer,
};
use proviso_e2e::Registry;
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::sigstore::stage::{MODULE, Stage, all_of};
use crate::sigstore::{Layer, attach, payload};

#[tokio::test]
async fn a_module_signed_with_a_required_key_is_fetched() -> Result<()> {
    let stage = Stage::start("verification-keys").await?;
    for kind in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519, &rcgen::PKCS_RSA_SHA256] {
        let key = KeyPair::generate_for(kind)?;
        let other = KeyPair::generate_for(kind)?;
        stage.want_key(&key);
        let (good, others) = (
            Layer::signed(&key, &payload(&stage.image, &Value::Null)),
            Layer::signed(&other, &payload(&stage.image, &Value::Null)),
        );
        stage.refuse("another key", std::slice::from_ref(&others), "which is not the wanted one").await?;
        stage.accept("the key beside another", &[others, good]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_signature_must_name_the_image_and_use_a_required_key() -> Result<()> {
    let stage = Stage::start("verification-refused-keys").await?;
    let key = KeyPair::generate()?;
    stage.want_key(&key);
    stage.refused("nothing was signed", "found no signature").await?;
    let good = Layer::signed(&key, &payload(&stage.image, &json!({"env": "test"})));

    let mut tampered = good.clone();
    tampered.payload = payload(&stage.image, &json!({"env": "prod"})).to_string().into_bytes();
    let other = Digest::of(b"another manifest").to_string();
    let another = Layer::signed(&key, &payload(&other, &Value::Null));
    let mut kind = payload(&stage.image, &Value::Null);
    kind["critical"]["type"] = json!("something else");
    let mut no_signature = good.clone();
    no_signature.annotations.clear();
    let mut odd = good.clone();
    odd.set("dev.cosignproject.cosign/signature", "%");
    let mut empty = good.clone();
    empty.set("dev.cosignproject.cosign/signature", "");
    let no_document = Layer { payload: b"{}".to_vec(), annotations: good.annotations.clone() };
    for (case, layer, message) in [
        ("the payload was changed", tampered, "is not the wanted one"),
        ("it names another image", another, &*format!("it signs the image {other}")),
        ("it is of another kind", Layer::signed(&key, &kind), "something else"),
        ("there is no signature", no_signature, "dev.cosignproject.cosign/signature is missing"),
        ("the signature is not Base64", odd, "is not Base64"),
        ("the signature is empty", empty, "is not the wanted one"),
        ("there is no payload", no_document, "not understood"),
    ] {
        stage.refuse(case, &[layer], message).await?;
    }

    // Only annotations that the signature covers count.
    let with =
        |value: &str| all_of(&json!({"kind": "pubKey", "key": key.public_key_pem(), "annotations": {"env": value}}));
    stage.want(&with("prod"));
    let mut beside = good.clone();
    beside.set("env", "prod");
    stage.refuse("another annotation", &[beside], "with the annotation env=\"prod\"").await?;
    stage.want(&with("test"));
    stage.accept("the annotation", &[good]).await
}

#[tokio::test]
async fn the_required_number_of_signatures_is_enforced() -> Result<()> {
    let stage = Stage::start("verification-numbers").await?;
    let keys: Vec<KeyPair> = (0..3).map(|_| KeyPair::generate().unwrap()).collect();
    let wanted: Vec<Value> = keys.iter().map(|key| json!({"kind": "pubKey", "key": key.public_key_pem()})).collect();
    let by = |which: &[usize]| -> Vec<Layer> {
        which.iter().map(|index| Layer::signed(&keys[*index], &payload(&stage.image, &Value::Null))).collect()
    };
    stage.want(&json!({"apiVersion": "v1", "allOf": wanted[..2]}));
    stage.refuse("one of all", &by(&[0]), "is not the wanted one").await?;
    stage.refuse("another of all", &by(&[1, 2]), "is not the wanted one").await?;
    stage.accept("all", &by(&[1, 0])).await?;
    let two = json!({"minimumMatches": 2, "signatures": wanted});
    stage.want(&json!({"apiVersion": "v1", "anyOf": two}));
    stage.attach(&by(&[2, 2])).await?;
    let error = stage.fetch().await.unwrap_err();
    ensure!(error.to_string().contains("wanted 2 of: a signature"), "two signatures of one key count once: {error}");
    stage.accept("two of three", &by(&[2, 0])).await?;
    // A key that is listed twice counts once, also with different annotations.
    let noted = json!({"kind": "pubKey", "key": keys[0].public_key_pem(), "annotations": {"env": "test"}});
    let twice = json!({"minimumMatches": 2, "signatures": [wanted[0], noted, wanted[1]]});
    stage.want(&json!({"apiVersion": "v1", "anyOf": twice}));
    let with_note = Layer::signed(&keys[0], &payload(&stage.image, &json!({"env": "test"})));
    stage.attach(&[by(&[0]), vec![with_note.clone()]].concat()).await?;
    let error = stage.fetch().await.unwrap_err();
    ensure!(error.to_string().contains("wanted 2 of: a signature"), "a key that is listed twice counts once: {error}");
    stage.accept("another key beside it", &[by(&[1]), vec![with_note]].concat()).await?;
    stage.want(&json!({"apiVersion": "v1", "allOf": wanted[..1], "anyOf": {"signatures": wanted[1..]}}));
    stage.attach(&by(&[0])).await?;
    ensure!(stage.fetch().await.is_err(), "a signature of anyOf is missing");
    stage.accept("all and any", &by(&[0, 2])).await
}

#[tokio::test]
async fn a_verified_module_needs_no_registry_until_the_settings_change() -> Result<()> {
    let mut stage = Stage::start("verification-memory").await?;
    let [key, other] = [KeyPair::generate()?, KeyPair::generate()?];
    let by = |key: &KeyPair| Layer::signed(key, &payload(&stage.image, &Value::Null));
    let (cache, digest) = (stage.path("cache"), Digest::of(MODULE));
    Cache::open(&cache)?.put_module(&digest, MODULE)?;
    let pinned = FetchOptions { pin: Some(digest), ..FetchOptions::default() };
    let fetch = async |stage: &Stage| stage.fetcher(Some(&cache)).fetch(&stage.reference(), pinned).await;

    // A module in the cache without a verification record is not verified.
    stage.want_key(&key);
    let error = fetch(&stage).await.unwrap_err();
    ensure!(matches!(error, FetchError::Unverified(_)), "{error}");
    ensure!(!stage.fetcher(Some(&cache)).is_trusted(digest).await?);
    stage.attach(&[by(&key), by(&other)]).await?;
    ensure!(fetch(&stage).await?.bytes == MODULE);
    ensure!(stage.fetcher(Some(&cache)).is_trusted(digest).await?);

    // The tag moves and the settings change: the manifest of the last verification is verified again.
    stage.registry.push("a", "v1", Registry::MODULE, b"\0asm moved").await?;
    stage.want_key(&other);
    ensure!(!stage.fetcher(Some(&cache)).is_trusted(digest).await?);
    ensure!(fetch(&stage).await?.bytes == MODULE);

    stage.registry.process().kill();
    ensure!(fetch(&stage).await?.bytes == MODULE, "a restart needs no registry");
    stage.want_key(&KeyPair::generate()?);
    let error = fetch(&stage).await.unwrap_err();
    ensure!(matches!(error, FetchError::Connect { .. }) && error.is_transient(), "{error}");
    std::fs::remove_file(stage.path("verification.yaml"))?;
    let error = fetch(&stage).await.unwrap_err();
    ensure!(matches!(error, FetchError::Verification(_)) && error.reason().as_str() == "VerificationError", "{error}");
    ensure!(error.is_transient() && error.to_string().contains("verification.yaml"), "{error}");
    Ok(())
}

#[tokio::test]
async fn modules_outside_a_registry_cannot_be_verified() -> Result<()> {
    let stage = Stage::start("verification-elsewhere").await?;
    stage.want_key(&KeyPair::generate()?);
    std::fs::write(stage.path("a.wasm"), MODULE)?;
    for reference in ["https://127.0.0.1:1/a.wasm", "file://./a.wasm"] {
        let reference = ModuleReference::parse(reference, stage.folder.path())?;
        let error = stage.fetcher(None).fetch(&reference, FetchOptions::default()).await.unwrap_err();
        ensure!(
            matches!(error, FetchError::Unverifiable(_)) && error.reason().as_str() == "VerificationError",
            "{error}"
        );
        ensure!(!error.is_transient() && error.to_string().contains("a.wasm"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn an_image_index_is_verified_for_a_policy() -> Result<()> {
    let stage = Stage::start("verification-images").await?;
    let key = KeyPair::generate()?;
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []});
    let digest = stage.registry.push_manifest("app", "v1", &index).await?;
    attach(&stage.registry, "app", &digest, &[Layer::signed(&key, &payload(&digest, &Value::Null))]).await?;
    let image: Artifact = format!("{}/app:v1", stage.registry.address()).parse()?;
    let by = |key: &KeyPair| {
        let signer = Signer::Key(PublicKey::from_pem(&key.public_key_pem()).unwrap());
        vec![Requirement { signer, annotations: [].into() }]
    };
    let fetcher = Fetcher::new(Some(stage.path("sources.yaml")), None, None);
    ensure!(fetcher.verify(&image, by(&key), FetchAccess::default()).await?.to_string() == digest);
    let error = fetcher.verify(&image, by(&KeyPair::generate()?), FetchAccess::default()).await.unwrap_err();
    ensure!(matches!(error, FetchError::Unverified(_)) && error.to_string().contains(&digest), "{error}");
    let missing: Artifact = format!("{}/app:v2", stage.registry.address()).parse()?;
    let error = fetcher.verify(&missing, by(&key), FetchAccess::default()).await.unwrap_err();
    ensure!(matches!(error, FetchError::NotFound { .. }), "{error}");
    Ok(())
}
