//! The session of the commands about experiments.

use crate::backend::Backend;
use crate::commands::{self, print};
use crate::error::Error;
use crate::experiment::error::ExperimentError;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::policy_ref::ExperimentRef;
use crate::render;

/// The session of the commands about experiments, which use a cluster or a server.
pub type Session = commands::Session<Backend>;

/// Finds the experiment that the user names.
///
/// # Errors
/// When no experiment or more than one has this name, or a request fails.
pub(super) async fn find(
    session: &Session,
    ExperimentRef(reference): &ExperimentRef,
) -> Result<ExperimentObject, Error> {
    session.backend.find_experiment(reference).await
}

/// Finds the experiment that the user names, and its policy.
///
/// # Errors
/// When no experiment or more than one has this name, the policy does not exist, or a request fails.
pub(super) async fn with_policy(
    session: &Session,
    reference: &ExperimentRef,
) -> Result<(ExperimentObject, PolicyObject), Error> {
    let experiment = find(session, reference).await?;
    let policy = session.backend.policy_of(&experiment).await?;
    let policy = policy.ok_or_else(|| ExperimentError::NoPolicy {
        experiment: experiment.id.clone(),
        policy: experiment.policy.clone(),
    })?;
    Ok((experiment, policy))
}

/// Prints a line about an experiment.
///
/// # Errors
/// When the output cannot be written.
pub(super) fn print_line(experiment: &ExperimentObject, text: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", experiment.id, render::printable(text)))
}
