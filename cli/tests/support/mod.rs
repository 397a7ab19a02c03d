//! Runs the program without a cluster.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// What the program said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

pub fn proviso_in(folder: &Path, arguments: &[&str], input: &str) -> Result<Said> {
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
    // One that reads nothing may be gone already.
    let _ = process.stdin.take().context("stdin")?.write_all(input.as_bytes());
    let output = process.wait_with_output()?;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ok(Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}

pub fn proviso(arguments: &[&str]) -> Result<Said> {
    proviso_in(&examples(), arguments, "")
}

pub fn write(folder: &Path, name: &str, text: &str) -> Result<String> {
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok(file.to_str().context("UTF-8")?.to_owned())
}
