//! Functions that run the program without a cluster.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// The exit code and the output of the program.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Returns the path of the folder `examples`.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

/// Runs the program in a folder, with `input` as standard input.
pub fn proviso_in(folder: &Path, arguments: &[&str], input: &str) -> Result<Output> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_proviso"))
        .args(arguments)
        .current_dir(folder)
        .env("KUBECONFIG", "/nowhere")
        .env_remove("PROVISO_SOURCES")
        .env_remove("PROVISO_PULL_SECRETS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A program that reads no input may have ended already, so that this write fails.
    let _ = process.stdin.take().context("stdin")?.write_all(input.as_bytes());
    let result = process.wait_with_output()?;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ok(Output { code: result.status.code(), out: text(result.stdout), err: text(result.stderr) })
}

/// Runs the program in the folder `examples`.
pub fn proviso(arguments: &[&str]) -> Result<Output> {
    proviso_in(&examples(), arguments, "")
}

/// Writes a file into a folder, and returns its path.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<String> {
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok(file.to_str().context("UTF-8")?.to_owned())
}
