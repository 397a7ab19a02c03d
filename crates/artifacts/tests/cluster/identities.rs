//! Modules with keyless signatures and with certificates, from a Sigstore of the test.
use anyhow::{Result, ensure};
use proviso_artifacts::Digest;
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::sigstore::stage::{MODULE, SIGNATURE, SUBJECT, Stage, all_of, identity};
use crate::sigstore::{ISSUER, Layer, SIGNED, Sigstore, base64, envelope, later, payload, refer};

#[tokio::test]
async fn a_module_with_a_required_keyless_signature_is_fetched() -> Result<()> {
    let (stage, sigstore) = (Stage::start("verification-names").await?, Sigstore::new());
    stage.trust(&sigstore.root());
    let layer = sigstore.layer(&stage.image, ISSUER, SUBJECT);
    for subject in [json!({"equal": SUBJECT}), json!({"urlPrefix": "https://github.com/org"})] {
        stage.want(&identity(&subject));
        stage.accept("the certificate is long expired, and was valid then", std::slice::from_ref(&layer)).await?;
    }
    for (subject, case) in [
        (json!({"equal": "https://github.com/org/repo"}), "another name"),
        (json!({"urlPrefix": "https://github.com/or"}), "a prefix that ends within a part"),
        (json!({"urlPrefix": "https://github.com/org-evil"}), "a longer name"),
        (json!({"urlPrefix": "https://github.com.evil"}), "another host"),
    ] {
        stage.want(&identity(&subject));
        stage.refuse(case, std::slice::from_ref(&layer), &format!("a keyless signature of {SUBJECT:?}")).await?;
    }
    let mail = sigstore.layer(&stage.image, ISSUER, "ann@example.com");
    stage.want(&identity(&json!({"equal": "ann@example.com"})));
    stage.accept("an address", std::slice::from_ref(&mail)).await?;
    stage.want(&all_of(
        &json!({"kind": "genericIssuer", "issuer": "https://other", "subject": {"equal": "ann@example.com"}}),
    ));
    stage.refuse("another issuer", &[mail], &format!("from the issuer {ISSUER:?}")).await?;

    let github = sigstore.layer(&stage.image, "https://token.actions.githubusercontent.com", SUBJECT);
    for (owner, repo, is_met) in
        [("org", None, true), ("org", Some("repo"), true), ("or", None, false), ("org", Some("r"), false)]
    {
        stage.want(&all_of(&json!({"kind": "githubAction", "owner": owner, "repo": repo})));
        stage.attach(std::slice::from_ref(&github)).await?;
        ensure!(stage.fetch().await.is_ok() == is_met, "{owner} {repo:?}");
    }
    stage.refuse("a workflow's name from another issuer", &[layer], "GitHub workflow of \"org/r\"").await
}

#[tokio::test]
async fn a_keyless_signature_needs_a_valid_certificate_and_log_entry() -> Result<()> {
    let (stage, sigstore) = (Stage::start("verification-refused-names").await?, Sigstore::new());
    stage.trust(&sigstore.root());
    stage.want(&identity(&json!({"equal": SUBJECT})));
    let image = stage.image.as_str();
    let good = sigstore.layer(image, ISSUER, SUBJECT);
    stage.accept("good", std::slice::from_ref(&good)).await?;

    let bundle = "dev.sigstore.cosign/bundle";
    let change = |edit: &dyn Fn(&mut Value)| {
        let mut layer = good.clone();
        let mut entry: Value = serde_json::from_str(&layer.annotations[bundle]).unwrap();
        edit(&mut entry);
        layer.set(bundle, &entry.to_string());
        layer
    };
    let mut unlogged = good.clone();
    unlogged.annotations.remove(bundle);
    let mut tampered = good.clone();
    tampered.payload = payload(image, &json!({"env": "test"})).to_string().into_bytes();
    let (key, untrusted) = (KeyPair::generate()?, Sigstore::new());
    let certificate = sigstore.certify(&key, ISSUER, SUBJECT).pem();
    let of_untrusted_ca = sigstore.layer_with(image, &key, &untrusted.certify(&key, ISSUER, SUBJECT).pem(), SIGNED);
    let mut of_another_log = sigstore.layer_with(image, &key, &certificate, SIGNED);
    untrusted.log(&mut of_another_log, &certificate, SIGNED);
    // The log entry of another signature, made with the same certificate while it was valid.
    let mut borrowed = Layer::signed(&key, &payload(image, &json!({"env": "new"})));
    borrowed.set("dev.sigstore.cosign/certificate", &certificate);
    borrowed.set(bundle, &sigstore.layer_with(image, &key, &certificate, SIGNED).annotations[bundle]);
    let with_key_only = Layer::signed(&key, &payload(image, &Value::Null));
    for (case, layer, message) in [
        ("no log saw it", unlogged, "it has no log entry"),
        ("the payload was changed", tampered, "failed verification"),
        ("the log's time was changed", change(&|it| it["Payload"]["integratedTime"] = json!(SIGNED + 1)), "SET"),
        ("the log's promise is another's", change(&|it| it["SignedEntryTimestamp"] = json!(base64("no"))), "SET"),
        (
            "the entry is not understood",
            change(&|it| it["Payload"]["body"] = json!(base64("{}"))),
            "failed verification",
        ),
        ("the log is not trusted", of_another_log, "No log key"),
        ("the CA is not trusted", of_untrusted_ca, "failed verification: "),
        (
            "it was signed after the certificate expired",
            sigstore.layer_with(image, &key, &certificate, later(10)),
            "failed verification: ",
        ),
        (
            "it was signed before the certificate was valid",
            sigstore.layer_with(image, &key, &certificate, later(-10)),
            "failed verification: ",
        ),
        ("the entry is of another signature", borrowed, "failed verification: "),
        ("it has no issuer", sigstore.layer(image, "", SUBJECT), "it names no issuer"),
        ("it has no certificate", with_key_only, "a signature with a key"),
    ] {
        stage.refuse(case, &[layer], message).await?;
    }

    // The root has certificate transparency logs, and the certificate has no signed certificate timestamp.
    let mut root = sigstore.root();
    root["ctlogs"] = json!([root["tlogs"][0]]);
    stage.trust(&root);
    stage.refuse("no signed certificate timestamp", std::slice::from_ref(&good), "failed verification").await?;
    std::fs::remove_file(stage.path("trusted_root.json"))?;
    stage.refuse("no root", &[good], "give its file as --trusted-root").await
}

