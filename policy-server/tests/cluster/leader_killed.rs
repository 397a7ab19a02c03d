//! The leader is killed at each step of its work on a module: pull, compile, write, sign and status. Replicas never use a torn
//! file of the shared cache, and the next leader finishes the work.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use proviso_artifacts::{Cache, Digest, SigningKeys};
use proviso_e2e::{Fault, Link, Registry, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;

use crate::support::cluster::{TestEnv, condition};
use crate::support::modules::{RegistryEnv, denying, until_answered};
use crate::support::{Server, WAIT_TIMEOUT};

/// Two replicas, each with its own network proxy to the API server.
struct TwoReplicas {
    env: RegistryEnv,
    leader: Replica,
    other: Replica,
    /// The number of replicas started so far.
    started: u32,
}

struct Replica {
    server: Server,
    link: Link,
}

impl TwoReplicas {
    async fn start(test: &str) -> Result<Self> {
        let mut env = RegistryEnv::start(test).await?;
        let leader = replica(&mut env, "pod-0").await?;
        until("a leader", WAIT_TIMEOUT, async || check_leads(&leader.server)).await?;
        let other = replica(&mut env, "pod-1").await?;
        Ok(Self { env, leader, other, started: 2 })
    }

    /// Pushes a module, and creates a revision that uses it.
    async fn create(&self, name: &str, module: &[u8]) -> Result<Digest> {
        self.env.registry.push(name, "v1", Registry::MODULE, module).await?;
        self.env.create(name, &json!({"module": self.env.module(&format!("{name}:v1"))})).await?;
        Ok(Digest::of(module))
    }

    /// Returns the folder of the compiled code of a module.
    fn compiled(&self, module: &Digest) -> PathBuf {
        self.env.path("cache/compiled").join(module.hex())
    }

    /// Returns two flags: true if the cache has the module, and true if it has its compiled code. The cache does not have a torn
    /// file, or refuses it.
    fn cached(&self, module: &Digest) -> (bool, bool) {
        let keys = SigningKeys::mounted(&self.env.path("signing.key")).unwrap();
        let cache = Cache::open_shared(&self.env.path("cache"), keys);
        let has_module = cache.module(module).is_ok_and(|bytes| bytes.is_some());
        let engines = names(&self.compiled(module));
        let has_code = engines.iter().filter_map(|name| name.strip_suffix(".cwasm")).any(|engine| {
            let code = cache.compiled(module, engine);
            code.is_ok_and(|code| code.is_some())
        });
        (has_module, has_code)
    }

    /// After the leader is killed: waits until the other replica leads, and prepares and serves the revision, and until a new
    /// replica serves it too. The killed leader must not have reported the revision as prepared.
    async fn until_resumed(&mut self, name: &str, module: &Digest) -> Result<()> {
        let status = self.env.cluster.revisions.get(&format!("cluster.{name}-1")).await?.data["status"].clone();
        ensure!(condition(&status, "Initialized").is_err(), "{name} was initialized before: {status:#}");
        self.until_served_by_others(name, module).await
    }

    /// Does the same as [`Self::until_resumed`]. The killed leader may have reported the revision as prepared.
    async fn until_served_by_others(&mut self, name: &str, module: &Digest) -> Result<()> {
        let other = &self.other.server;
        other.signal(Signal::CONT);
        self.env.cluster.expire_lease().await?;
        until_answered(other, name, name).await?;
        until("another leader", WAIT_TIMEOUT, async || check_leads(other)).await?;
        self.env.cluster.until_initialized(&format!("cluster.{name}-1")).await?;
        until("the module and its code in the cache", WAIT_TIMEOUT, async || {
            let cached = self.cached(module);
            ensure!(cached == (true, true), "{cached:?}: {:?}", names(&self.compiled(module)));
            Ok(())
        })
        .await?;
        let uid = format!("pod-{}", self.started);
        self.started += 1;
        let new = replica(&mut self.env, &uid).await?;
        until_answered(&new.server, name, name).await?;
        ensure!(new.server.event("cached module refused").is_none(), "{:#?}", new.server.stderr.all());
        self.leader = std::mem::replace(&mut self.other, new);
        Ok(())
    }
}

async fn replica(env: &mut RegistryEnv, uid: &str) -> Result<Replica> {
    let link = env.cluster.link(uid).await?;
    let mut command = env.command(uid, &env.path("cache"));
    command.env("KUBECONFIG", &link.kubeconfig);
    Ok(Replica { server: TestEnv::run(command).await?, link })
}

/// Returns an error if this replica has not logged that it is the leader.
fn check_leads(server: &Server) -> Result<()> {
    let mut lines = server.stderr.all().into_iter().filter_map(|line| line.parse::<serde_json::Value>().ok());
    let last = lines.rfind(|line| line["message"] == "leader elected").context("no leader")?;
    ensure!(last["is_this"] == true, "{last}");
    Ok(())
}

/// Returns the names of the files in a folder, which may be missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn has(folder: &Path, extension: &str) -> bool {
    names(folder).iter().any(|name| Path::new(name).extension().is_some_and(|it| it == extension))
}

