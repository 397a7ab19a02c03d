//! The leader killed at each point of its work on a module, with a registry and a cache that all share: nothing torn is
//! ever taken from that cache, and the next leader finishes the work (FAULTS: pull, verify, compile, write, sign, status).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::{Cache, Digest, SigningKeys};
use proviso_e2e::{Fault, Registry, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;

use crate::support::modules::{Stage, denying, until_answered};
use crate::support::stage::{self, Link, condition};
use crate::support::{PATIENCE, Server};

/// Two replicas, each behind a network of its own to the API server.
struct Scene {
    stage: Stage,
    leader: Replica,
    other: Replica,
    /// How many replicas there were.
    started: u32,
}

struct Replica {
    server: Server,
    link: Link,
}

impl Scene {
    async fn start(test: &str) -> Result<Self> {
        let mut stage = Stage::start(test).await?;
        let leader = replica(&mut stage, "pod-0").await?;
        until("a leader", PATIENCE, async || led_by_itself(&leader.server)).await?;
        let other = replica(&mut stage, "pod-1").await?;
        Ok(Self { stage, leader, other, started: 2 })
    }

    /// Pushes a module and makes the revision that asks for it.
    async fn create(&self, name: &str, module: &[u8]) -> Result<Digest> {
        self.stage.registry.push(name, "v1", Registry::MODULE, module).await?;
        self.stage.create(name, &json!({"module": self.stage.module(&format!("{name}:v1"))})).await?;
        Ok(Digest::of(module))
    }

    /// Where the compiled forms of a module are.
    fn compiled(&self, module: &Digest) -> PathBuf {
        self.stage.path("cache/compiled").join(module.hex())
    }

    /// What the cache hands out of a module, and of its compiled form. What is torn is not handed out: it is not there,
    /// or refused.
    fn handed_out(&self, module: &Digest) -> (bool, bool) {
        let keys = SigningKeys::mounted(&self.stage.path("signing.key")).unwrap();
        let cache = Cache::open_shared(&self.stage.path("cache"), keys);
        let has_module = cache.module(module).is_ok_and(|bytes| bytes.is_some());
        let engines = names(&self.compiled(module));
        let has_code = engines.iter().filter_map(|name| name.strip_suffix(".cwasm")).any(|engine| {
            let code = cache.compiled(module, engine);
            code.is_ok_and(|code| code.is_some())
        });
        (has_module, has_code)
    }

    /// The leader is dead: the other one leads, prepares the revision and serves it, and so does a new replica.
    async fn until_resumed(&mut self, name: &str, module: &Digest) -> Result<()> {
        let status = self.stage.cluster.revisions.get(&format!("cluster.{name}-1")).await?.data["status"].clone();
        ensure!(condition(&status, "Initialized").is_err(), "{name} was initialized before: {status:#}");
        self.until_served_by_others(name, module).await
    }

    /// As [`Self::until_resumed`], whatever the leader has said before.
    async fn until_served_by_others(&mut self, name: &str, module: &Digest) -> Result<()> {
        self.stage.cluster.end_lease().await?;
        let other = &self.other.server;
        until_answered(other, name, name).await?;
        until("another leader", PATIENCE, async || led_by_itself(other)).await?;
        self.stage.cluster.until_initialized(&format!("cluster.{name}-1")).await?;
        until("a whole pair in the cache", PATIENCE, async || {
            let handed_out = self.handed_out(module);
            ensure!(handed_out == (true, true), "{handed_out:?}: {:?}", names(&self.compiled(module)));
            Ok(())
        })
        .await?;
        let uid = format!("pod-{}", self.started);
        self.started += 1;
        let new = replica(&mut self.stage, &uid).await?;
        until_answered(&new.server, name, name).await?;
        ensure!(new.server.event("cached module refused").is_none(), "{:#?}", new.server.stderr.all());
        self.leader = std::mem::replace(&mut self.other, new);
        Ok(())
    }
}

async fn replica(stage: &mut Stage, uid: &str) -> Result<Replica> {
    let link = stage.cluster.link(uid).await?;
    let mut command = stage.command(uid, &stage.path("cache"));
    command.env("KUBECONFIG", &link.kubeconfig);
    Ok(Replica { server: stage::Stage::run(command).await?, link })
}

/// Whether this replica knows that it leads.
fn led_by_itself(server: &Server) -> Result<()> {
    let mut lines = server.stderr.all().into_iter().filter_map(|line| line.parse::<serde_json::Value>().ok());
    let last = lines.rfind(|line| line["message"] == "leader elected").context("no leader")?;
    ensure!(last["is_this"] == true, "{last}");
    Ok(())
}

/// The names of the files in a folder, which may be missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn has(folder: &Path, extension: &str) -> bool {
    names(folder).iter().any(|name| Path::new(name).extension().is_some_and(|it| it == extension))
}

