//! The flow of a replica that the kernel ends, because it exceeds its memory limit.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use proviso_e2e::until;
use rustix::process::Pid;
use serde_json::json;

use crate::load::deny_with_long_timeout;
use crate::test_cluster::{Requester, TestCluster, WAIT_TIMEOUT};

const SERVER: &str = "limited";
const POLICY: &str = "memory";
const LIMIT: &str = "512Mi";
/// The longest time for which an API server calls a replica that has ended: the kubelet notices its end, and the endpoints of
/// the Service follow.
const ENDPOINTS_TIME: Duration = Duration::from_secs(10);

/// A shell script that joins the cgroup in `$1`, and allocates memory until the kernel ends it. The kernel ends the policy server
/// first: its OOM score is that of a pod without reserved memory, and the score of the script is low.
const ALLOCATE: &str = r#"echo -999 >/proc/self/oom_score_adj; echo 0 >"$1/cgroup.procs" && exec tail /dev/zero"#;

/// A process that allocates memory. It is killed when this value is dropped.
struct Allocator(Child);

impl Allocator {
    fn start(cgroup: &Path) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", ALLOCATE, "allocate"]).arg(cgroup).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the cgroup, of either version, that limits the memory of a process.
fn memory_cgroup(process: Pid) -> Result<PathBuf> {
    let process = process.as_raw_nonzero().to_string();
    let is_of_process = |folder: &Path| {
        let has_limit = ["memory.max", "memory.limit_in_bytes"].iter().any(|file| folder.join(file).exists());
        let processes = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        has_limit && processes.lines().any(|line| line == process)
    };
    find(Path::new("/sys/fs/cgroup"), &is_of_process).with_context(|| format!("no memory cgroup of {process}"))
}

/// Returns the first folder, at or below this one, for which the condition is true.
fn find(folder: &Path, condition: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    if condition(folder) {
        return Some(folder.to_owned());
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir() && !path.is_symlink()).find_map(|path| find(&path, condition))
}

/// The answer to one request.
struct Answer {
    begin: Instant,
    end: Instant,
    /// The message of the denial; `None` if the request was allowed.
    denial: Result<Option<String>>,
}

/// Sends one request after the other until the future is dropped.
async fn ask(requester: &Requester, answers: &RefCell<Vec<Answer>>) {
    loop {
        let begin = Instant::now();
        let denial = requester.dry_run().await;
        answers.borrow_mut().push(Answer { begin, end: Instant::now(), denial });
    }
}

/// The times of the end of a replica, and of the moment at which it is Ready again.
struct Outage {
    begin: Instant,
    end: Instant,
}

/// Exhausts the memory of a replica, and waits until it is Ready again and answers.
async fn exhaust(pod: &str, answers: &RefCell<Vec<Answer>>, cluster: &TestCluster) -> Result<Outage> {
    let process = cluster.process(pod).await?;
    let allocator = Allocator::start(&memory_cgroup(process)?)?;
    let entry = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    until("the end of the policy server", WAIT_TIMEOUT, async || {
        ensure!(!entry.exists(), "it still runs");
        Ok(())
    })
    .await?;
    let begin = Instant::now();
    drop(allocator);
    until("a restart because of OOMKilled", WAIT_TIMEOUT, async || {
        let status = cluster.pods().get(pod).await?.status.context("no status")?;
        let container = status.container_statuses.into_iter().flatten().next().context("no container")?;
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let is_exhausted = last.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"));
        ensure!(container.restart_count == 1 && is_exhausted, "{container:?}");
        Ok(())
    })
    .await?;
    cluster.until_served(SERVER, 2).await?;
    let end = Instant::now();
    until("answers of both replicas", WAIT_TIMEOUT, async || {
        let answered = answers.borrow().iter().filter(|answer| answer.begin > end && answer.denial.is_ok()).count();
        ensure!(answered > 50, "{answered} answers");
        Ok(())
    })
    .await?;
    Ok(Outage { begin, end })
}

/// Checks that only requests to the ended replica were lost, and that the other replica answered meanwhile.
fn check(answers: &[Answer], outage: &Outage) -> Result<()> {
    let (mut lost, mut meanwhile) = (0, 0);
    for Answer { begin, end, denial } in answers {
        match denial {
            Ok(Some(message)) => {
                ensure!(message == "no", "denied: {message}");
                meanwhile += usize::from(*begin >= outage.begin && *end <= outage.end);
            }
            Ok(None) => bail!("a request was allowed"),
            Err(error) => {
                let (error, limit) = (format!("{error:#}"), outage.begin + ENDPOINTS_TIME);
                ensure!(error.contains("failed calling webhook") && *begin < limit, "lost: {error}");
                lost += 1;
            }
        }
    }
    let seconds = (outage.end - outage.begin).as_secs_f64();
    eprintln!("the replica was Ready again after {seconds:.1} s; meanwhile {lost} requests lost, {meanwhile} answered");
    ensure!(meanwhile > 0, "the other replica has not answered");
    Ok(())
}

/// Checks that the status and the Events of the policy server name the replica, the cause and the remedy.
async fn until_reported(pod: &str, cluster: &TestCluster) -> Result<()> {
    let cause = format!("{pod} exceeded its memory limit of {LIMIT}");
    until("the cause in the status", WAIT_TIMEOUT, async || {
        let status = cluster.servers().get(SERVER).await?.status.context("no status")?;
        let ready = status.conditions.iter().find(|it| it.type_ == "Ready").context("no condition Ready")?;
        let expected = [cause.as_str(), "OOMKilled", "raise spec.resources.limits.memory"];
        ensure!(ready.status == "True" && expected.iter().all(|it| ready.message.contains(it)), "{ready:?}");
        let described = cluster.kubectl.run(&["describe", "policyserver", SERVER]).await?;
        let is_event = |line: &str| ["Warning", "OutOfMemory", pod].iter().all(|word| line.contains(word));
        ensure!(described.lines().any(is_event), "{described}");
        Ok(())
    })
    .await
}

pub async fn a_replica_out_of_memory_is_reported_while_another_one_answers(cluster: &TestCluster) -> Result<()> {
    let server = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": SERVER},
        "spec": {
            "replicas": 2,
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": LIMIT}},
        },
    });
    cluster.apply(&server).await?;
    cluster.until_served(SERVER, 2).await?;
    let mut spec = deny_with_long_timeout(POLICY, "no");
    spec["policyServer"] = SERVER.into();
    let generation = cluster.write(POLICY, &spec).await?;
    cluster.until_live(POLICY, generation).await?;
    cluster.until_denied(POLICY, "no").await?;

    let pod = format!("policy-server-{SERVER}-0");
    let (requester, answers) = (cluster.requester(POLICY), RefCell::new(Vec::new()));
    let outage = tokio::select! {
        outage = exhaust(&pod, &answers, cluster) => outage?,
        () = ask(&requester, &answers) => bail!("no more requests"),
    };
    check(&answers.into_inner(), &outage)?;
    until_reported(&pod, cluster).await?;
    for replica in cluster.replicas_of(SERVER).await? {
        let containers = replica.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let restarts: i32 = containers.map(|container| container.restart_count).sum();
        ensure!(restarts == i32::from(replica.name_any() == pod), "{restarts} restarts of {}", replica.name_any());
    }

    cluster.delete(POLICY).await?;
    cluster.servers().delete(SERVER, &DeleteParams::default()).await?;
    until("the end of the policy server", WAIT_TIMEOUT, async || {
        ensure!(cluster.servers().get_opt(SERVER).await?.is_none(), "it still exists");
        Ok(())
    })
    .await
}
