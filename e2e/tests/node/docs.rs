//! The commands of the documentation, run as they are written: those for a cluster on a full node, those for a folder of manifests in a
//! network namespace, so that its ports are free.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::console::{Console, Step, ignored_commands, steps};
use proviso_e2e::{Folder, Helm, Image, Node, component, program, until};
use tokio::process::{Child, Command};

use crate::{is_skipped, repository};

const TIMEOUT: Duration = Duration::from_mins(3);

/// The pages of the walk through a cluster, in order. The last page removes Proviso.
const CLUSTER: [&str; 12] = [
    "docs/tutorials/cluster.md",
    "README.md",
    "docs/how-to/operate-policies.md",
    "docs/troubleshooting.md",
    "docs/reference/metrics.md",
    "docs/reference/cli.md",
    "docs/reference/programs.md",
    "docs/how-to/request-policies-in-a-cluster.md",
    "docs/how-to/authenticate-api-servers.md",
    "docs/how-to/request-policies-on-objects.md",
    "docs/how-to/configure-components.md",
    "docs/how-to/install.md",
];
/// The pages of walks over a folder of manifests, with their folders and the other options of the server. Each has a policy server of its
/// own.
const FOLDER: [(&str, &str, &[&str]); 5] = [
    ("docs/tutorials/standalone.md", QUICKSTART, &[]),
    ("docs/reference/rest-api.md", QUICKSTART, &[]),
    ("docs/reference/cli.md", QUICKSTART, &[]),
    ("docs/how-to/request-policies.md", "examples/requests/policies", &[]),
    (
        "docs/how-to/configure-components-without-a-cluster.md",
        "examples/configuration/folder/manifests",
        &["--state-dir", "state", "--deliver-to", "components"],
    ),
];
/// The manifests that `make run` serves.
const QUICKSTART: &str = "examples/quickstart";
/// The page of both walks, and the heading of its section for a folder. The rest of the page is for a cluster.
const SHARED: (&str, &str) = ("docs/reference/cli.md", "\n### Without a cluster\n");
/// The pages whose commands need no server.
const COMMANDS: [&str; 1] = ["docs/how-to/test-policies.md"];
/// The page after which Proviso is installed, and the first policy of the chart's notes can be applied.
const FIRST_POLICY_AFTER: &str = "README.md";
/// The page that `e2e/tests/flows/guide.rs` runs.
const FLOWS: &str = "docs/how-to/preview-a-change.md";

/// The beginnings of commands that these tests do not run, and the reasons.
const NOT_RUN: [(&str, &str); 15] = [
    ("docker ", "the tests have no Docker: the node loads images with the same names"),
    ("kind ", "the tests have a node of their own"),
    ("make run", "the test starts the same program with the same options"),
    ("make check", "CI runs it"),
    ("make test", "CI runs it"),
    ("make e2e", "CI runs it"),
    ("cargo build", "the programs are built before the test"),
    ("cosign ", "the tests of the crate artifacts verify signatures of cosign's formats"),
    ("policy-server ", "runs until it is stopped: the tests of the policy server cover the options"),
    ("curl --cacert", "needs the certificate of a server of the reader's"),
    (
        "kubectl -n proviso-system port-forward",
        "runs until it is stopped: policy-server/tests/cluster/metrics.rs reads the details of a replica",
    ),
    ("curl -sk", "needs the port of the command before"),
    ("openssl ", "creates the token for the command before"),
    ("kubectl get clusteradmissionpolicies", "needs Kubewarden's kinds: the tests of the crate import convert them"),
    ("proviso verify ", "needs a signed module: cli/tests/cluster/signatures.rs has a registry with signed modules"),
];

fn read(page: &str) -> Result<String> {
    std::fs::read_to_string(repository().join(page)).with_context(|| page.to_owned())
}

fn is_run(command: &str) -> bool {
    NOT_RUN.iter().all(|(start, _)| !command.starts_with(start))
}

