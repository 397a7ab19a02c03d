//! Replicas whose dependencies fail: the registry at the start of a replica, the API server and the network to it, the disk of
//! the cache, and the clock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use proviso_e2e::{Fault, Registry, clock, until};
use serde_json::{Value, json};

use crate::support::cluster::{LEASE, TestEnv, ask, revision, until_not_ready};
use crate::support::modules::{self, denying, until_answered};
use crate::support::{self, Folder, Server, WAIT_TIMEOUT, forbid};

/// The duration of a fault: longer than a lease, and longer than several backoffs.
const FAULT_DURATION: Duration = Duration::from_secs(20);

/// Returns the warnings and errors that a replica has logged so far.
pub fn warnings(server: &Server) -> Vec<Value> {
    let lines = server.stderr.all().into_iter().filter_map(|line| line.parse::<Value>().ok());
    lines.filter(|line| line["level"] != "INFO").collect()
}

/// Sends reviews for [`FAULT_DURATION`], and checks that every answer is a denial with this message.
async fn check_answers_during_fault(server: &Server, path: &str, message: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < FAULT_DURATION {
        let answer = ask(server, path).await;
        ensure!(answer.status == StatusCode::OK && answer.message() == message, "{}", answer.text);
        ensure!(server.get("/readyz").await.status == StatusCode::OK, "{}", server.details().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_without_registry_serves_the_policies_that_need_none() -> Result<()> {
    let mut env = modules::RegistryEnv::start("boot-without-a-registry").await?;
    env.registry.push("wasm", "v1", Registry::MODULE, &denying("module")).await?;
    env.create("wasm", &json!({"module": env.module("wasm:v1")})).await?;
    env.cluster.create(&revision("rego", 1, &forbid("true", "source"))).await?;
    let uid = env.cluster.ready_pod("pod-0").await?;
    let first = TestEnv::run(env.command_of("pod-0", &uid, &env.path("cache"))).await?;
    for (name, message) in [("wasm", "module"), ("rego", "source")] {
        until_answered(&first, name, message).await?;
        env.cluster.until_initialized(&format!("cluster.{name}-1")).await?;
        env.cluster.set_condition(&format!("cluster.{name}-1"), "Live", "True").await?;
    }
    env.cluster.until_reported("cluster.wasm-1", &uid, "True", "Loaded").await?;
    env.registry.process().kill();
    let registry = env.registry.address();
    let denies = async |server: &Server| {
        let answer = ask(server, "/validate/cluster.wasm/1").await;
        let message = answer.message();
        ensure!(!answer.is_allowed() && answer.response()["status"]["code"] == 500, "{}", answer.text);
        ensure!(message.contains("generation 1 of cluster.wasm does not work here: PullError"), "{message}");
        ensure!(message.contains(&registry), "{message}");
        ensure!(ask(server, "/validate/cluster.rego/1").await.message() == "source");
        Ok(())
    };

    // Another replica serves the policy that this one cannot load: this replica is not ready, but still answers requests.
    let second = Server::run(env.command("pod-1", &env.path("cache-1")), Folder::new()).await;
    until_not_ready(&second, "cluster.wasm-1 is live, and not served here: PullError").await?;
    denies(&second).await?;
    env.cluster.until_reported("cluster.wasm-1", "pod-1", "False", "PullError").await?;
    env.registry.process().restart()?;
    second.until_ready().await?;
    until_answered(&second, "wasm", "module").await?;
    env.cluster.until_reported("cluster.wasm-1", "pod-1", "True", "Loaded").await?;

    // No replica serves the policy: a new replica becomes ready, because it can serve the other policies.
    drop((first, second));
    env.registry.process().kill();
    let no_replicas = Patch::Merge(json!({"status": {"replicas": []}}));
    env.cluster.revisions.patch_status("cluster.wasm-1", &PatchParams::default(), &no_replicas).await?;
    let third = env.replica("pod-2", &env.path("cache-2")).await?;
    denies(&third).await?;
    env.registry.process().restart()?;
    until_answered(&third, "wasm", "module").await?;
    third.until_ready().await
}

#[tokio::test]
async fn a_silent_registry_does_not_delay_policies_that_need_none() -> Result<()> {
    let mut env = modules::RegistryEnv::start("boot-with-a-silent-registry").await?;
    env.registry.process().freeze()?;
    // More revisions than the server prepares at the same time.
    for number in 0..40 {
        let name = format!("wasm-{number}");
        env.create(&name, &json!({"module": env.module("wasm:v1")})).await?;
        env.cluster.set_condition(&format!("cluster.{name}-1"), "Initialized", "True").await?;
    }
    env.cluster.create(&revision("z", 1, &forbid("true", "source"))).await?;
    env.cluster.set_condition("cluster.z-1", "Initialized", "True").await?;
    let server = Server::run(env.command("pod-0", &env.path("cache")), Folder::new()).await;
    until_answered(&server, "z", "source").await?;
    // The request to the registry times out after a minute. Until then, the replica is not ready, and answers 503 for these
    // revisions.
    let details = server.details().await;
    ensure!(details.contains("[ ] cluster.wasm-0-1 is being loaded"), "{details}");
    ensure!(server.get("/readyz").await.status == StatusCode::SERVICE_UNAVAILABLE);
    ensure!(ask(&server, "/validate/cluster.wasm-0/1").await.status == StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}

#[tokio::test]
async fn the_leader_keeps_its_lease_with_a_slow_api_server() -> Result<()> {
    let env = TestEnv::start("a-slow-api-server").await?;
    let link = env.link("slow").await?;
    link.proxy.set(Fault::Delay(Duration::from_millis(300)));
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut command = env.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let slow = TestEnv::run(command).await?;
    until_answered(&slow, "a", "one").await?;
    let _fast = env.replica_of("pod-1", "uid-1").await?;
    let lease = async || env.leases.get(LEASE).await?.spec.context("no spec");
    let mut renewed = lease().await?.renew_time;
    for _ in 0..3 {
        renewed = until("a lease renewed", WAIT_TIMEOUT, async || {
            let spec = lease().await?;
            ensure!(spec.renew_time != renewed, "not renewed");
            ensure!(spec.holder_identity.as_deref() == Some("pod-0_uid-0"), "{spec:?}");
            Ok(spec.renew_time)
        })
        .await?;
        ensure!(ask(&slow, "/validate/cluster.a/1").await.message() == "one");
    }
    ensure!(lease().await?.lease_transitions.is_none_or(|times| times <= 1), "{:?}", lease().await?);
    env.create(&revision("b", 1, &forbid("true", "new"))).await?;
    until_answered(&slow, "b", "new").await?;
    env.until_reported("cluster.b-1", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_half_open_watch_is_detected_and_started_again() -> Result<()> {
    let env = TestEnv::start("a-half-open-watch").await?;
    let link = env.link("replica").await?;
    // The concurrent reports leave several idle connections, which the client reuses for later requests.
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        env.create(&revision(name, 1, &forbid("true", "one"))).await?;
    }
    let mut command = env.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let server = TestEnv::run(command).await?;
    for name in names {
        env.until_reported(&format!("cluster.{name}-1"), "uid-0", "True", "Loaded").await?;
    }
    // All connections are dropped silently.
    link.proxy.abandon();
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until("the new generation", WAIT_TIMEOUT, async || {
        ensure!(ask(&server, "/validate/cluster.a/1").await.message() == "one");
        let answer = ask(&server, "/validate/cluster.a/2").await;
        ensure!(answer.status == StatusCode::OK && answer.message() == "two", "{}", answer.text);
        Ok(())
    })
    .await?;
    env.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_replica_does_not_retry_in_a_hot_loop_if_the_network_hangs() -> Result<()> {
    check_network_fault("a-network-that-hangs", Fault::Hang).await
}

#[tokio::test]
async fn a_replica_does_not_retry_in_a_hot_loop_if_connections_are_refused() -> Result<()> {
    check_network_fault("a-network-that-refuses", Fault::Cut).await
}

/// Checks that a replica serves during a fault of the network to the API server, that it retries with a backoff, and that it
/// loads new revisions afterwards.
async fn check_network_fault(test: &str, fault: Fault) -> Result<()> {
    let env = TestEnv::start(test).await?;
    let link = env.link("replica").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let mut command = env.command("pod-0", "uid-0");
    command.env("KUBECONFIG", &link.kubeconfig);
    let server = TestEnv::run(command).await?;
    env.until_reported("cluster.a-1", "uid-0", "True", "Loaded").await?;

    let (warned, connections) = (warnings(&server).len(), link.proxy.connections());
    link.proxy.set(fault);
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    check_answers_during_fault(&server, "/validate/cluster.a/1", "one").await?;
    let connections = link.proxy.connections() - connections;
    let warnings = warnings(&server).split_off(warned);
    ensure!(!warnings.is_empty(), "the replica has not logged the fault");
    ensure!(warnings.len() <= 20, "{} warnings in {FAULT_DURATION:?}: {warnings:#?}", warnings.len());
    ensure!(connections <= 40, "{connections} connections in {FAULT_DURATION:?}");

    link.proxy.set(Fault::None);
    support::cluster::until_answered(&server, "/validate/cluster.a/2", "two").await?;
    env.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn loaded_revisions_keep_serving_while_etcd_is_frozen() -> Result<()> {
    let mut env = TestEnv::start_dedicated("etcd-frozen").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let server = env.replica("uid-0").await?;
    env.until_reported("cluster.a-1", "uid-0", "True", "Loaded").await?;
    let warned = warnings(&server).len();
    env.plane.own().etcd().freeze()?;
    check_answers_during_fault(&server, "/validate/cluster.a/1", "one").await?;
    let warnings = warnings(&server).split_off(warned);
    ensure!(warnings.len() <= 20, "{} warnings in {FAULT_DURATION:?}: {warnings:#?}", warnings.len());
    ensure!(server.event("the lease cannot be read or written; trying again").is_some(), "the fault is not in the log");
    env.plane.own().etcd().thaw()?;
    until("a store that accepts writes", WAIT_TIMEOUT, async || {
        // The write may have succeeded although its answer timed out.
        match env.revisions.get_opt("cluster.a-2").await? {
            Some(_) => Ok(()),
            None => env.create(&revision("a", 2, &forbid("true", "two"))).await,
        }
    })
    .await?;
    support::cluster::until_answered(&server, "/validate/cluster.a/2", "two").await?;
    env.until_reported("cluster.a-2", "uid-0", "True", "Loaded").await?;
    Ok(())
}

/// Returns the command of a replica in its own mount namespace, in which the cache is a small disk. Needs root.
fn on_a_small_disk(command: &Command, cache: &Path, options: &str) -> Command {
    let mount = format!("mount -t tmpfs -o {options} none '{}' && exec \"$0\" \"$@\"", cache.display());
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "--propagation", "private", "sh", "-c", &mount]);
    wrap(wrapped, command)
}

/// Returns the command of a replica whose files cannot exceed this number of blocks of 512 bytes. This simulates a full disk.
fn within_a_limit(command: &Command, blocks: u32) -> Command {
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", &format!("trap '' XFSZ && ulimit -f {blocks} && exec \"$0\" \"$@\"")]);
    wrap(wrapped, command)
}

/// Returns the command wrapped in another command that executes its arguments.
pub fn wrap(mut wrapper: Command, command: &Command) -> Command {
    wrapper.arg(command.get_program()).args(command.get_args());
    wrapper.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapper
}

/// Changes the mount options of the cache of this replica.
fn remount(server: &Server, cache: &Path, options: &str) -> Result<()> {
    let mut remount = Command::new("nsenter");
    remount.args(["--mount", "--target", &server.pid().to_string(), "mount", "-o", options]).arg(cache);
    ensure!(remount.status()?.success(), "{remount:?}");
    Ok(())
}

#[tokio::test]
async fn policies_are_served_with_a_full_or_read_only_cache() -> Result<()> {
    let env = modules::RegistryEnv::start("a-cache-that-is-full").await?;
    let is_root = rustix::process::geteuid().is_root();
    // In some containers, root may not mount.
    let mounts = is_root && Command::new("unshare").args(["--mount", "true"]).status()?.success();
    let cache = env.path("cache");
    std::fs::create_dir(&cache)?;
    let command = env.command("pod-0", &cache);
    // The disk has enough space for a module, but not for its compiled code.
    let command = if mounts { on_a_small_disk(&command, &cache, "size=8k") } else { within_a_limit(&command, 8) };
    let server = TestEnv::run(command).await?;
    let until_served = async |name: &str| {
        env.registry.push(name, "v1", Registry::MODULE, &denying(name)).await?;
        env.create(name, &json!({"module": env.module(&format!("{name}:v1"))})).await?;
        until_answered(&server, name, name).await?;
        env.cluster.until_initialized(&format!("cluster.{name}-1")).await
    };
    let not_cached = || {
        let warnings = warnings(&server).into_iter();
        warnings.filter(|line| line["message"] == "cannot cache the compiled module").collect::<Vec<_>>()
    };
    until_served("full").await?;
    let lines = not_cached();
    ensure!(lines.len() == 1 && lines[0]["reason"] == "CacheError", "{lines:#?}");
    let why = if mounts { "No space left on device" } else { "File too large" };
    ensure!(lines[0]["error"].as_str().is_some_and(|error| error.contains(why)), "{lines:#?}");
    // A failed write leaves no file.
    let seen = PathBuf::from(format!("/proc/{}/root{}", server.pid(), cache.display()));
    let files = |part: &str| walk(&seen.join(part));
    ensure!(files("compiled").is_empty() && files("modules").len() == 1, "{:?}", walk(&seen));

    let parts = [cache.join("modules"), cache.join("compiled")];
    let why = if mounts {
        remount(&server, &cache, "remount,ro,size=1m")?;
        "Read-only file system"
    } else {
        parts.iter().try_for_each(|part| set_mode(part, 0o500))?;
        // File modes do not restrict root, but the limit of the file size still applies.
        if is_root { "File too large" } else { "Permission denied" }
    };
    until_served("read-only").await?;
    let lines = not_cached();
    ensure!(lines.len() == 2 && lines[1]["reason"] == "CacheError", "{lines:#?}");
    ensure!(lines[1]["error"].as_str().is_some_and(|error| error.contains(why)), "{lines:#?}");

    if mounts {
        // The cache is used again when it has free space.
        remount(&server, &cache, "remount,rw,size=1m")?;
        until_served("free").await?;
        until("the code and its signature", WAIT_TIMEOUT, async || {
            ensure!(files("compiled").len() == 2, "{:?}", walk(&seen));
            Ok(())
        })
        .await?;
        ensure!(not_cached().len() == 2, "{:#?}", not_cached());
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

/// Returns the files below a folder.
pub fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// Waits until this pod leads.
async fn until_led_by(env: &TestEnv, pod: &str) -> Result<()> {
    until("another leader", WAIT_TIMEOUT, async || {
        let leader = env.leader().await?;
        ensure!(leader == pod, "{leader} leads");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn replicas_with_clocks_five_minutes_apart_agree_on_a_leader() -> Result<()> {
    for (test, offset) in [("a-clock-that-is-slow", "-300s"), ("a-clock-that-is-fast", "+300s")] {
        let Some(clock) = clock::shifted(offset) else {
            ensure!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "faketime is not installed: make tools");
            eprintln!("skipped, because faketime is not installed: make tools");
            return Ok(());
        };
        let env = TestEnv::start(test).await?;
        let mut right = env.replica_of("pod-0", "uid-0").await?;
        ensure!(env.leader().await? == "pod-0");
        let mut command = env.command("pod-1", "uid-1");
        command.envs(clock);
        let mut wrong = TestEnv::run(command).await?;
        let logged: Timestamp =
            wrong.event("policy server started").context("no start")?["timestamp"].as_str().unwrap().parse()?;
        let ahead = logged.duration_since(Timestamp::now()).as_secs();
        let seconds = if offset.starts_with('+') { 270..=300 } else { -330..=-300 };
        ensure!(seconds.contains(&ahead), "its clock is not {offset}, but {ahead} s ahead");
        let lease = async || env.leases.get(LEASE).await?.spec.context("no spec");
        // The replica with the other clock observes the renewals, and does not take over.
        let mut renewed = None;
        for generation in 1..=4 {
            renewed = until("a lease renewed", WAIT_TIMEOUT, async || {
                let spec = lease().await?;
                ensure!(spec.renew_time != renewed, "not renewed");
                Ok(spec.renew_time)
            })
            .await?;
            env.create(&revision("a", generation, &forbid("true", "new"))).await?;
            let (name, path) = (format!("cluster.a-{generation}"), format!("/validate/cluster.a/{generation}"));
            env.until_initialized(&name).await?;
            for (server, uid) in [(&right, "uid-0"), (&wrong, "uid-1")] {
                support::cluster::until_answered(server, &path, "new").await?;
                env.until_reported(&name, uid, "True", "Loaded").await?;
            }
        }
        ensure!(env.leader().await? == "pod-0", "{offset}: {:?}", lease().await?);
        ensure!(lease().await?.lease_transitions.is_none_or(|times| times <= 1), "{offset}: {:?}", lease().await?);

        // The Lease of a killed leader expires after its duration, although one of the clocks is wrong.
        right.kill().await;
        until_led_by(&env, "pod-1").await?;
        let _next = env.replica_of("pod-2", "uid-2").await?;
        let transitions = lease().await?.lease_transitions;
        for generation in 5..=6 {
            env.create(&revision("a", generation, &forbid("true", "new"))).await?;
            let name = format!("cluster.a-{generation}");
            env.until_initialized(&name).await?;
            env.until_reported(&name, "uid-2", "True", "Loaded").await?;
            let before = lease().await?.renew_time;
            until("a lease renewed", WAIT_TIMEOUT, async || {
                ensure!(lease().await?.renew_time != before, "not renewed");
                Ok(())
            })
            .await?;
        }
        ensure!(env.leader().await? == "pod-1", "{offset}: {:?}", lease().await?);
        ensure!(lease().await?.lease_transitions == transitions, "{offset}: {:?}", lease().await?);
        wrong.kill().await;
        until_led_by(&env, "pod-2").await?;
    }
    Ok(())
}
