//! Tests of `proviso verify`, `proviso pull` and `proviso run` with signed modules in a real registry.
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::Digest;
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::sigstore::stage::{MODULE, SUBJECT, Stage, all_of};
use crate::sigstore::{ISSUER, Layer, Sigstore, payload};

const GITHUB: &str = "https://token.actions.githubusercontent.com";

/// Runs a command about the module of a stage. Returns the exit code, and the text of standard output and standard error.
fn proviso(stage: &Stage, command: &str, arguments: &[&str]) -> Result<(i32, String)> {
    let reference = format!("registry://{}/a:v1", stage.registry.address());
    run(stage, &[&[command, &reference], arguments].concat())
}

/// Runs the program in the folder of a stage. Returns the exit code, and the text of standard output and standard error.
fn run(stage: &Stage, arguments: &[&str]) -> Result<(i32, String)> {
    let result = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(arguments)
        .args(["--sources", "sources.yaml"])
        .current_dir(stage.folder.path())
        .env_remove("PROVISO_PULL_SECRETS")
        .output()?;
    let output = String::from_utf8([result.stdout, result.stderr].concat())?;
    Ok((result.status.code().context("a signal ended the program")?, output))
}

/// Checks that `proviso verify` succeeds, or with `refusal` that it fails with this text.
fn verify(stage: &Stage, arguments: &[&str], refusal: Option<&str>) -> Result<()> {
    let (code, output) = proviso(stage, "verify", arguments)?;
    match refusal {
        None => {
            ensure!(code == 0 && output.contains("has the required signatures, and has the digest"), "{code} {output}");
        }
        Some(text) => ensure!(code == 1 && output.contains(text), "{arguments:?}: {code} {output}"),
    }
    Ok(())
}

#[tokio::test]
async fn a_module_is_verified_by_keys_and_annotations() -> Result<()> {
    let stage = Stage::start("cli-verify-keys").await?;
    let keys = [KeyPair::generate()?, KeyPair::generate()?, KeyPair::generate()?];
    for (index, key) in keys.iter().enumerate() {
        std::fs::write(stage.path(&format!("{index}.pub")), key.public_key_pem())?;
    }
    verify(&stage, &["-k", "0.pub"], Some("found no signature"))?;
    let by = |key: &KeyPair| Layer::signed(key, &payload(&stage.image, &json!({"env": "prod"})));
    stage.attach(&[by(&keys[0]), by(&keys[1])]).await?;
    verify(&stage, &["-k", "0.pub"], None)?;
    verify(&stage, &["--verification-key", "0.pub", "--verification-key", "1.pub"], None)?;
    verify(&stage, &["-k", "0.pub", "-k", "2.pub"], Some("wanted a signature with the key"))?;
    verify(&stage, &["-k", "0.pub", "-a", "env=prod"], None)?;
    verify(&stage, &["-k", "0.pub", "--annotation", "env=test"], Some("with the annotation env=\"test\""))?;

    let digest = Digest::of(MODULE).to_string();
    let (_, output) = proviso(&stage, "verify", &["-k", "0.pub", "--digest", &digest])?;
    ensure!(output.contains(&digest) && output.contains(&format!("manifest: {}", stage.image)), "{output}");
    let other = Digest::of(b"other").to_string();
    verify(&stage, &["-k", "0.pub", "--digest", &other], Some(&format!("has the digest {digest}, not")))?;

    // `pull` writes a file only if the module is verified.
    let (code, output) = proviso(&stage, "pull", &["-k", "2.pub", "-f", "refused.wasm"])?;
    ensure!(code == 1 && !stage.path("refused.wasm").exists(), "{code} {output}");
    let (code, output) = proviso(&stage, "pull", &["-k", "1.pub", "-f", "good.wasm"])?;
    ensure!(code == 0 && std::fs::read(stage.path("good.wasm"))? == MODULE, "{code} {output}");
    Ok(())
}

#[tokio::test]
async fn a_module_is_verified_by_keyless_signatures() -> Result<()> {
    let (stage, sigstore) = (Stage::start("cli-verify-names").await?, Sigstore::new());
    let mail = sigstore.layer(&stage.image, ISSUER, "ann@example.com");
    stage.attach(&[mail, sigstore.layer(&stage.image, GITHUB, SUBJECT)]).await?;
    let ann = ["--cert-email", "ann@example.com", "--cert-oidc-issuer", ISSUER];
    verify(&stage, &ann, Some("give its file as --trusted-root"))?;
    stage.trust(&sigstore.root());
    let root = ["--trusted-root", "trusted_root.json"];
    let with = |arguments: &[&'static str], refusal: Option<&str>| {
        verify(&stage, &[&root[..], arguments].concat(), refusal).with_context(|| format!("{arguments:?}"))
    };
    with(&ann, None)?;
    with(&["--cert-email", "eve@example.com", "--cert-oidc-issuer", ISSUER], Some("eve@example.com"))?;
    with(&["--cert-email", "ann@example.com", "--cert-oidc-issuer", "https://other"], Some("https://other"))?;
    with(&["--github-owner", "org"], None)?;
    with(&["--github-owner", "org", "--github-repo", "repo"], None)?;
    with(&["--github-owner", "org", "--github-repo", "other"], Some("GitHub workflow of \"org/other\""))?;
    with(&[&ann[..], &["--github-owner", "org", "-a", "env=prod"]].concat(), None)?;
    with(&[&ann[..], &["--github-owner", "evil"]].concat(), Some("GitHub workflow of \"evil\""))?;
    stage.trust(&Sigstore::new().root());
    with(&ann, Some("failed verification"))
}

