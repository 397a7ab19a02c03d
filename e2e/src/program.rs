//! The programs of this workspace, as the same build has left them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Where cargo has put a program of the workspace, seen from a test: `cargo build --workspace --bins` makes it.
///
/// # Errors
/// If it is not there.
pub fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("where this test is")?;
    let folder = test.parent().and_then(Path::parent).context("a test outside of the target folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} is missing: cargo build --workspace --bins", program.display());
    Ok(program)
}

/// A copy of a program without what only debuggers read, which is most of it.
///
/// # Errors
/// If `strip` of the binutils is missing or fails.
pub fn strip(program: &Path, copy: &Path) -> Result<()> {
    let output = Command::new("strip").arg("-o").arg(copy).arg(program).output();
    let output = output.context("running strip: install binutils")?;
    ensure!(output.status.success(), "strip {}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
