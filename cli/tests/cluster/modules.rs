//! Tests of `proviso push`, `pull`, `verify` and `inspect` with a real OCI registry.

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Access, Registry};
use serde_json::Value;

use crate::support::{examples, proviso, proviso_in, write};

#[tokio::test]
async fn a_module_is_pushed_verified_and_pulled() -> Result<()> {
    let registry = Registry::start("cli-modules", Access { password: true, ..Access::default() }).await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let module = examples().join("policies/trusted-registries/trusted-registries.wasm");
    let module = module.to_str().unwrap();
    let sources = write(path, "sources.yaml", &format!("insecureSources: ['{}']", registry.address()))?;
    let secret = path.join("secrets/registry");
    std::fs::create_dir_all(&secret)?;
    let (user, password) = (Registry::USER, Registry::PASSWORD);
    let auths = serde_json::json!({"auths": {registry.address(): {"username": user, "password": password}}});
    std::fs::write(secret.join(".dockerconfigjson"), auths.to_string())?;
    let with = |arguments: &[&str]| {
        let options = ["--sources", &sources, "--pull-secrets", "secrets"];
        proviso_in(path, &[arguments, &options].concat(), "")
    };

    let digest = proviso(&["digest", module])?.out.trim().to_owned();
    ensure!(digest.starts_with("sha256:"), "{digest}");
    let reference = format!("registry://{}/team/registries:v1", registry.address());
    let output = with(&["push", module, &reference])?;
    ensure!(output.code == Some(0) && output.out.contains(&format!("module: {digest}\n")), "{output:?}");
    ensure!(with(&["push", module, &reference])?.code == Some(0), "a module that the registry has already is no error");
    let manifest = output.out.lines().find_map(|line| line.strip_prefix("manifest: ")).context("a manifest")?;
    let by_manifest = format!("registry://{}/team/registries@{manifest}", registry.address());
    for reference in [&reference, &by_manifest] {
        let output = with(&["verify", reference, "--digest", &digest])?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    let output = with(&["verify", &reference, "--digest", &format!("sha256:{}", "0".repeat(64))])?;
    ensure!(output.code == Some(1) && output.err.contains(&format!("has the digest {digest}, not")), "{output:?}");

    let output = with(&["pull", &reference])?;
    ensure!(output.code == Some(0) && output.out == format!("registries.wasm: {digest}\n"), "{output:?}");
    ensure!(std::fs::read(path.join("registries.wasm"))? == std::fs::read(module)?);
    ensure!(with(&["pull", &reference])?.err.contains("registries.wasm"), "an existing file is not replaced");
    let output = with(&["inspect", &reference, "-o", "json"])?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(report["digest"] == digest.as_str() && report["mode"] == "kubewarden-wapc", "{report:#}");
    ensure!(report["exports"].as_array().unwrap().contains(&"__guest_call".into()), "{report:#}");

    let anonymous = proviso_in(path, &["push", module, &reference, "--sources", &sources], "")?;
    ensure!(anonymous.code == Some(2) && anonymous.err.contains("401"), "{anonymous:?}");
    let text = write(path, "text.wasm", "no module")?;
    let output = with(&["push", &text, &reference])?;
    ensure!(output.code == Some(2) && output.err.contains("not a WebAssembly module"), "{output:?}");
    Ok(())
}
