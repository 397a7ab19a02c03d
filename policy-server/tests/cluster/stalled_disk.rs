//! A replica whose disk stalls: the file system of its cache is frozen. Needs root, and loop devices.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use proviso_e2e::{Registry, until, until_with};
use serde_json::{Value, json};

use crate::faults::{walk, warnings, wrap};
use crate::support::cluster::{TestEnv, ask};
use crate::support::modules::{RegistryEnv, denying, until_answered};
use crate::support::{Server, WAIT_TIMEOUT};

/// The size of the disk, in bytes.
const SIZE: u64 = 32 << 20;
/// The longest time for an answer that needs no disk, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A shell script that mounts the image in `$1` at the folder in `$2`, and then runs the other arguments as a command.
const MOUNT: &str = r#"mount -o loop "$1" "$2" && shift 2 && exec "$@""#;
/// A shell script that freezes the file system in `$1` until the end of its stdin. That comes also if the test is killed.
const FREEZE: &str = r#"trap '' HUP INT TERM; fsfreeze --freeze "$1" && echo frozen && cat; fsfreeze --unfreeze "$1""#;

/// Returns a command that runs its arguments in its own mount namespace, in which the folder is the disk in the image.
fn on_disk(image: &Path, folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT, "mount"]).args([image, folder]);
    command
}

/// A frozen file system: reads work, and writes stall. It is thawed when this value is dropped.
struct FrozenDisk(Child);

impl FrozenDisk {
    /// Freezes the file system that the server has at this folder.
    fn freeze(server: &Server, folder: &Path) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &server.pid().to_string(), "sh", "-c", FREEZE, "freeze"]).arg(folder);
        let mut disk = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        if let Some(stdout) = &mut disk.0.stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        ensure!(line == "frozen\n", "fsfreeze has failed");
        Ok(disk)
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn policies_are_served_while_the_disk_of_the_cache_is_stalled() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped, because only root may mount a disk");
        return Ok(());
    }
    let env = RegistryEnv::start("a-cache-that-stalls").await?;
    let (image, cache) = (env.path("cache.ext4"), env.path("cache"));
    std::fs::create_dir(&cache)?;
    File::create(&image)?.set_len(SIZE)?;
    let formatted = Command::new("mkfs.ext4").arg("-q").arg(&image).status().context("mkfs.ext4 of e2fsprogs")?;
    ensure!(formatted.success(), "{formatted}");
    // In some containers, root may not mount.
    if !on_disk(&image, &cache).arg("true").status()?.success() {
        eprintln!("skipped, because root may not mount a disk here");
        return Ok(());
    }
    let server = TestEnv::run(wrap(on_disk(&image, &cache), &env.command("pod-0", &cache))).await?;
    let create = async |name: &str| {
        env.registry.push(name, "v1", Registry::MODULE, &denying(name)).await?;
        env.create(name, &json!({"module": env.module(&format!("{name}:v1"))})).await
    };
    create("before").await?;
    until_answered(&server, "before", "before").await?;

    let frozen = FrozenDisk::freeze(&server, &cache)?;
    create("meanwhile").await?;
    let mut longest = Duration::ZERO;
    // An attempt is not ended early: a late answer counts.
    until_with("the policy that is not in the cache", WAIT_TIMEOUT, WAIT_TIMEOUT, async || {
        let begin = Instant::now();
        let answer = ask(&server, "/validate/cluster.before/1").await;
        longest = longest.max(begin.elapsed());
        assert_eq!(answer.message(), "before", "{}", answer.text);
        let answer = ask(&server, "/validate/cluster.meanwhile/1").await;
        ensure!(answer.status == StatusCode::OK && answer.message() == "meanwhile", "{}", answer.text);
        Ok(())
    })
    .await?;
    ensure!(longest < ANSWER_TIMEOUT, "the live policy answered after {longest:?}");
    env.cluster.until_initialized("cluster.meanwhile-1").await?;
    ensure!(server.get("/readyz").await.status == StatusCode::OK, "{}", server.details().await);
    let refused = |line: &Value| {
        let error = line["error"].as_str().unwrap_or_default();
        line["reason"] == "CacheError" && error.contains("its disk is stalled")
    };
    ensure!(warnings(&server).iter().any(refused), "{:#?}", warnings(&server));

    drop(frozen);
    create("after").await?;
    until_answered(&server, "after", "after").await?;
    // The code and the signature of each module. The write that stalled continues too.
    let compiled = PathBuf::from(format!("/proc/{}/root{}", server.pid(), cache.display())).join("compiled");
    until("all modules in the cache", WAIT_TIMEOUT, async || {
        let files = walk(&compiled);
        ensure!(files.len() == 6, "{files:?}");
        Ok(())
    })
    .await?;
    server.until_ready().await
}
