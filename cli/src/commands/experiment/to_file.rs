//! `proviso experiment commit --to-file`: writes the policy with the spec of the experiment to a file for a repository, and changes
//! nothing else.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::super::print;
use super::session::Session;
use crate::error::Error;
use crate::experiment::CommitPlan;
use crate::experiment::error::{ExperimentError, Refusal};
use crate::gitops;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::render;
use crate::terminal;

/// Writes the manifest to `file`; to standard output if it is `-`. `page` is the page about the commit, for people.
pub(super) fn run(
    session: &Session,
    file: &Path,
    (experiment, policy): (&ExperimentObject, &PolicyObject),
    plan: &CommitPlan,
    page: &str,
) -> Result<ExitCode, Error> {
    // A commit would be refused too.
    if let Some(failure) = experiment.preparation_failure() {
        let (experiment, cause) = (experiment.id.clone(), failure.to_string());
        let refusal = Refusal::DoesNotWork;
        return Err(ExperimentError::Refused { experiment, action: "commit", refusal, cause }.into());
    }
    let text = gitops::manifest(policy, experiment, plan)?;
    let next = next_steps(session, file, experiment, policy);
    if file == Path::new("-") {
        // Standard output has only the manifest.
        terminal::print_message(page);
        print(&text)?;
        terminal::print_message(&next);
        return Ok(ExitCode::SUCCESS);
    }
    print(page)?;
    write_new(file, &text)?;
    print(&next)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a new file. An existing file is an error, because it may have comments and changes of the user.
fn write_new(file: &Path, text: &str) -> Result<(), Error> {
    let written = std::fs::File::create_new(file).and_then(|mut open| open.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => ExperimentError::FileExists { file: file.to_owned() }.into(),
        _ => Error::file(file, error),
    })
}

/// Returns the message about the file, with the next steps.
fn next_steps(session: &Session, file: &Path, experiment: &ExperimentObject, policy: &PolicyObject) -> String {
    let (program, experiment, policy) = (session.program, &experiment.id, &policy.id);
    let path = file.display().to_string();
    let (target, name) =
        if file == Path::new("-") { ("standard output", "the manifest") } else { (path.as_str(), path.as_str()) };
    let mut steps = vec![
        format!("{experiment}: the policy with its spec was written to {target}; nothing else was changed"),
        format!("- Merge {name} into the repository of {policy}, and let it be applied."),
    ];
    if session.backend.is_cluster() {
        steps.push(format!("- See when it is live: {program} status {policy}"));
    } else {
        steps.push("- The REST API shows no labels: keep those of your manifest.".to_owned());
    }
    steps.push(format!("- Then delete the experiment: {program} experiment delete {experiment}"));
    render::printable(&(steps.join("\n") + "\n")).into_owned()
}