#[tokio::test]
async fn a_file_names_the_required_signatures() -> Result<()> {
    let (stage, sigstore) = (Stage::start("cli-verify-file").await?, Sigstore::new());
    let key = KeyPair::generate()?;
    stage.attach(&[Layer::signed(&key, &payload(&stage.image, &Value::Null))]).await?;
    let file = ["--verification-config-path", "verification.yaml"];
    let key = json!({"kind": "pubKey", "key": key.public_key_pem()});
    let workflow = json!({"kind": "githubAction", "owner": "org"});
    stage.want(&all_of(&key));
    verify(&stage, &file, None)?;
    stage.want(&json!({"apiVersion": "v1", "anyOf": {"minimumMatches": 2, "signatures": [key, workflow]}}));
    stage.trust(&sigstore.root());
    let with_root = [&file[..], &["--trusted-root", "trusted_root.json"]].concat();
    verify(&stage, &with_root, Some("wanted 2 of: "))?;
    let (code, output) = proviso(&stage, "pull", &with_root)?;
    ensure!(code == 1 && !stage.path("a.wasm").exists(), "{code} {output}");

    std::fs::write(stage.path("verification.yaml"), "apiVersion: v1\nallOf: []\n")?;
    let (code, output) = proviso(&stage, "verify", &file)?;
    ensure!(code == 2 && output.contains("requires no signature"), "{code} {output}");
    Ok(())
}

#[tokio::test]
async fn a_module_is_run_only_with_the_required_signatures() -> Result<()> {
    let stage = Stage::start("cli-run-signed").await?;
    let [key, other] = [KeyPair::generate()?, KeyPair::generate()?];
    for (name, key) in [("key.pub", &key), ("other.pub", &other)] {
        std::fs::write(stage.path(name), key.public_key_pem())?;
    }
    stage.attach(&[Layer::signed(&key, &payload(&stage.image, &Value::Null))]).await?;
    std::fs::write(stage.path("pod.json"), json!({"apiVersion": "v1", "kind": "Pod"}).to_string())?;
    std::fs::write(
        stage.path("policy.json"),
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {
                "program": {"wasm": {"module": format!("registry://{}/a:v1", stage.registry.address())}},
                "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]},
            },
        })
        .to_string(),
    )?;
    let file = ["--verification-config-path", "verification.yaml"];
    // The module of the stage is not valid WebAssembly: this error shows that the module was verified before it was read.
    let (verified, unverified) = ("WebAssembly of an unknown version", "wanted a signature with the key");
    for (wanted_key, arguments, wanted) in [
        (&key, &["pod.json", "-k", "key.pub"][..], verified),
        (&key, &["pod.json", "-k", "other.pub"], unverified),
        (&key, &["pod.json", file[0], file[1]], verified),
        (&other, &["pod.json", file[0], file[1]], unverified),
    ] {
        stage.want_key(wanted_key);
        let (code, output) = proviso(&stage, "run", arguments)?;
        ensure!(code == 2 && output.contains(wanted), "{arguments:?}: {code} {output}");
    }
    for (arguments, wanted) in [
        (&["policy.json", "pod.json", file[0], file[1]][..], unverified),
        (&["policy.json", "pod.json", "-k", "key.pub"], "use --verification-config-path"),
    ] {
        let (code, output) = run(&stage, &[&["run"], arguments].concat())?;
        ensure!(code == 2 && output.contains(wanted), "{arguments:?}: {code} {output}");
    }
    Ok(())
}

#[tokio::test]
async fn invalid_options_are_refused_before_a_fetch() -> Result<()> {
    let stage = Stage::start("cli-verify-usage").await?;
    std::fs::write(stage.path("no.pub"), "no key")?;
    std::fs::write(stage.path("key.pub"), KeyPair::generate()?.public_key_pem())?;
    for (arguments, wanted) in [
        (&[][..], "--verification-config-path"),
        (&["-k", "no.pub"], "--verification-key: no.pub is not a public key"),
        (&["-k", "none.pub"], "none.pub: No such file"),
        (&["--cert-email", "ann@example.com"], "--cert-oidc-issuer"),
        (&["--cert-oidc-issuer", "https://a"], "--cert-email"),
        (&["--github-repo", "repo"], "--github-owner"),
        (&["-k", "key.pub", "-a", "env"], "env=prod"),
        (&["-k", "key.pub", "-a", "env=a", "-a", "env=b"], "the same key is given twice"),
        (&["-k", "key.pub", "--verification-config-path", "a"], "cannot be used with"),
        (&["--trusted-root", "a"], "--verification-config-path"),
        (&["-a", "env=prod", "--digest", &Digest::of(MODULE).to_string()], "--verification-key"),
    ] {
        let (code, output) = proviso(&stage, "verify", arguments)?;
        ensure!(code == 2 && output.contains(wanted), "{arguments:?}: {code} {output}");
    }
    std::fs::write(stage.path("a.wasm"), MODULE)?;
    for module in ["a.wasm", "file://./a.wasm", "https://127.0.0.1:1/a.wasm"] {
        let verify = Command::new(env!("CARGO_BIN_EXE_proviso"))
            .args(["verify", module, "-k", "key.pub"])
            .current_dir(stage.folder.path())
            .output()?;
        let output = String::from_utf8(verify.stderr)?;
        ensure!(
            verify.status.code() == Some(2) && output.contains("only modules in an OCI registry"),
            "{module}: {output}"
        );
    }
    Ok(())
}
