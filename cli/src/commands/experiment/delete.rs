//! `proviso experiment delete`.

use std::process::ExitCode;

use super::super::ask;
use super::session::{Session, find, say};
use crate::error::Error;
use crate::policy_ref::ExperimentRef;
use crate::report::ExperimentReport;

pub async fn run(session: &Session, reference: &ExperimentRef, is_confirmed: bool) -> Result<ExitCode, Error> {
    ask::check(is_confirmed)?;
    let experiment = find(session, reference).await?;
    if !is_confirmed {
        let report = ExperimentReport::new(&experiment);
        say(&experiment, &format!("{}; {}", report.state_in_words(), report.summary))?;
        let counts = if report.divergence.is_some() { " What was counted goes with it." } else { "" };
        if !ask::ask(&format!("Delete {}?{counts}", experiment.id))? {
            say(&experiment, "it was not deleted")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    session.at.delete(&experiment).await?;
    say(&experiment, &format!("deleted; {} stays as it is", experiment.policy))?;
    Ok(ExitCode::SUCCESS)
}
