//! Builds a component into the cache. This file is part of what a build depends on: a change of it builds anew.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::Component;
use crate::say;

/// The Go that the modules ask for.
const GO: (u32, u32) = (1, 26);
/// How often a build says how far it is.
const PROGRESS: Duration = Duration::from_secs(15);

/// Builds into a folder beside the final one and renames it: half a build is never taken for a whole one. Of several
/// processes that want the same, one builds and the others wait.
pub(super) fn build(component: Component, folder: &Path) -> Result<()> {
    let cache = folder.parent().context("the cache is not the root folder")?;
    std::fs::create_dir_all(cache).with_context(|| format!("making the cache {}", cache.display()))?;
    let lock = File::create(folder.with_added_extension("lock"))?;
    if lock.try_lock().is_err() {
        say(&format!("waiting for another process that builds {}", component.name()));
        lock.lock()?;
    }
    if folder.exists() {
        return Ok(());
    }
    let unfinished = folder.with_added_extension("unfinished");
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    std::fs::create_dir_all(&unfinished)?;
    check_go()?;
    compile(component, &unfinished)?;
    let [program, links @ ..] = component.programs() else { bail!("{component:?} has no programs") };
    for link in links {
        std::os::unix::fs::symlink(program, unfinished.join(link))?;
    }
    std::fs::rename(&unfinished, folder)?;
    Ok(())
}

/// The remedy is the same for no Go and an old one.
fn check_go() -> Result<()> {
    let remedy = format!(
        "Kubernetes is built from source for the tests: install Go {}.{} or later (https://go.dev/doc/install), or set \
         KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, or PROVISO_E2E_KUBECONFIG to use a cluster of yours",
        GO.0, GO.1
    );
    let output = Command::new("go").args(["env", "GOVERSION"]).output();
    let output = output.with_context(|| format!("there is no `go` in PATH. {remedy}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut parts = version.trim_start_matches("go").split(['.', '-', ' ']).map(|part| part.parse().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    // An older Go (1.21 and later) fetches the one that go.mod asks for, unless it was told not to.
    let fetches = found >= (1, 21) && std::env::var("GOTOOLCHAIN").is_ok_and(|value| value != "local");
    ensure!(found >= GO || fetches, "`go` is {version}. {remedy}");
    Ok(())
}

fn go(component: Component) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(component.source())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly -buildvcs=false -trimpath")
        .env("GOWORK", "off")
        .stdin(Stdio::null());
    command
}

/// The package that is the program: our own where there is one, else the tool that `go.mod` names.
fn package(component: Component) -> &'static str {
    if matches!(component, Component::Kubernetes | Component::Pod) { "." } else { "tool" }
}

fn compile(component: Component, folder: &Path) -> Result<()> {
    let (name, version) = (component.name(), component.version()?);
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs();
    say(&format!("building {name} {version} from source, once"));
    let total = packages(component)?;
    let program = folder.join(component.programs()[0]);
    let mut child = go(component)
        .args(["build", "-v", "-ldflags", &linker_flags(component, &version)?, "-o"])
        .args([program.as_os_str(), package(component).as_ref()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // A line for each package as it is compiled, and the errors.
    let mut lines = Vec::new();
    let mut said = Instant::now();
    for line in BufReader::new(child.stderr.take().context("its stderr")?).lines().map_while(Result::ok) {
        lines.push(line);
        if said.elapsed() > PROGRESS {
            said = Instant::now();
            say(&format!("building {name}: {} of at most {total} packages, {} s", lines.len(), seconds()));
        }
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "building {name} failed ({status}):\n{}",
        lines[lines.len().saturating_sub(20)..].join("\n")
    );
    say(&format!("built {name} {version} in {} s", seconds()));
    Ok(())
}

/// Fetches what is missing, and counts what there is to compile.
fn packages(component: Component) -> Result<usize> {
    let mut child = go(component).args(["list", "-deps", package(component)]).stdout(Stdio::piped()).spawn()?;
    let mut list = String::new();
    child.stdout.take().context("its stdout")?.read_to_string(&mut list)?;
    ensure!(child.wait()?.success(), "`go list` failed in {}", component.source().display());
    Ok(list.lines().count())
}

/// Without its version a Kubernetes API server says `v0.0.0-master`, which charts with a `kubeVersion` refuse.
fn linker_flags(component: Component, version: &str) -> Result<String> {
    let mut flags = String::from("-s -w");
    let mut set = |variable: &str, value: &str| {
        flags.push_str(" -X ");
        flags.push_str(variable);
        flags.push('=');
        flags.push_str(value);
    };
    match component {
        Component::Kubernetes => {
            let mut numbers = version.trim_start_matches('v').split('.');
            let (major, minor) = numbers.next().zip(numbers.next()).context("a version has two dots")?;
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                set(&format!("{package}.gitVersion"), version);
                set(&format!("{package}.gitMajor"), major);
                set(&format!("{package}.gitMinor"), minor);
                set(&format!("{package}.gitTreeState"), "clean");
            }
        }
        Component::Helm => set("helm.sh/helm/v4/internal/version.version", version),
        Component::Registry => set("github.com/distribution/distribution/v3/version.version", version),
        Component::Etcd | Component::CoreDns | Component::Pod => {}
    }
    Ok(flags)
}
