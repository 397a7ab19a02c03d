//! Replicas in a cluster when what they depend on fails: the registry at their start, the API server and the network to
//! it, the disk of the cache, the clock (FAULTS 18, 20, 23, 25).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use proviso_e2e::{Fault, Registry, until};
use serde_json::{Value, json};

use crate::support::modules::{self, denying, until_answered};
use crate::support::stage::{LEASE, Stage, ask, revision};
use crate::support::{self, Folder, PATIENCE, Server, forbid};

/// How long a fault lasts, where nothing else tells its end: longer than a lease, and than many a first backoff.
const FAULT: Duration = Duration::from_secs(20);

/// What a replica has warned of so far.
fn warnings(server: &Server) -> Vec<Value> {
    let lines = server.stderr.all().into_iter().filter_map(|line| line.parse::<Value>().ok());
    lines.filter(|line| line["level"] != "INFO").collect()
}

/// Asks for as long as the fault lasts; every answer has to be this.
async fn answers_meanwhile(server: &Server, path: &str, message: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < FAULT {
        let answer = ask(server, path).await;
        ensure!(answer.status == StatusCode::OK && answer.message() == message, "{}", answer.text);
        ensure!(server.get("/readyz").await.status == StatusCode::OK, "{}", server.details().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test]
async fn booted_without_a_cache_and_a_registry_a_replica_serves_what_it_has() -> Result<()> {
    let mut stage = modules::Stage::start("boot-without-a-registry").await?;
    stage.registry.push("wasm", "v1", Registry::MODULE, &denying("module")).await?;
    stage.create("wasm", &json!({"module": stage.module("wasm:v1")})).await?;
    stage.cluster.create(&revision("rego", 1, &forbid("true", "source"))).await?;
    let first = stage.replica("pod-0", &stage.path("cache")).await?;
    for (name, message) in [("wasm", "module"), ("rego", "source")] {
        until_answered(&first, name, message).await?;
        stage.cluster.until_initialized(&format!("cluster.{name}-1")).await?;
        stage.cluster.set_condition(&format!("cluster.{name}-1"), "Live", "True").await?;
    }
    stage.cluster.until_reported("cluster.wasm-1", "pod-0", "True", "Loaded").await?;
    stage.registry.process().kill();
    let registry = stage.registry.address();
    let denies = async |server: &Server| {
        let answer = ask(server, "/validate/cluster.wasm/1").await;
        let message = answer.message();
        ensure!(!answer.is_allowed() && answer.response()["status"]["code"] == 500, "{}", answer.text);
        ensure!(message.contains("generation 1 of cluster.wasm does not work here: PullError"), "{message}");
        ensure!(message.contains(&registry), "{message}");
        ensure!(ask(server, "/validate/cluster.rego/1").await.message() == "source");
        Ok(())
    };

    // Another one serves what it lacks: it gets no requests, and answers those that come all the same.
    let second = Server::run(stage.command("pod-1", &stage.path("cache-1")), Folder::new()).await;
    until("not ready", PATIENCE, async || {
        let ready = second.get("/readyz").await;
        ensure!(ready.status == StatusCode::SERVICE_UNAVAILABLE, "{}", ready.text);
        ensure!(ready.text.contains("cluster.wasm-1 is live, and not served here: PullError"), "{}", ready.text);
        Ok(())
    })
    .await?;
    denies(&second).await?;
    stage.cluster.until_reported("cluster.wasm-1", "pod-1", "False", "PullError").await?;
    stage.registry.process().restart()?;
    second.until_ready().await?;
    until_answered(&second, "wasm", "module").await?;
    stage.cluster.until_reported("cluster.wasm-1", "pod-1", "True", "Loaded").await?;

    // Nobody serves it: to leave would take the other policies away, too.
    drop((first, second));
    stage.registry.process().kill();
    let nobody = Patch::Merge(json!({"status": {"replicas": []}}));
    stage.cluster.revisions.patch_status("cluster.wasm-1", &PatchParams::default(), &nobody).await?;
    let third = stage.replica("pod-2", &stage.path("cache-2")).await?;
    denies(&third).await?;
    stage.registry.process().restart()?;
    until_answered(&third, "wasm", "module").await?;
    third.until_ready().await
}

#[tokio::test]
async fn a_registry_that_says_nothing_holds_up_no_policy_that_needs_none() -> Result<()> {
    let mut stage = modules::Stage::start("boot-with-a-silent-registry").await?;
    stage.registry.process().freeze()?;
    // More than are prepared at the same time.
    for number in 0..40 {
        let name = format!("wasm-{number}");
        stage.create(&name, &json!({"module": stage.module("wasm:v1")})).await?;
        stage.cluster.set_condition(&format!("cluster.{name}-1"), "Initialized", "True").await?;
    }
    stage.cluster.create(&revision("z", 1, &forbid("true", "source"))).await?;
    stage.cluster.set_condition("cluster.z-1", "Initialized", "True").await?;
    let server = Server::run(stage.command("pod-0", &stage.path("cache")), Folder::new()).await;
    until_answered(&server, "z", "source").await?;
    // Until it has given up on the registry, that takes a minute, others have to answer about modules.
    let details = server.details().await;
    ensure!(details.contains("[ ] cluster.wasm-0-1 is being loaded"), "{details}");
    ensure!(server.get("/readyz").await.status == StatusCode::SERVICE_UNAVAILABLE);
    ensure!(ask(&server, "/validate/cluster.wasm-0/1").await.status == StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}

#[tokio::test]
async fn a_slow_api_server_delays_what_is_new_and_takes_no_lease_away() -> Result<()> {
    let stage = Stage::start("a-slow-api-server").await?;
    let link = stage.link("slow").await?;
    link.proxy.set(Fault::Delay(Duration::from_millis(300)));
    stage.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut command = stage.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let slow = Stage::run(command).await?;
    until_answered(&slow, "a", "one").await?;
    let _fast = stage.replica_of("pod-1", "uid-1").await?;
    let lease = async || stage.leases.get(LEASE).await?.spec.context("no spec");
    let mut renewed = lease().await?.renew_time;
    for _ in 0..3 {
        renewed = until("a lease renewed", PATIENCE, async || {
            let spec = lease().await?;
            ensure!(spec.renew_time != renewed, "not renewed");
            ensure!(spec.holder_identity.as_deref() == Some("pod-0_uid-0"), "{spec:?}");
            Ok(spec.renew_time)
        })
        .await?;
        ensure!(ask(&slow, "/validate/cluster.a/1").await.message() == "one");
    }
    ensure!(lease().await?.lease_transitions.is_none_or(|times| times <= 1), "{:?}", lease().await?);
    stage.create(&revision("b", 1, &forbid("true", "new"))).await?;
    until_answered(&slow, "b", "new").await?;
    stage.until_reported("cluster.b-1", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_watch_that_is_half_open_is_noticed_and_nothing_is_lost() -> Result<()> {
    let stage = Stage::start("a-half-open-watch").await?;
    let link = stage.link("replica").await?;
    // Reported at the same time: their connections are kept, for requests to come.
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        stage.create(&revision(name, 1, &forbid("true", "one"))).await?;
    }
    let mut command = stage.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let server = Stage::run(command).await?;
    for name in names {
        stage.until_reported(&format!("cluster.{name}-1"), "uid-0", "True", "Loaded").await?;
    }
    // Its connections lead nowhere, and nobody tells it.
    link.proxy.abandon();
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until("the new generation", PATIENCE, async || {
        ensure!(ask(&server, "/validate/cluster.a/1").await.message() == "one");
        let answer = ask(&server, "/validate/cluster.a/2").await;
        ensure!(answer.status == StatusCode::OK && answer.message() == "two", "{}", answer.text);
        Ok(())
    })
    .await?;
    stage.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_network_that_hangs_makes_nobody_run_hot() -> Result<()> {
    outlasts("a-network-that-hangs", Fault::Hang).await
}

#[tokio::test]
async fn a_network_that_refuses_makes_nobody_run_hot() -> Result<()> {
    outlasts("a-network-that-refuses", Fault::Cut).await
}

/// A replica serves while the network to the API server does this, does not run hot, and catches up afterwards.
async fn outlasts(test: &str, fault: Fault) -> Result<()> {
    let stage = Stage::start(test).await?;
    let link = stage.link("replica").await?;
    stage.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut command = stage.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let server = Stage::run(command).await?;
    stage.until_reported("cluster.a-1", "uid-0", "True", "Loaded").await?;

    let (warned, connections) = (warnings(&server).len(), link.proxy.connections());
    link.proxy.set(fault);
    stage.create(&revision("a", 2, &forbid("true", "two"))).await?;
    answers_meanwhile(&server, "/validate/cluster.a/1", "one").await?;
    let connections = link.proxy.connections() - connections;
    let warnings = warnings(&server).split_off(warned);
    ensure!(!warnings.is_empty(), "nobody noticed");
    ensure!(warnings.len() <= 20, "{} warnings in {FAULT:?}: {warnings:#?}", warnings.len());
    ensure!(connections <= 40, "{connections} connections in {FAULT:?}");

    link.proxy.set(Fault::None);
    support::stage::until_answered(&server, "/validate/cluster.a/2", "two").await?;
    stage.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn while_etcd_is_frozen_what_is_loaded_keeps_serving_and_nothing_is_lost() -> Result<()> {
    let mut stage = Stage::alone("etcd-frozen").await?;
    stage.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let server = stage.replica("uid-0").await?;
    stage.until_reported("cluster.a-1", "uid-0", "True", "Loaded").await?;
    let warned = warnings(&server).len();
    stage.plane.own().etcd().freeze()?;
    answers_meanwhile(&server, "/validate/cluster.a/1", "one").await?;
    let warnings = warnings(&server).split_off(warned);
    ensure!(warnings.len() <= 20, "{} warnings in {FAULT:?}: {warnings:#?}", warnings.len());
    ensure!(server.event("the lease cannot be read or written; trying again").is_some(), "nobody noticed");
    stage.plane.own().etcd().thaw()?;
    until("a store that takes something", PATIENCE, async || {
        // An answer that came too late may have been a yes.
        match stage.revisions.get_opt("cluster.a-2").await? {
            Some(_) => Ok(()),
            None => stage.create(&revision("a", 2, &forbid("true", "two"))).await,
        }
    })
    .await?;
    support::stage::until_answered(&server, "/validate/cluster.a/2", "two").await?;
    stage.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

/// The command of a replica in a mount namespace of its own, where its cache is a small disk. For root.
fn on_a_small_disk(command: &Command, cache: &Path, options: &str) -> Command {
    let mount = format!("mount -t tmpfs -o {options} none '{}' && exec \"$0\" \"$@\"", cache.display());
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "--propagation", "private", "sh", "-c", &mount]);
    through(wrapped, command)
}

/// The command of a replica that writes no file larger than these blocks of 512 bytes: for its cache, a full disk.
fn within_a_limit(command: &Command, blocks: u32) -> Command {
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", &format!("trap '' XFSZ && ulimit -f {blocks} && exec \"$0\" \"$@\"")]);
    through(wrapped, command)
}

/// The same command through one that ends in running its arguments.
fn through(mut wrapper: Command, command: &Command) -> Command {
    wrapper.arg(command.get_program()).args(command.get_args());
    wrapper.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapper
}

/// Changes what is mounted at the cache of this replica.
fn remount(server: &Server, cache: &Path, options: &str) -> Result<()> {
    let mut remount = Command::new("nsenter");
    remount.args(["--mount", "--target", &server.pid().to_string(), "mount", "-o", options]).arg(cache);
    ensure!(remount.status()?.success(), "{remount:?}");
    Ok(())
}

#[tokio::test]
async fn a_cache_that_is_full_or_read_only_keeps_no_policy_from_being_served() -> Result<()> {
    let stage = modules::Stage::start("a-cache-that-is-full").await?;
    let is_root = rustix::process::geteuid().is_root();
    // Root in a container may not.
    let mounts = is_root && Command::new("unshare").args(["--mount", "true"]).status()?.success();
    let cache = stage.path("cache");
    std::fs::create_dir(&cache)?;
    let command = stage.command("pod-0", &cache);
    // Enough for a module, and not for what is made of it.
    let command = if mounts { on_a_small_disk(&command, &cache, "size=8k") } else { within_a_limit(&command, 8) };
    let server = Stage::run(command).await?;
    let until_served = async |name: &str| {
        stage.registry.push(name, "v1", Registry::MODULE, &denying(name)).await?;
        stage.create(name, &json!({"module": stage.module(&format!("{name}:v1"))})).await?;
        until_answered(&server, name, name).await?;
        stage.cluster.until_initialized(&format!("cluster.{name}-1")).await
    };
    let not_kept = || {
        let warnings = warnings(&server).into_iter();
        warnings.filter(|line| line["message"] == "compiled module not kept").collect::<Vec<_>>()
    };
    until_served("full").await?;
    let said = not_kept();
    ensure!(said.len() == 1 && said[0]["reason"] == "CacheError", "{said:#?}");
    let why = if mounts { "No space left on device" } else { "File too large" };
    ensure!(said[0]["error"].as_str().is_some_and(|error| error.contains(why)), "{said:#?}");
    // What could not be written whole leaves nothing behind.
    let seen = PathBuf::from(format!("/proc/{}/root{}", server.pid(), cache.display()));
    let files = |part: &str| walk(&seen.join(part));
    ensure!(files("compiled").is_empty() && files("modules").len() == 1, "{:?}", walk(&seen));

    let parts = [cache.join("modules"), cache.join("compiled")];
    let why = if mounts {
        remount(&server, &cache, "remount,ro,size=1m")?;
        "Read-only file system"
    } else {
        parts.iter().try_for_each(|part| set_mode(part, 0o500))?;
        // Modes are nothing to root, but there is still the limit.
        if is_root { "File too large" } else { "Permission denied" }
    };
    until_served("read-only").await?;
    let said = not_kept();
    ensure!(said.len() == 2 && said[1]["reason"] == "CacheError", "{said:#?}");
    ensure!(said[1]["error"].as_str().is_some_and(|error| error.contains(why)), "{said:#?}");

    if mounts {
        // With room again it is used again.
        remount(&server, &cache, "remount,rw,size=1m")?;
        until_served("room").await?;
        until("the code and its signature", PATIENCE, async || {
            ensure!(files("compiled").len() == 2, "{:?}", walk(&seen));
            Ok(())
        })
        .await?;
        ensure!(not_kept().len() == 2, "{:#?}", not_kept());
    } else {
        parts.iter().try_for_each(|part| set_mode(part, 0o700))?;
    }
    ensure!(ask(&server, "/validate/cluster.full/1").await.message() == "full");
    server.until_ready().await
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

/// The files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// The variables that make a program see another time; none where `faketime` is not installed.
fn clock(offset: &str) -> Option<[(&'static str, String); 3]> {
    let told = Command::new("faketime").args(["-f", offset, "printenv", "LD_PRELOAD"]).output().ok()?;
    let library = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    // Deadlines are measured by another clock, which nobody sets.
    Some([("LD_PRELOAD", library), ("FAKETIME", offset.to_owned()), ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned())])
}

#[tokio::test]
async fn replicas_whose_clocks_are_a_minute_apart_agree_on_a_leader() -> Result<()> {
    for (test, offset) in [("a-clock-that-is-slow", "-60s"), ("a-clock-that-is-fast", "+60s")] {
        let Some(clock) = clock(offset) else {
            ensure!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "faketime is not installed: make tools");
            eprintln!("skipped, because faketime is not installed: make tools");
            return Ok(());
        };
        let stage = Stage::start(test).await?;
        let right = stage.replica_of("pod-0", "uid-0").await?;
        ensure!(stage.leader().await? == "pod-0");
        let mut command = stage.command("pod-1", "uid-1");
        command.envs(clock);
        let wrong = Stage::run(command).await?;
        let logged: Timestamp =
            wrong.event("policy server started").context("no start")?["timestamp"].as_str().unwrap().parse()?;
        let ahead = logged.duration_since(Timestamp::now()).as_secs();
        let minutes = if offset.starts_with('+') { 30..=60 } else { -90..=-60 };
        ensure!(minutes.contains(&ahead), "its clock is not {offset}, but {ahead} s ahead");
        let lease = async || stage.leases.get(LEASE).await?.spec.context("no spec");
        // Whoever is ahead finds that the lease of the other has ended: once, and then it stays.
        let mut renewed = None;
        for generation in 1..=4 {
            renewed = until("a lease renewed", PATIENCE, async || {
                let spec = lease().await?;
                ensure!(spec.renew_time != renewed, "not renewed");
                Ok(spec.renew_time)
            })
            .await?;
            stage.create(&revision("a", generation, &forbid("true", "new"))).await?;
            let (name, path) = (format!("cluster.a-{generation}"), format!("/validate/cluster.a/{generation}"));
            stage.until_initialized(&name).await?;
            for (server, uid) in [(&right, "uid-0"), (&wrong, "uid-1")] {
                support::stage::until_answered(server, &path, "new").await?;
                stage.until_reported(&name, uid, "True", "Loaded").await?;
            }
        }
        let leader = if offset.starts_with('+') { "pod-1" } else { "pod-0" };
        ensure!(stage.leader().await? == leader, "{offset}: {:?}", lease().await?);
        ensure!(lease().await?.lease_transitions.is_none_or(|times| times <= 2), "{offset}: {:?}", lease().await?);
    }
    Ok(())
}
