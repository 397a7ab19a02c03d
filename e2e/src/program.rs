//! The programs of this workspace from the same build.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Returns the path of a program of the workspace, for a test. `cargo build --workspace --bins` builds it.
///
/// # Errors
/// If the program does not exist.
pub fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("the path of this test")?;
    let folder = test.parent().and_then(Path::parent).context("the test is not in the target folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} is missing: cargo build --workspace --bins", program.display());
    Ok(program)
}

/// Writes a copy of a program without debug information, which is most of its size.
///
/// # Errors
/// If `strip` of the binutils is missing or fails.
pub fn strip(program: &Path, copy: &Path) -> Result<()> {
    let output = Command::new("strip").arg("-o").arg(copy).arg(program).output();
    let output = output.context("running strip: install binutils")?;
    ensure!(output.status.success(), "strip {}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
