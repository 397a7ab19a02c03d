//! Runs cases that others wrote against this crate's Rego: OPA's case files.

#[path = "opa.rs"]
pub mod opa;

use std::path::{Path, PathBuf};

/// How an answer of ours compares with the one that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The same.
    Passed,
    /// Refused when it was compiled: nothing is decided.
    Refused(String),
    /// An error where there should be an answer: a denial.
    Denied(String),
    /// An answer where there should be an error.
    Looser(String),
    /// Another answer.
    Different(String),
}

/// One case and what came of it.
#[derive(Debug)]
pub struct Run {
    pub folder: String,
    pub name: String,
    pub outcome: Outcome,
}

/// Runs every case file below a folder.
pub fn run(folder: &Path) -> Result<Vec<Run>, String> {
    let mut files = Vec::new();
    collect(folder, &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    files.sort();
    let mut runs = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let place = file.parent().and_then(|parent| parent.strip_prefix(folder).ok()).unwrap_or(Path::new(""));
        let place = place.to_string_lossy().into_owned();
        if text.lines().any(|line| line.trim_end() == "cases:") {
            let cases = opa::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            runs.extend(cases.into_iter().map(|case| Run {
                folder: place.clone(),
                outcome: case.outcome(),
                name: case.note,
            }));
        }
    }
    Ok(runs)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
        }
    }
    Ok(())
}
