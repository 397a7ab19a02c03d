//! Modules in a real OCI registry: `push`, `pull`, `verify`, `inspect`.

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Access, Registry};
use serde_json::Value;

use crate::support::{examples, proviso, proviso_in, write};

#[tokio::test]
async fn a_module_goes_to_a_registry_and_comes_back() -> Result<()> {
    let registry = Registry::start("cli-modules", Access { password: true, ..Access::default() }).await?;
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    let module = examples().join("policies/trusted-registries/trusted-registries.wasm");
    let module = module.to_str().unwrap();
    let sources = write(place, "sources.yaml", &format!("insecureSources: ['{}']", registry.address()))?;
    let secret = place.join("secrets/registry");
    std::fs::create_dir_all(&secret)?;
    let (user, password) = (Registry::USER, Registry::PASSWORD);
    let auths = serde_json::json!({"auths": {registry.address(): {"username": user, "password": password}}});
    std::fs::write(secret.join(".dockerconfigjson"), auths.to_string())?;
    let with = |arguments: &[&str]| {
        let known = ["--sources", &sources, "--pull-secrets", "secrets"];
        proviso_in(place, &[arguments, &known].concat(), "")
    };

    let digest = proviso(&["digest", module])?.out.trim().to_owned();
    ensure!(digest.starts_with("sha256:"), "{digest}");
    let reference = format!("registry://{}/team/registries:v1", registry.address());
    let said = with(&["push", module, &reference])?;
    ensure!(said.code == Some(0) && said.out.contains(&format!("module: {digest}\n")), "{said:?}");
    ensure!(with(&["push", module, &reference])?.code == Some(0), "what is there already is no error");
    let manifest = said.out.lines().find_map(|line| line.strip_prefix("manifest: ")).context("a manifest")?;
    let by_manifest = format!("registry://{}/team/registries@{manifest}", registry.address());
    for reference in [&reference, &by_manifest] {
        let said = with(&["verify", reference, "--digest", &digest])?;
        ensure!(said.code == Some(0), "{said:?}");
    }
    let said = with(&["verify", &reference, "--digest", &format!("sha256:{}", "0".repeat(64))])?;
    ensure!(said.code == Some(1) && said.err.contains(&format!("has the digest {digest}, not")), "{said:?}");

    let said = with(&["pull", &reference])?;
    ensure!(said.code == Some(0) && said.out == format!("registries.wasm: {digest}\n"), "{said:?}");
    ensure!(std::fs::read(place.join("registries.wasm"))? == std::fs::read(module)?);
    ensure!(with(&["pull", &reference])?.err.contains("registries.wasm"), "what is there stays");
    let said = with(&["inspect", &reference, "-o", "json"])?;
    let report: Value = serde_json::from_str(&said.out)?;
    ensure!(report["digest"] == digest.as_str() && report["mode"] == "kubewarden-wapc", "{report:#}");
    ensure!(report["exports"].as_array().unwrap().contains(&"__guest_call".into()), "{report:#}");

    let anonymous = proviso_in(place, &["push", module, &reference, "--sources", &sources], "")?;
    ensure!(anonymous.code == Some(2) && anonymous.err.contains("401"), "{anonymous:?}");
    let text = write(place, "text.wasm", "no module")?;
    let said = with(&["push", &text, &reference])?;
    ensure!(said.code == Some(2) && said.err.contains("no WebAssembly module"), "{said:?}");
    Ok(())
}