/// The same module with so many bytes more, which mean nothing.
fn padded(mut module: Vec<u8>, bytes: u32) -> Vec<u8> {
    // A custom section: its length in LEB128, then its name.
    let mut length = bytes + 2;
    module.push(0);
    while length >= 0x80 {
        module.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    module.push(length.to_le_bytes()[0]);
    module.extend([1, b'x']);
    module.resize(module.len() + bytes as usize, 0);
    module
}

/// The processes that a server has started and that run.
fn children(server: &Server) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn killed_while_it_pulls_or_compiles_it_leaves_nothing() -> Result<()> {
    let mut scene = Scene::start("leader-killed-pulling").await?;
    let module = denying("pull");
    scene.stage.registry.push("pull", "v1", Registry::MODULE, &module).await?;
    scene.stage.registry.process().freeze()?;
    scene.stage.create("pull", &json!({"module": scene.stage.module("pull:v1")})).await?;
    scene.leader.server.until_details("[ ] cluster.pull-1 is being loaded").await;
    scene.leader.server.kill().await;
    scene.stage.registry.process().thaw()?;
    ensure!(names(&scene.stage.path("cache")).is_empty(), "something was kept of it");
    scene.until_resumed("pull", &Digest::of(&module)).await?;

    // Long enough to be seen.
    let loops = "(loop $l (br_if $l (i32.eqz (i32.add (i32.const 1) (i32.const 2)))))".repeat(10);
    let functions = format!("(func {loops})").repeat(5_000);
    let said = r#"{"accepted":false,"message":"compile"}"#.replace('"', "\\\"");
    let module = wat::parse_str(format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "{{\"valid\":true}}") (data (i32.const 64) "{said}")
            {functions}
            (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
                (if (i32.eq (local.get $operation) (i32.const 17))
                    (then (call $respond (i32.const 0) (i32.const 14)))
                    (else (call $respond (i32.const 64) (i32.const 38))))
                (i32.const 1)))"#
    ))?;
    let digest = scene.create("compile", &module).await?;
    let compiler = until("a compiler", PATIENCE, async || children(&scene.leader.server).pop().context("none")).await?;
    scene.leader.server.kill().await;
    ensure!(scene.handed_out(&digest) == (false, false));
    until("the end of its compiler", PATIENCE, async || {
        ensure!(!Path::new(&format!("/proc/{compiler}/exe")).exists(), "it goes on");
        Ok(())
    })
    .await?;
    scene.until_resumed("compile", &digest).await
}

#[tokio::test]
async fn killed_in_the_middle_of_a_file_it_leaves_nothing_that_counts() -> Result<()> {
    let mut scene = Scene::start("leader-killed-writing").await?;
    // The kernel ends who writes more than its limit into a file (SIGXFSZ), in the middle of that.
    for (name, padding, limit) in [("module", 100_000, 50_000), ("code", 0, 4_000)] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        prlimit(Pid::from_raw(scene.leader.server.pid().try_into()?), Resource::Fsize, limit)?;
        let module = padded(denying(name), padding);
        let digest = scene.create(name, &module).await?;
        ensure!(scene.leader.server.exit_code().await.is_none(), "it ended by itself");
        let folder = if name == "module" { scene.stage.path("cache/modules") } else { scene.compiled(&digest) };
        let torn = names(&folder).into_iter().find(|name| name.starts_with(".tmp")).context("nothing half-written")?;
        ensure!(std::fs::metadata(folder.join(torn))?.len() > 0);
        ensure!(scene.handed_out(&digest) == (name == "code", false), "{:?}", names(&folder));
        scene.until_resumed(name, &digest).await?;
    }
    Ok(())
}

#[tokio::test]
async fn killed_between_the_code_and_its_signature_it_leaves_code_that_nobody_takes() -> Result<()> {
    let mut scene = Scene::start("leader-killed-signing").await?;
    let pid = Pid::from_raw(scene.leader.server.pid().try_into()?).unwrap();
    // Until it is frozen between the two: a matter of tries.
    for attempt in 0..50 {
        let name = format!("sign-{attempt}");
        let module = denying(&name);
        let (digest, folder) = (Digest::of(&module), scene.compiled(&Digest::of(&module)));
        let freezing = tokio::task::spawn_blocking(move || freeze_at_code(pid, &folder));
        scene.create(&name, &module).await?;
        freezing.await??;
        if has(&scene.compiled(&digest), "sig") {
            scene.leader.server.signal(Signal::CONT);
            until_answered(&scene.leader.server, &name, &name).await?;
            continue;
        }
        scene.leader.server.kill().await;
        ensure!(scene.handed_out(&digest) == (true, false), "{:?}", names(&scene.compiled(&digest)));
        return scene.until_resumed(&name, &digest).await;
    }
    anyhow::bail!("it was never between the two")
}

/// Stops the process when the first code lies in this folder.
fn freeze_at_code(pid: Pid, folder: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !has(folder, "cwasm") {
        ensure!(Instant::now() < deadline, "no code");
    }
    rustix::process::kill_process(pid, Signal::STOP)?;
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    while !stat().rsplit_once(") ").unwrap().1.starts_with('T') {
        ensure!(Instant::now() < deadline, "it cannot be stopped");
    }
    Ok(())
}

#[tokio::test]
async fn killed_before_it_says_so_what_it_compiled_is_taken() -> Result<()> {
    let mut scene = Scene::start("leader-killed-before-its-status").await?;
    let module = denying("status");
    scene.stage.registry.push("status", "v1", Registry::MODULE, &module).await?;
    scene.stage.registry.process().freeze()?;
    scene.stage.create("status", &json!({"module": scene.stage.module("status:v1")})).await?;
    scene.leader.server.until_details("[ ] cluster.status-1 is being loaded").await;
    scene.leader.link.proxy.set(Fault::Hang);
    scene.stage.registry.process().thaw()?;
    until_answered(&scene.leader.server, "status", "status").await?;
    scene.leader.server.kill().await;
    let compiled = scene.stage.compiled();
    ensure!(compiled.len() == 2, "{compiled:?}");
    scene.until_resumed("status", &Digest::of(&module)).await?;
    ensure!(scene.stage.compiled() == compiled, "it was compiled again");
    Ok(())
}

#[tokio::test]
async fn killed_at_any_moment_nothing_is_lost() -> Result<()> {
    let mut scene = Scene::start("leader-killed-at-any-moment").await?;
    for milliseconds in [0, 20, 40, 80, 160] {
        let name = format!("after-{milliseconds}");
        let digest = scene.create(&name, &denying(&name)).await?;
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        scene.leader.server.kill().await;
        scene.until_served_by_others(&name, &digest).await?;
    }
    Ok(())
}