/// Returns the module with a custom section of this many additional bytes.
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

/// Returns the running child processes of a server.
fn children(server: &Server) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn a_leader_killed_during_pull_or_compilation_leaves_no_files() -> Result<()> {
    let mut replicas = TwoReplicas::start("leader-killed-pulling").await?;
    let module = denying("pull");
    replicas.env.registry.push("pull", "v1", Registry::MODULE, &module).await?;
    replicas.env.registry.process().freeze()?;
    replicas.env.create("pull", &json!({"module": replicas.env.module("pull:v1")})).await?;
    replicas.leader.server.until_details("[ ] cluster.pull-1 is being loaded").await;
    replicas.leader.server.kill().await;
    replicas.env.registry.process().thaw()?;
    ensure!(names(&replicas.env.path("cache")).is_empty(), "the killed leader has left files");
    replicas.until_resumed("pull", &Digest::of(&module)).await?;

    // The compilation takes long enough to be observed.
    let loops = "(loop $l (br_if $l (i32.eqz (i32.add (i32.const 1) (i32.const 2)))))".repeat(10);
    let functions = format!("(func {loops})").repeat(5_000);
    let verdict = r#"{"accepted":false,"message":"compile"}"#.replace('"', "\\\"");
    let module = wat::parse_str(format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "{{\"valid\":true}}") (data (i32.const 64) "{verdict}")
            {functions}
            (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
                (if (i32.eq (local.get $operation) (i32.const 17))
                    (then (call $respond (i32.const 0) (i32.const 14)))
                    (else (call $respond (i32.const 64) (i32.const 38))))
                (i32.const 1)))"#
    ))?;
    let digest = replicas.create("compile", &module).await?;
    let compiler =
        until("a compiler", WAIT_TIMEOUT, async || children(&replicas.leader.server).pop().context("none")).await?;
    replicas.leader.server.kill().await;
    ensure!(replicas.cached(&digest) == (false, false));
    until("the end of its compiler", WAIT_TIMEOUT, async || {
        ensure!(!Path::new(&format!("/proc/{compiler}/exe")).exists(), "the compiler still runs");
        Ok(())
    })
    .await?;
    replicas.until_resumed("compile", &digest).await
}

#[tokio::test]
async fn a_leader_killed_during_a_write_leaves_only_a_temporary_file() -> Result<()> {
    let mut replicas = TwoReplicas::start("leader-killed-writing").await?;
    // The kernel kills a process that exceeds its limit of the file size (SIGXFSZ), in the middle of a write.
    for (name, padding, limit) in [("module", 100_000, 50_000), ("code", 0, 4_000)] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        prlimit(Pid::from_raw(replicas.leader.server.pid().try_into()?), Resource::Fsize, limit)?;
        let module = padded(denying(name), padding);
        let digest = replicas.create(name, &module).await?;
        ensure!(replicas.leader.server.exit_code().await.is_none(), "the leader ended by itself");
        let folder = if name == "module" { replicas.env.path("cache/modules") } else { replicas.compiled(&digest) };
        let torn = names(&folder).into_iter().find(|name| name.starts_with(".tmp")).context("no temporary file")?;
        ensure!(std::fs::metadata(folder.join(torn))?.len() > 0);
        ensure!(replicas.cached(&digest) == (name == "code", false), "{:?}", names(&folder));
        replicas.until_resumed(name, &digest).await?;
    }
    Ok(())
}