#[tokio::test]
async fn a_bundle_in_the_referrers_is_a_signature() -> Result<()> {
    let (stage, sigstore) = (Stage::start("verification-bundles").await?, Sigstore::new());
    stage.trust(&sigstore.root());
    stage.want(&identity(&json!({"equal": SUBJECT})));
    let image = stage.image.as_str();
    let good = sigstore.bundle(image, SIGNATURE, SUBJECT);
    refer(&stage.registry, "a", image, &good).await?;
    ensure!(stage.fetch().await?.bytes == MODULE);

    let change = |pointer: &str, value: Value| {
        let mut bundle = good.clone();
        *bundle.pointer_mut(pointer).unwrap() = value;
        bundle
    };
    let entry = "/verificationMaterial/tlogEntries/0";
    let other = sigstore.bundle(&Digest::of(b"other").to_string(), SIGNATURE, SUBJECT);
    for (case, bundle, message) in [
        (
            "its statement is not a signature",
            sigstore.bundle(image, "https://slsa.dev/provenance/v1", SUBJECT),
            "its statement has the predicate type",
        ),
        ("it signs another image", other.clone(), "it signs another image"),
        (
            "its name is another",
            sigstore.bundle(image, SIGNATURE, "https://github.com/evil"),
            "https://github.com/evil",
        ),
        ("its CA is not trusted", Sigstore::new().bundle(image, SIGNATURE, SUBJECT), "failed verification"),
        (
            "its statement was exchanged",
            change("/dsseEnvelope/signatures", other["dsseEnvelope"]["signatures"].clone()),
            "failed verification",
        ),
        (
            "its time was changed",
            change(&format!("{entry}/integratedTime"), json!("1579046401")),
            "failed verification",
        ),
        ("its log is gone", change("/verificationMaterial/tlogEntries", json!([])), "failed verification"),
        (
            "its proof is of another log",
            change(
                &format!("{entry}/inclusionProof"),
                other["verificationMaterial"]["tlogEntries"][0]["inclusionProof"].clone(),
            ),
            "failed verification",
        ),
        ("it is no bundle", json!({}), "its bundle is not understood"),
    ] {
        refer(&stage.registry, "a", image, &bundle).await?;
        stage.refused(case, message).await?;
    }

    // A signature with a key and without a log entry.
    let key = KeyPair::generate()?;
    let signed = |image: &str| {
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": ""}, "tlogEntries": []},
            "dsseEnvelope": envelope(&key, image, SIGNATURE).0,
        })
    };
    refer(&stage.registry, "a", image, &signed(image)).await?;
    stage.want(&all_of(&json!({"kind": "pubKey", "key": key.public_key_pem(), "annotations": {"env": "prod"}})));
    ensure!(stage.fetch().await?.bytes == MODULE);
    stage.want_key(&KeyPair::generate()?);
    stage.refused("another key", "is not the wanted one").await?;
    stage.want_key(&key);
    refer(&stage.registry, "a", image, &signed(&Digest::of(b"other").to_string())).await?;
    stage.refused("another image", "it signs another image").await
}

#[tokio::test]
async fn a_configured_certificate_counts_while_it_is_valid() -> Result<()> {
    let (stage, sigstore) = (Stage::start("verification-certificates").await?, Sigstore::new());
    stage.trust(&sigstore.root());
    let (key, image) = (KeyPair::generate()?, stage.image.as_str());
    let certificate = sigstore.certify(&key, "", "ann@example.com").pem();
    let want = |chain: &[String], log: bool| {
        stage.want(&all_of(&json!({
            "kind": "certificate", "certificate": certificate, "certificateChain": chain, "requireRekorBundle": log,
        })));
    };
    let good = sigstore.layer_with(image, &key, &certificate, SIGNED);
    let unlogged = Layer::signed(&key, &payload(image, &Value::Null));
    let mut others = Layer::signed(&KeyPair::generate()?, &payload(image, &Value::Null));
    others.set("dev.sigstore.cosign/certificate", &certificate);
    let own = [sigstore.certificate()];
    for chain in [&own[..], &[]] {
        want(chain, true);
        stage.accept("it was valid then", std::slice::from_ref(&good)).await?;
        for (case, layer) in [
            ("no log saw it", unlogged.clone()),
            ("the certificate is beside the signature of another key", others.clone()),
            ("it was signed too late", sigstore.layer_with(image, &key, &certificate, later(10))),
            ("the log is not trusted", Sigstore::new().layer_with(image, &key, &certificate, SIGNED)),
        ] {
            stage.refuse(case, &[layer], "wanted a signature with the certificate sha256:").await?;
        }
        want(chain, false);
        stage.refuse("it is not valid now", std::slice::from_ref(&good), "certificate").await?;
    }
    want(&[Sigstore::new().certificate()], true);
    stage.refuse("another authority", &[good], "certificate").await
}
