//! The sample component of the examples, whose configuration is policies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};

use crate::Image;

/// The image that the manifests in `examples/configuration` name.
pub const REFERENCE: &str = "docker.io/proviso/sample-component:1";

/// Returns the image of the sample component, and builds its program once.
///
/// # Errors
/// If Go is missing, or the build fails.
pub fn image() -> Result<Image> {
    Ok(Image::new(REFERENCE).file(program()?, "/component").entrypoint(["/component", "serve"]))
}

/// Returns the path of the program.
fn program() -> Result<PathBuf> {
    static PROGRAM: Mutex<Option<PathBuf>> = Mutex::new(None);
    // Several flows need the program at the same time. One of them builds it, and the others wait.
    let mut built = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = &*built {
        return Ok(program.clone());
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let program = repository.join("target/sample-component");
    // Several test programs may build it at the same time, so each one has a file of its own until the build has succeeded.
    let unfinished = program.with_extension(std::process::id().to_string());
    let output = Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(&unfinished)
        .arg("main.go")
        .current_dir(repository.join("examples/configuration/component"))
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .output()
        .context("running go: install Go (https://go.dev/doc/install)")?;
    ensure!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&unfinished, &program)?;
    Ok(built.insert(program).clone())
}