#[tokio::test]
async fn code_without_a_signature_of_a_killed_leader_is_not_used() -> Result<()> {
    let mut replicas = TwoReplicas::start("leader-killed-signing").await?;
    let pid = Pid::from_raw(replicas.leader.server.pid().try_into()?).unwrap();
    // Try until the leader is frozen between the write of the code and the write of its signature.
    for attempt in 0..50 {
        let name = format!("sign-{attempt}");
        let module = denying(&name);
        let (digest, folder) = (Digest::of(&module), replicas.compiled(&Digest::of(&module)));
        let freezing = tokio::task::spawn_blocking(move || freeze_at_code(pid, &folder));
        replicas.create(&name, &module).await?;
        freezing.await??;
        if has(&replicas.compiled(&digest), "sig") {
            replicas.leader.server.signal(Signal::CONT);
            until_answered(&replicas.leader.server, &name, &name).await?;
            continue;
        }
        replicas.leader.server.kill().await;
        ensure!(replicas.cached(&digest) == (true, false), "{:?}", names(&replicas.compiled(&digest)));
        return replicas.until_resumed(&name, &digest).await;
    }
    anyhow::bail!("the leader was never frozen between the two writes")
}

/// Freezes the process when this folder has the first file of code.
fn freeze_at_code(pid: Pid, folder: &Path) -> Result<()> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !has(folder, "cwasm") {
        ensure!(Instant::now() < deadline, "no code");
    }
    rustix::process::kill_process(pid, Signal::STOP)?;
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    while !stat().rsplit_once(") ").unwrap().1.starts_with('T') {
        ensure!(Instant::now() < deadline, "the process cannot be frozen");
    }
    Ok(())
}

#[tokio::test]
async fn code_of_a_leader_killed_before_its_status_update_is_used() -> Result<()> {
    let mut replicas = TwoReplicas::start("leader-killed-before-its-status").await?;
    let module = denying("status");
    replicas.env.registry.push("status", "v1", Registry::MODULE, &module).await?;
    replicas.env.registry.process().freeze()?;
    replicas.env.create("status", &json!({"module": replicas.env.module("status:v1")})).await?;
    replicas.leader.server.until_details("[ ] cluster.status-1 is being loaded").await;
    // The other replica does not take over while the leader still prepares the revision. `until_resumed` continues it.
    replicas.other.server.signal(Signal::STOP);
    replicas.leader.link.proxy.set(Fault::Hang);
    replicas.env.registry.process().thaw()?;
    until_answered(&replicas.leader.server, "status", "status").await?;
    replicas.leader.server.kill().await;
    let compiled = replicas.env.compiled();
    ensure!(compiled.len() == 2, "{compiled:?}");
    replicas.until_resumed("status", &Digest::of(&module)).await?;
    ensure!(replicas.env.compiled() == compiled, "the module was compiled again");
    Ok(())
}

#[tokio::test]
async fn a_revision_is_served_although_its_leader_is_killed_at_any_moment() -> Result<()> {
    let mut replicas = TwoReplicas::start("leader-killed-at-any-moment").await?;
    for milliseconds in [0, 20, 40, 80, 160] {
        let name = format!("after-{milliseconds}");
        let digest = replicas.create(&name, &denying(&name)).await?;
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        replicas.leader.server.kill().await;
        replicas.until_served_by_others(&name, &digest).await?;
    }
    Ok(())
}
