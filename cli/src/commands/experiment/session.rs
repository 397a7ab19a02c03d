//! The session of the commands about experiments.

use crate::backend::Backend;
use crate::commands::{self, print};
use crate::error::Error;
use crate::experiment::error::ExperimentError;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::policy_ref::ExperimentRef;
use crate::render;

/// The commands about experiments work in a cluster and with a server.
pub type Session = commands::Session<Backend>;

/// Finds the experiment that a person names.
///
/// # Errors
/// When there is none, or there are two.
pub(super) async fn find(
    session: &Session,
    ExperimentRef(reference): &ExperimentRef,
) -> Result<ExperimentObject, Error> {
    session.at.find_experiment(reference).await
}

/// Finds the experiment that a person names, and its policy.
///
/// # Errors
/// When there is none, there are two, or the policy does not exist.
pub(super) async fn with_policy(
    session: &Session,
    reference: &ExperimentRef,
) -> Result<(ExperimentObject, PolicyObject), Error> {
    let experiment = find(session, reference).await?;
    let policy = session.at.policy_of(&experiment).await?;
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
pub(super) fn say(experiment: &ExperimentObject, what: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", experiment.id, render::printable(what)))
}
