//! Replicas in a cluster and their modules: fetched from a registry, kept in a cache that all share, and served even
//! when that cache does not work.

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Registry, until};
use serde_json::json;

use crate::support::PATIENCE;
use crate::support::modules::{Stage, denying, key, until_answered};

#[tokio::test]
async fn replicas_share_what_one_of_them_compiled_whatever_key_signs_it() -> Result<()> {
    let stage = Stage::start("replicas-share-a-cache").await?;
    stage.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    stage.create("a", &json!({"module": stage.module("a:v1")})).await?;
    let [old, new] = [key(), key()];
    stage.rotate(&[&old])?;
    let cache = stage.path("cache");
    let first = stage.replica("default-0", &cache).await?;
    until_answered(&first, "a", "one").await?;
    let compiled = stage.compiled();
    ensure!(compiled.len() == 2, "the code and its signature: {compiled:?}");

    stage.rotate(&[&new, &old])?;
    let second = stage.replica("default-1", &cache).await?;
    until_answered(&second, "a", "one").await?;
    ensure!(stage.compiled() == compiled, "it was compiled once");

    // Who has lost the key that signed it compiles for itself, and what it signs replaces what nobody trusts.
    stage.rotate(&[&new])?;
    let third = stage.replica("default-2", &cache).await?;
    until_answered(&third, "a", "one").await?;
    ensure!(third.event("cached module refused").context("it was taken")?["reason"] == "CacheError");
    ensure!(stage.compiled() != compiled);

    // Keys that are no keys change nothing for who runs.
    stage.rotate(&["no key"])?;
    stage.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    stage.create("b", &json!({"module": stage.module("b:v1")})).await?;
    for server in [&first, &third] {
        until_answered(server, "b", "two").await?;
    }
    until("the warning", PATIENCE, async || {
        third.event("new signing keys refused, the old ones stay").map(drop).context("nothing in the log")
    })
    .await
}

#[tokio::test]
async fn a_cache_that_does_not_work_keeps_no_policy_from_being_served() -> Result<()> {
    let stage = Stage::start("a-broken-cache").await?;
    stage.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    stage.create("a", &json!({"module": stage.module("a:v1")})).await?;
    // Where the folder should be there is a file: nothing can be read or written.
    let cache = stage.path("cache");
    std::fs::write(&cache, "no folder")?;
    let server = stage.replica("default-0", &cache).await?;
    until_answered(&server, "a", "one").await?;
    ensure!(server.event("compiled module not kept").context("it was kept")?["reason"] == "CacheError");

    // It is used as soon as it works.
    std::fs::remove_file(&cache)?;
    stage.registry.push("b", "v1", Registry::MODULE, &denying("two")).await?;
    stage.create("b", &json!({"module": stage.module("b:v1")})).await?;
    until_answered(&server, "b", "two").await?;
    until("the module in the cache", PATIENCE, async || {
        let compiled = stage.compiled();
        ensure!(compiled.len() == 2, "{compiled:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_module_that_cannot_be_had_says_why_and_is_tried_again() -> Result<()> {
    let stage = Stage::start("modules-that-cannot-be-had").await?;
    stage.registry.push("text", "v1", "text/plain", b"no module").await?;
    stage.registry.push("other", "v1", Registry::MODULE, &denying("other")).await?;
    let server = stage.replica("default-0", &stage.path("cache")).await?;
    let digest = format!("sha256:{}", "0".repeat(64));
    for (name, wasm, reason, message) in [
        ("later", json!({"module": stage.module("later:v1")}), "PullError", "there is no"),
        ("text", json!({"module": stage.module("text:v1")}), "PullError", "text/plain"),
        (
            "other",
            json!({"module": stage.module("other:v1"), "digest": digest}),
            "VerificationError",
            "which the policy",
        ),
        (
            "secret",
            json!({"module": stage.module("other:v1"), "imagePullSecrets": [{"name": "pull"}]}),
            "PullError",
            "spec.program.wasm.imagePullSecrets: names the Secret \"pull\", which this policy server does not have",
        ),
        ("metadata", json!({"module": "https://169.254.169.254/a.wasm"}), "PullError", "link-local"),
    ] {
        stage.create(name, &wasm).await?;
        until(&format!("{name} reported"), PATIENCE, async || {
            let status = stage.cluster.revisions.get(&format!("cluster.{name}-1")).await?.data["status"].clone();
            let item = &status["replicas"][0];
            ensure!(item["ready"] == "False" && item["reason"] == reason, "{name}: {status:#}");
            ensure!(item["message"].as_str().unwrap().contains(message), "{name}: {status:#}");
            Ok(())
        })
        .await?;
    }
    stage.registry.push("later", "v1", Registry::MODULE, &denying("later")).await?;
    until_answered(&server, "later", "later").await
}

#[tokio::test]
async fn a_tag_that_moves_changes_nothing_for_who_was_admitted_before() -> Result<()> {
    let stage = Stage::start("a-tag-that-moves").await?;
    stage.registry.push("a", "v1", Registry::MODULE, &denying("one")).await?;
    let pinned = proviso_artifacts::Digest::of(&denying("one")).to_string();
    stage.create("a", &json!({"module": stage.module("a:v1")})).await?;
    let cache = stage.path("cache");
    let first = stage.replica("default-0", &cache).await?;
    until_answered(&first, "a", "one").await?;
    let status = stage.cluster.until_reported("cluster.a-1", "default-0", "True", "Loaded").await?;
    ensure!(status["modules"] == json!([{"module": stage.module("a:v1"), "digest": pinned}]), "{status:#}");

    stage.registry.push("a", "v1", Registry::MODULE, &denying("another")).await?;
    let second = stage.replica("default-1", &cache).await?;
    until_answered(&second, "a", "one").await?;
    // Without the cache too: the registry still has it under its digest.
    let third = stage.replica("default-2", &stage.path("another-cache")).await?;
    until_answered(&third, "a", "one").await?;
    let status = stage.cluster.until_reported("cluster.a-1", "default-2", "True", "Loaded").await?;
    ensure!(status["modules"][0]["digest"] == pinned, "{status:#}");
    Ok(())
}