/// Returns the part of a page for the walk through a cluster, and the part for a walk over a folder.
fn parts(page: &str) -> Result<(String, String)> {
    let text = read(page)?;
    let (shared, heading) = SHARED;
    if page != shared {
        return Ok((text.clone(), text));
    }
    let (before, section) = text.split_once(heading).with_context(|| format!("{page} has no section {heading:?}"))?;
    let (section, after) = section.split_at(section.find("\n## ").unwrap_or(section.len()));
    Ok(([before, after].concat(), section.to_owned()))
}

/// The text of a denial by a webhook.
const DENIAL: &str = "denied the request";

/// Runs the commands of a page, or of a part of one, in order.
async fn walk(console: &mut Console, page: &str, text: &str) -> Result<()> {
    console.write_files(text)?;
    for step in steps(text).iter().filter(|step| is_run(&step.command)) {
        if step.command.starts_with("kubectl ") && step.output.iter().any(|line| line.contains(DENIAL)) {
            // The API server calls a new webhook after a moment. Until then, the command would have an effect.
            let dry_run = Step { command: format!("{} --dry-run=server", step.command), output: step.output.clone() };
            console.run(&dry_run).await.with_context(|| format!("{page}: $ {}", dry_run.command))?;
        }
        console.run(step).await.with_context(|| format!("{page}: $ {}", step.command))?;
    }
    Ok(())
}

/// Returns the command of the chart's notes that creates a first policy.
fn first_policy() -> Result<Step> {
    let notes = read("charts/proviso/templates/NOTES.txt")?;
    let start = notes.find("  kubectl apply -f - <<POLICY").context("the notes have no policy")?;
    let (command, _) = notes[start..].split_once("\n\n").context("the notes end with the policy")?;
    let lines: Vec<_> = command.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    Ok(Step { command: lines.join("\n"), output: vec!["no-latest … Monitor …".to_owned()] })
}

/// Returns a copy of the files that the pages name, in the folder of a test: the commands change them.
fn working_copy(folder: &Folder) -> Result<PathBuf> {
    let copy = folder.path().join("repository");
    std::fs::create_dir_all(&copy)?;
    // Only files of the repository: `examples` also has folders that compilers create.
    let script = "git ls-files -z charts config crds examples | xargs -0 cp --parents --target-directory \"$0\"";
    let status = std::process::Command::new("sh").args(["-c", script]).arg(&copy).current_dir(repository()).status()?;
    ensure!(status.success(), "the copy of the repository failed");
    // A page undoes its changes by git.
    for arguments in [&["init", "--quiet"][..], &["add", "examples"]] {
        let status = std::process::Command::new("git").args(arguments).current_dir(&copy).status()?;
        ensure!(status.success(), "git {arguments:?} failed");
    }
    Ok(copy)
}

/// Returns a folder with links to the programs that a reader installs.
fn installed(folder: &Folder, programs: &[(&str, &Path)]) -> Result<PathBuf> {
    let installed = folder.path().join("installed");
    std::fs::create_dir_all(&installed)?;
    let proviso = program::program("proviso")?;
    for (name, target) in programs.iter().copied().chain([("proviso", &*proviso), ("kubectl-proviso", &proviso)]) {
        symlink(target, installed.join(name))?;
    }
    Ok(installed)
}

#[tokio::test]
async fn the_commands_for_a_cluster_work_as_written() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let node = Node::start("docs").await?;
    let folder = node.control_plane().folder();
    for name in ["operator", "policy-server"] {
        let stripped = folder.path().join(name);
        program::strip(&program::program(name)?, &stripped)?;
        for registry in ["docker.io", "registry.example.com"] {
            let image = Image::new(format!("{registry}/proviso/{name}:0.1.0"));
            node.load(&image.file(&stripped, format!("/{name}")).entrypoint([format!("/{name}")])).await?;
        }
    }
    node.load(&component::image()?).await?;
    let (kubectl, helm) = (node.kubectl()?, Helm::new(node.kubeconfig())?);
    let installed = installed(folder, &[("kubectl", kubectl.program()), ("helm", helm.program())])?;
    let copy = working_copy(folder)?;
    let mut console = Console::new(&copy, &[&installed], TIMEOUT)
        .variable("KUBECONFIG", node.kubeconfig().as_os_str())
        // The cache of Helm.
        .variable("HOME", folder.path().as_os_str());
    // A reader of the guide for client certificates has this file.
    std::fs::copy(node.control_plane().webhook_clients().certificate(), copy.join("ca.crt"))?;
    for page in CLUSTER {
        walk(&mut console, page, &parts(page)?.0).await?;
        if page == FIRST_POLICY_AFTER {
            console.run(&first_policy()?).await?;
        }
    }
    Ok(())
}

