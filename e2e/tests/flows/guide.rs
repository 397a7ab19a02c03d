//! What the guide says to type, as it stands there.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use proviso_e2e::until;
use tokio::process::Command;

use crate::stage::{PATIENCE, Stage};

/// A command, and the lines that come of it; `…` stands for whatever there is.
struct Step {
    command: String,
    lines: Vec<String>,
}

pub async fn the_guide_of_experiments_as_written(stage: &Stage) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = std::fs::read_to_string(repository.join("docs/guide/experiments.md"))?;
    let (_, walk) = guide.split_once("## The three uses, step by step").context("the guide has no such part")?;
    let steps = steps(walk);
    ensure!(steps.len() > 20, "only {} commands", steps.len());
    for step in &steps {
        if step.lines.is_empty() {
            // Once: it may wait for something itself.
            let (is_done, said) = run(stage, &repository, &step.command).await?;
            ensure!(is_done, "{}: {said}", step.command);
            continue;
        }
        // A status follows what happens a moment later.
        until(&step.command, PATIENCE, async || {
            let (is_done, said) = run(stage, &repository, &step.command).await?;
            let missing = step.lines.iter().find(|line| !said.lines().any(|found| is_like(found, line)));
            if let Some(line) = missing {
                bail!("no {line:?} in\n{said}");
            }
            // What the guide says is denied fails.
            ensure!(is_done || step.lines.iter().any(|line| line.contains("denied")), "{said}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let blocks = text.split("```console\n").skip(1).filter_map(|block| block.split("```").next());
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), lines: Vec::new() }),
            (None, Some(step)) => step.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    steps
}

/// Whether the parts between the `…` are there in this order, whatever space is between their words.
fn is_like(found: &str, wanted: &str) -> bool {
    let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = spaced(found);
    let mut rest = found.as_str();
    wanted.split('…').map(spaced).all(|part| match rest.split_once(&part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// Runs a command in a shell that finds kubectl and its plugin; whether it did what it should, and what it said.
async fn run(stage: &Stage, repository: &Path, command: &str) -> Result<(bool, String)> {
    let folders = [Some(stage.plugins.as_path()), stage.kubectl.program().parent()];
    let mut path = OsString::new();
    for folder in folders.into_iter().flatten() {
        path.push(folder);
        path.push(":");
    }
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(repository)
        .env("PATH", path)
        .env("KUBECONFIG", stage.node.kubeconfig())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(said)?))
}
