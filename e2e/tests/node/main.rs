//! Tests with the programs of a full node. All but those of the charts need root: `make e2e`.

mod charts;
mod docs;
mod pods;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use proviso_e2e::Node;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns true if the test cannot run here, and prints the reason past the capture of the test runner. In CI that is an error.
fn is_skipped() -> Result<bool> {
    if Node::is_possible() {
        return Ok(false);
    }
    let reason = "skipped: a full node needs root";
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("{reason}");
    }
    writeln!(std::io::stderr(), "{reason}")?;
    Ok(true)
}
