//! Runs case files of OPA against the Rego engine of this crate.

#[path = "opa.rs"]
pub mod opa;

use std::path::{Path, PathBuf};

/// The comparison of an answer with the expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answers are equal.
    Passed,
    /// The policy is refused when it is compiled.
    Refused(String),
    /// The evaluation fails, which denies the request, and an answer is expected.
    Denied(String),
    /// The evaluation has an answer, and an error is expected.
    Looser(String),
    /// The answers are different.
    Different(String),
}

/// A case and its outcome.
#[derive(Debug)]
pub struct Run {
    pub folder: String,
    pub name: String,
    pub outcome: Outcome,
}

/// Runs every case file in a folder and its subfolders.
pub fn run(folder: &Path) -> Result<Vec<Run>, String> {
    let mut files = Vec::new();
    collect(folder, &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    files.sort();
    let mut runs = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let subfolder = file.parent().and_then(|parent| parent.strip_prefix(folder).ok()).unwrap_or(Path::new(""));
        let subfolder = subfolder.to_string_lossy().into_owned();
        if text.lines().any(|line| line.trim_end() == "cases:") {
            let cases = opa::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            runs.extend(cases.into_iter().map(|case| Run {
                folder: subfolder.clone(),
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
