//! Tests of the full node, which the tests with pods use.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{LogParams, PostParams};
use kube::{Api, Client};
use proviso_e2e::{Folder, Image, Node, until};
use serde_json::{Value, json};

use crate::is_skipped;

const WAIT_TIMEOUT: Duration = Duration::from_mins(3);

/// Creates a pod in the default namespace that runs `/pod` with these arguments.
async fn create_pod(node: &Node, name: &str, arguments: &[&str]) -> Result<Api<Pod>> {
    let container = json!({"name": "pod", "image": Node::pod_image(), "args": arguments});
    create_pod_with(node, name, container).await
}

async fn create_pod_with(node: &Node, name: &str, container: Value) -> Result<Api<Pod>> {
    let pods = Api::<Pod>::default_namespaced(node.client().await?);
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(pods)
}

async fn until_ready(pods: &Api<Pod>, name: &str) -> Result<()> {
    until("a Ready pod", WAIT_TIMEOUT, async || {
        let status = pods.get(name).await?.status.context("no status")?;
        let ready = status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
        ensure!(ready, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_becomes_ready() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let start = Instant::now();
    let node = Node::start("a-pod-becomes-ready").await?;
    eprintln!("the node is Ready after {:.1} s", start.elapsed().as_secs_f64());
    let pods = create_pod(&node, "first", &[]).await?;
    until_ready(&pods, "first").await?;
    eprintln!("the first pod is Ready after {:.1} s", start.elapsed().as_secs_f64());
    let end = Instant::now();
    drop(node);
    eprintln!("the node has ended after {:.1} s", end.elapsed().as_secs_f64());
    Ok(())
}

/// Waits until a pod has ended with success, and returns its log.
async fn output(pods: &Api<Pod>, name: &str) -> Result<String> {
    until("the end of a pod", WAIT_TIMEOUT, async || {
        let status = pods.get(name).await?.status.context("no status")?;
        ensure!(status.phase.as_deref() == Some("Succeeded"), "{status:?}");
        Ok(())
    })
    .await?;
    Ok(pods.logs(name, &LogParams::default()).await?)
}

#[tokio::test]
async fn a_service_is_reached_by_its_name() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let node = Node::start("a-service-is-reached").await?;
    let pods = create_pod(&node, "server", &["serve", "hello from a pod"]).await?;
    let service = json!({
        "metadata": {"name": "hello"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    let services = Api::<Service>::default_namespaced(node.client().await?);
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    node.until_dns().await?;
    until_ready(&pods, "server").await?;
    // CoreDNS resolves the name, kube-proxy routes to the pod, and the API server gets the log from kubelet.
    create_pod(&node, "client", &["get", "http://hello.default.svc.cluster.local"]).await?;
    ensure!(output(&pods, "client").await?.ends_with("hello from a pod"));
    // Another pod uses the short name.
    create_pod(&node, "short", &["get", "http://hello"]).await?;
    ensure!(output(&pods, "short").await?.ends_with("hello from a pod"));
    Ok(())
}

#[tokio::test]
async fn an_image_that_was_pushed_is_pulled() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let node = Node::start("an-image-that-was-pushed").await?;
    let pod = proviso_e2e::binaries::Tier::Node.folder()?.join("pod");
    let folder = node.control_plane().folder().path();
    let image = Image::new("pushed:1").file(pod, "/pushed").entrypoint(["/pushed"]);
    image.write(&folder.join("pushed.tar"))?;
    push(&folder.join("pushed.tar"), &node.registry(), "pushed", "1").await?;
    let container = json!({"name": "pushed", "image": format!("{}/pushed:1", node.registry())});
    let pods = create_pod_with(&node, "pushed", container).await?;
    until_ready(&pods, "pushed").await
}

/// Pushes the image of a tar file by the OCI distribution specification: the blobs first, then the manifest.
async fn push(tar: &Path, registry: &str, repository: &str, tag: &str) -> Result<()> {
    let registry = Client::try_from(kube::Config::new(format!("http://{registry}/").parse()?))?;
    let mut manifest = Vec::new();
    for entry in tar::Archive::new(File::open(tar)?).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let Some(digest) = path.strip_prefix("blobs/sha256/") else { continue };
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if serde_json::from_slice::<Value>(&content).is_ok_and(|json| json["layers"].is_array()) {
            manifest = content;
            continue;
        }
        let request = http::Request::post(format!("/v2/{repository}/blobs/uploads/")).body(Vec::new().into())?;
        let answer = registry.send(request).await?;
        let location = answer.headers().get("location").context("no upload location")?.to_str()?;
        // The location may have a host, which the client adds itself.
        let path = location.find("/v2/").map(|start| &location[start..]).context("not a path of the registry")?;
        let request = http::Request::put(format!("{path}&digest=sha256:{digest}"))
            .header("content-type", "application/octet-stream")
            .body(content.into())?;
        let answer = registry.send(request).await?;
        ensure!(answer.status() == 201, "{answer:?}");
    }
    let request = http::Request::put(format!("/v2/{repository}/manifests/{tag}"))
        .header("content-type", "application/vnd.oci.image.manifest.v1+json")
        .body(manifest.into())?;
    let answer = registry.send(request).await?;
    ensure!(answer.status() == 201, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn kubelet_can_be_frozen_killed_and_started_again() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let mut node = Node::start("kubelet-can-be-frozen").await?;
    let pods = create_pod(&node, "before", &[]).await?;
    until_ready(&pods, "before").await?;
    node.kubelet().freeze()?;
    create_pod(&node, "meanwhile", &[]).await?;
    let early = tokio::time::timeout(Duration::from_secs(3), until_ready(&pods, "meanwhile")).await;
    ensure!(early.is_err(), "a pod was started without kubelet");
    node.kubelet().thaw()?;
    until_ready(&pods, "meanwhile").await?;
    node.kubelet().freeze()?;
    node.kubelet().kill();
    ensure!(node.kubelet().ensure_running().is_err(), "kubelet still runs");
    node.kubelet().restart()?;
    create_pod(&node, "after", &[]).await?;
    until_ready(&pods, "after").await?;
    node.kubelet().terminate(WAIT_TIMEOUT)?;
    Ok(())
}

#[tokio::test]
async fn two_nodes_run_side_by_side() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let (first, second) = tokio::try_join!(Node::start("side-by-side-1"), Node::start("side-by-side-2"))?;
    // The clusters use the same names and addresses.
    let of_first = create_pod(&first, "same", &[]).await?;
    until_ready(&of_first, "same").await?;
    let of_second = Api::<Pod>::default_namespaced(second.client().await?);
    ensure!(of_second.get_opt("same").await?.is_none(), "one pod in two clusters");
    drop(first);
    create_pod(&second, "same", &[]).await?;
    until_ready(&of_second, "same").await
}

/// The kernel's objects of a node.
#[derive(Debug)]
struct Traces {
    /// The identities of the namespaces. The open files prevent the kernel from reusing the identities.
    namespaces: Vec<PathBuf>,
    _files: Vec<File>,
    cgroups: Vec<PathBuf>,
    name: String,
}

impl Traces {
    fn of(process: u32, name: &str) -> Result<Self> {
        let paths = ["pid", "net", "mnt"].map(|kind| format!("/proc/{process}/ns/{kind}"));
        let namespaces = paths.iter().map(std::fs::read_link).collect::<Result<_, _>>()?;
        let files = paths.iter().map(File::open).collect::<Result<_, _>>()?;
        let cgroups: Vec<_> = walk(Path::new("/sys/fs/cgroup"), name);
        ensure!(!cgroups.is_empty(), "a node without cgroups");
        Ok(Self { namespaces, _files: files, cgroups, name: name.to_owned() })
    }

    fn ensure_gone(&self) -> Result<()> {
        for process in std::fs::read_dir("/proc")? {
            for kind in ["pid", "pid_for_children", "net", "mnt"] {
                let process = process.as_ref().map(std::fs::DirEntry::path).unwrap_or_default();
                // Some entries are not processes, and a process may have ended since.
                let namespace = std::fs::read_link(process.join("ns").join(kind)).unwrap_or_default();
                ensure!(!self.namespaces.contains(&namespace), "{} is left over", process.display());
            }
        }
        let cgroups = self.cgroups.iter().find(|cgroup| cgroup.exists());
        ensure!(cgroups.is_none(), "{cgroups:?} is left over");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&self.name), "a mount is left over: {mounts}");
        let interfaces = std::fs::read_to_string("/proc/net/dev")?;
        ensure!(!interfaces.contains("node0"), "an interface is left over: {interfaces}");
        Ok(())
    }
}

/// Returns the folders below this one whose path contains the name of a cluster. No other cluster's name contains this name,
/// although tests run concurrently.
fn walk(folder: &Path, name: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = folders.filter(|path| path.is_dir() && !path.is_symlink());
    let find = |path: PathBuf| if path.to_string_lossy().contains(name) { vec![path] } else { walk(&path, name) };
    folders.flat_map(find).collect()
}

#[tokio::test]
#[allow(clippy::panic, reason = "this test needs a panic")]
async fn a_test_that_panics_leaves_no_processes_or_cgroups() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let name = "nothing-is-left-of-a-panic";
    let node = Node::start(name).await?;
    let pods = create_pod(&node, "pod", &[]).await?;
    until_ready(&pods, "pod").await?;
    let traces = Traces::of(node.process(), name)?;
    let test = tokio::spawn(async move {
        let _node = node;
        panic!("this test fails on purpose");
    });
    ensure!(test.await.is_err_and(|error| error.is_panic()));
    traces.ensure_gone()
}

#[tokio::test]
async fn a_killed_program_leaves_no_processes_or_cgroups() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let name = "nothing-is-left-of-the-killed";
    let up = Command::new(env!("CARGO_BIN_EXE_proviso-e2e")).args(["up", "--name", name]).output()?;
    ensure!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let usage = String::from_utf8(up.stdout)?;
    ensure!(usage.contains("export KUBECONFIG="), "{usage}");
    let process = usage.split_once("--target ").and_then(|(_, rest)| rest.split_whitespace().next());
    let traces = Traces::of(process.context("no process in the output of `up`")?.parse()?, name)?;
    let supervisor = Folder::user(name)?.context("no process keeps the cluster")?;
    let killed = Command::new("kill").args(["-KILL", &supervisor.to_string()]).status()?;
    ensure!(killed.success());
    until("the end of all processes", WAIT_TIMEOUT, async || traces.ensure_gone()).await
}