/// A policy server over a folder of manifests, in a network namespace of its own, as the pages and `make run` start it.
struct Standalone {
    server: Child,
}

impl Standalone {
    async fn start(copy: &Path, manifests: &str, options: &[&str]) -> Result<Self> {
        let server = program::program("policy-server")?;
        let script = "ip link set lo up && exec \"$0\" --manifests \"$@\"";
        let log = std::fs::File::create(copy.join("policy-server.log"))?;
        let server = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .arg(server)
            .arg(manifests)
            .args(options)
            .current_dir(copy)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let standalone = Self { server };
        until(manifests, TIMEOUT, async || {
            let [program, arguments @ ..] = &standalone.wrapper()?[..] else { unreachable!("nsenter") };
            let ready = ["curl", "--silent", "--fail", "http://127.0.0.1:3001/readyz"];
            let status = Command::new(program).args(arguments).args(ready).stdout(Stdio::null()).status().await?;
            ensure!(status.success(), "not ready");
            Ok(())
        })
        .await?;
        Ok(standalone)
    }

    /// Returns the program that runs commands in the namespace.
    fn wrapper(&self) -> Result<Vec<String>> {
        let namespace = format!("--net=/proc/{}/ns/net", self.server.id().context("the server has ended")?);
        Ok(vec!["nsenter".to_owned(), namespace])
    }
}

#[tokio::test]
async fn the_commands_for_a_folder_work_as_written() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    for (page, manifests, options) in FOLDER {
        let folder = Folder::new(&format!("docs-{}", page.replace(['/', '.'], "-")))?;
        let (copy, installed) = (working_copy(&folder)?, installed(&folder, &[])?);
        let standalone = Standalone::start(&copy, manifests, options).await?;
        let mut console = Console::new(&copy, &[&installed], TIMEOUT).wrapper(standalone.wrapper()?);
        walk(&mut console, page, &parts(page)?.1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_commands_without_a_server_work_as_written() -> Result<()> {
    for page in COMMANDS {
        let folder = Folder::new(&format!("docs-{}", page.replace(['/', '.'], "-")))?;
        let mut console = Console::new(&working_copy(&folder)?, &[&installed(&folder, &[])?], TIMEOUT);
        walk(&mut console, page, &read(page)?).await?;
    }
    Ok(())
}

/// Returns the Markdown files below a folder.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension() == Some(OsStr::new("md")) {
            found.push(path);
        }
    }
    Ok(found)
}

#[test]
fn each_page_with_commands_is_run_by_a_test() -> Result<()> {
    let over_folders = FOLDER.map(|(page, ..)| page);
    let tested: Vec<_> = CLUSTER.into_iter().chain(over_folders).chain(COMMANDS).chain([FLOWS]).collect();
    let mut used = [false; NOT_RUN.len()];
    for path in pages(&repository().join("docs"))?.into_iter().chain([repository().join("README.md")]) {
        let page = path.strip_prefix(repository())?.display().to_string();
        let text = read(&page)?;
        let ignored = ignored_commands(&text);
        ensure!(ignored.is_empty(), "{page}: no test runs commands outside of `console` blocks: {ignored:?}");
        for step in steps(&text) {
            for (used, (start, _)) in used.iter_mut().zip(NOT_RUN) {
                *used |= step.command.starts_with(start);
            }
            let is_tested = tested.contains(&page.as_str()) || !is_run(&step.command);
            ensure!(is_tested, "{page}: no test runs this command: $ {}", step.command);
        }
    }
    let unused: Vec<_> = NOT_RUN.iter().zip(used).filter(|(_, used)| !used).collect();
    ensure!(unused.is_empty(), "no page has these commands: {unused:?}");
    Ok(())
}
