//! Tests of replicas and their modules: modules are fetched from a registry, stored in a cache that all replicas share, and
//! served even if the cache does not work.

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::{Cache, Digest, SigningKeys};
use proviso_e2e::{Registry, until};
use serde_json::json;

use crate::support::cluster::{condition, until_unloaded};
use crate::support::modules::{RegistryEnv, denying, key, until_answered};
use crate::support::{WAIT_TIMEOUT, wapc};

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

    // A replica without the key of the signature compiles the module for itself, and the leader replaces the files in the cache.
    env.rotate(&[&new])?;
    let third = env.replica("default-2", &cache).await?;
    until_answered(&third, "a", "one").await?;
    ensure!(third.event("cached module refused").context("the module was accepted")?["reason"] == "CacheError");
    until("a signature of the new key", WAIT_TIMEOUT, async || {
        let stored = env.compiled();
        ensure!(stored.len() == 2 && stored != compiled, "{stored:?}");
        Ok(())
    })
    .await?;

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
    until("the refused cache", WAIT_TIMEOUT, async || {
        let event = server.event("cannot cache the compiled module").context("no warning")?;
        ensure!(event["reason"] == "CacheError", "{event}");
        Ok(())
    })
    .await?;

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
async fn stalled_pulls_do_not_delay_a_cached_module() -> Result<()> {
    let mut env = RegistryEnv::start("a-registry-that-stalls").await?;
    env.registry.push("cached", "v1", Registry::MODULE, &denying("cached")).await?;
    env.create("cached", &json!({"module": env.module("cached:v1")})).await?;
    let server = env.replica("default-0", &env.path("cache")).await?;
    until_answered(&server, "cached", "cached").await?;
    env.cluster.until_reported("cluster.cached-1", "default-0", "True", "Loaded").await?;
    env.cluster.enable("cluster.cached-1", false).await?;
    until_unloaded(&server, "/validate/cluster.cached/1").await?;

    env.registry.process().freeze()?;
    // More than twice the number of concurrent pulls: each of them takes a minute, the time that the test waits.
    for number in 0..40 {
        env.create(&format!("slow{number}"), &json!({"module": env.module("slow:v1")})).await?;
    }
    for number in 0..40 {
        server.until_details(&format!("[ ] cluster.slow{number}-1 is being loaded")).await;
    }
    env.cluster.enable("cluster.cached-1", true).await?;
    until_answered(&server, "cached", "cached").await?;
    let details = server.details().await;
    ensure!(details.contains("[ ] cluster.slow39-1 is being loaded"), "the pulls have ended: {details}");
    Ok(())
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
    let pinned = Digest::of(&denying("one")).to_string();
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

#[tokio::test]
async fn damaged_files_in_the_cache_are_refused_and_replaced() -> Result<()> {
    let env = RegistryEnv::start("a-damaged-cache").await?;
    let (module, folder) = (denying("one"), env.path("cache"));
    env.registry.push("a", "v1", Registry::MODULE, &module).await?;
    env.create("a", &json!({"module": env.module("a:v1")})).await?;
    let running = env.replica("default-0", &folder).await?;
    until_answered(&running, "a", "one").await?;
    let digest = Digest::of(&module);
    let cache = Cache::open_shared(&folder, SigningKeys::mounted(&env.path("signing.key")).unwrap());
    let mut files = env.compiled().into_iter().map(|(path, _)| path);
    let code = files.find(|path| path.extension().is_some_and(|it| it == "cwasm")).context("no code")?;
    let engine = code.file_stem().unwrap().to_str().unwrap();
    let good = std::fs::read(&code)?;
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    };
    let damages = ["flipped", "truncated", "of another engine", "without a valid module"];
    for (number, damage) in damages.into_iter().enumerate() {
        match damage {
            "flipped" => std::fs::write(&code, flipped(&good))?,
            "truncated" => std::fs::write(&code, &good[..good.len() / 2])?,
            "of another engine" => {
                // The signature is valid for the other engine.
                cache.put_compiled(&digest, "another-engine", &good)?;
                for extension in ["cwasm", "sig"] {
                    let other = code.with_file_name(format!("another-engine.{extension}"));
                    std::fs::rename(other, code.with_extension(extension))?;
                }
            }
            _ => {
                std::fs::write(&code, flipped(&good))?;
                let module_file = folder.join("modules").join(format!("{}.wasm", digest.hex()));
                std::fs::write(module_file, flipped(&module))?;
            }
        }
        ensure!(cache.compiled(&digest, engine).is_err(), "{damage}: the code has a valid signature");

        let before = running.events("cached module refused").len();
        // The first replica that reads the code is by turns the running one, with a new policy of the same module, and one that
        // starts.
        let add_policy = async || {
            let name = format!("b{number}");
            env.create(&name, &json!({"module": env.module("a:v1")})).await?;
            until_answered(&running, &name, "one").await
        };
        if number % 2 == 0 {
            add_policy().await?;
        }
        let started = env.replica(&format!("default-{}", number + 1), &folder).await?;
        until_answered(&started, "a", "one").await?;
        if number % 2 == 1 {
            add_policy().await?;
        }
        until_answered(&running, "a", "one").await?;
        until("valid files", WAIT_TIMEOUT, async || {
            cache.compiled(&digest, engine)?.context("no code")?;
            cache.module(&digest)?.context("no module")?;
            Ok(())
        })
        .await?;
        let mut refused = running.events("cached module refused").split_off(before);
        refused.extend(started.events("cached module refused"));
        ensure!(!refused.is_empty(), "{damage}: no replica has refused it");
        ensure!(refused.iter().all(|event| event["reason"] == "CacheError"), "{damage}: {refused:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_module_that_exhausts_its_compiler_does_not_end_the_leader() -> Result<()> {
    let env = RegistryEnv::start("a-module-that-exhausts-its-compiler").await?;
    env.registry.push("bomb", "v1", Registry::MODULE, &wapc::bomb()).await?;
    env.registry.push("good", "v1", Registry::MODULE, &denying("good")).await?;
    let cache = env.path("cache");
    let leader = env.replica("default-0", &cache).await?;
    ensure!(env.cluster.leader().await? == "default-0");
    let other = env.replica("default-1", &cache).await?;
    let before = leader.resident();
    env.create("bomb", &json!({"module": env.module("bomb:v1")})).await?;
    env.create("good", &json!({"module": env.module("good:v1")})).await?;
    until("the reason", WAIT_TIMEOUT, async || {
        let status = env.cluster.revisions.get("cluster.bomb-1").await?.data["status"].clone();
        let initialized = condition(&status, "Initialized")?;
        ensure!(initialized["status"] == "False" && initialized["reason"] == "CompileError", "{initialized}");
        let message = initialized["message"].as_str().context("no message")?;
        ensure!(message.contains("compiling it takes more than 256 MiB of memory"), "{message}");
        Ok(())
    })
    .await?;
    let grown = leader.peak().saturating_sub(before) >> 20;
    ensure!(grown < 80, "the leader itself took {grown} MiB for it");
    for server in [&leader, &other] {
        until_answered(server, "good", "good").await?;
        server.until_ready().await?;
    }
    ensure!(env.cluster.leader().await? == "default-0", "the leader has changed");
    Ok(())
}
