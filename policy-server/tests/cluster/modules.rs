//! Tests of replicas and their modules: modules are fetched from a registry, stored in a cache that all replicas share, and
//! served even if the cache does not work.

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Registry, until};
use serde_json::json;

use crate::support::WAIT_TIMEOUT;
use crate::support::modules::{RegistryEnv, denying, key, until_answered};

#[tokio::test]
async fn replicas_share_compiled_modules_across_a_key_rotation() -> Result<()> {
    let env = RegistryEnv::start("replicas-share-a-cache").await?;
    env.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    env.create("a", &json!({"module": env.module("a:v1")})).await?;
    let [old, new] = [key(), key()];
    env.rotate(&[&old])?;
    let cache = env.path("cache");
    let first = env.replica("default-0", &cache).await?;
    until_answered(&first, "a", "one").await?;
    let compiled = env.compiled();
    ensure!(compiled.len() == 2, "the code and its signature: {compiled:?}");

    env.rotate(&[&new, &old])?;
    let second = env.replica("default-1", &cache).await?;
    until_answered(&second, "a", "one").await?;
    ensure!(env.compiled() == compiled, "the module was compiled again");

    // A replica without the key of the signature compiles the module again, and replaces the files in the cache.
    env.rotate(&[&new])?;
    let third = env.replica("default-2", &cache).await?;
    until_answered(&third, "a", "one").await?;
    ensure!(third.event("cached module refused").context("the module was accepted")?["reason"] == "CacheError");
    ensure!(env.compiled() != compiled);

    // Running replicas ignore an invalid file of keys.
    env.rotate(&["no key"])?;
    env.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    env.create("b", &json!({"module": env.module("b:v1")})).await?;
    for server in [&first, &third] {
        until_answered(server, "b", "two").await?;
    }
    until("the warning", WAIT_TIMEOUT, async || {
        third.event("new signing keys refused, the old ones stay").map(drop).context("nothing in the log")
    })
    .await
}

#[tokio::test]
async fn policies_are_served_without_a_working_cache() -> Result<()> {
    let env = RegistryEnv::start("a-broken-cache").await?;
    env.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    env.create("a", &json!({"module": env.module("a:v1")})).await?;
    // A file in place of the cache folder: the cache can be neither read nor written.
    let cache = env.path("cache");
    std::fs::write(&cache, "no folder")?;
    let server = env.replica("default-0", &cache).await?;
    until_answered(&server, "a", "one").await?;
    let event = server.event("cannot cache the compiled module").context("the module was cached")?;
    ensure!(event["reason"] == "CacheError");

    // The cache is used as soon as it works.
    std::fs::remove_file(&cache)?;
    env.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    env.create("b", &json!({"module": env.module("b:v1")})).await?;
    until_answered(&server, "b", "two").await?;
    until("the module in the cache", WAIT_TIMEOUT, async || {
        let compiled = env.compiled();
        ensure!(compiled.len() == 2, "{compiled:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_module_that_cannot_be_fetched_is_reported_and_tried_again() -> Result<()> {
    let env = RegistryEnv::start("modules-that-cannot-be-had").await?;
    env.registry.push("text", "v1", "text/plain", b"no module").await?;
    env.registry.push("other", "v1", Registry::MODULE, &denying("other")).await?;
    let server = env.replica("default-0", &env.path("cache")).await?;
    let digest = format!("sha256:{}", "0".repeat(64));
    for (name, wasm, reason, message) in [
        ("later", json!({"module": env.module("later:v1")}), "PullError", "there is no"),
        ("text", json!({"module": env.module("text:v1")}), "PullError", "text/plain"),
        ("other", json!({"module": env.module("other:v1"), "digest": digest}), "VerificationError", "which the policy"),
        (
            "secret",
            json!({"module": env.module("other:v1"), "imagePullSecrets": [{"name": "pull"}]}),
            "PullError",
            "spec.program.wasm.imagePullSecrets: names the Secret \"pull\", which this policy server does not have",
        ),
        ("metadata", json!({"module": "https://169.254.169.254/a.wasm"}), "PullError", "link-local"),
    ] {
        env.create(name, &wasm).await?;
        until(&format!("{name} reported"), WAIT_TIMEOUT, async || {
            let status = env.cluster.revisions.get(&format!("cluster.{name}-1")).await?.data["status"].clone();
            let item = &status["replicas"][0];
            ensure!(item["ready"] == "False" && item["reason"] == reason, "{name}: {status:#}");
            ensure!(item["message"].as_str().unwrap().contains(message), "{name}: {status:#}");
            Ok(())
        })
        .await?;
    }
    env.registry.push("later", "v1", Registry::MODULE, &denying("later")).await?;
    until_answered(&server, "later", "later").await
}

#[tokio::test]
async fn a_moved_tag_does_not_change_a_pinned_module() -> Result<()> {
    let env = RegistryEnv::start("a-tag-that-moves").await?;
    env.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    let pinned = proviso_artifacts::Digest::of(&denying("one")).to_string();
    env.create("a", &json!({"module": env.module("a:v1")})).await?;
    let cache = env.path("cache");
    let first = env.replica("default-0", &cache).await?;
    until_answered(&first, "a", "one").await?;
    let status = env.cluster.until_reported("cluster.a-1", "default-0", "True", "Loaded").await?;
    ensure!(status["modules"] == json!([{"module": env.module("a:v1"), "digest": pinned}]), "{status:#}");

    env.registry.push("a", "v1", Registry::MODULE, &denying("another")).await?;
    let second = env.replica("default-1", &cache).await?;
    until_answered(&second, "a", "one").await?;
    // A replica without the cache fetches the module from the registry by its digest.
    let third = env.replica("default-2", &env.path("another-cache")).await?;
    until_answered(&third, "a", "one").await?;
    let status = env.cluster.until_reported("cluster.a-1", "default-2", "True", "Loaded").await?;
    ensure!(status["modules"][0]["digest"] == pinned, "{status:#}");
    Ok(())
}
