//! `proviso experiment delete`.

use std::process::ExitCode;

use super::super::confirm;
use super::session::{Session, find, print_line};
use crate::error::Error;
use crate::policy_ref::ExperimentRef;
use crate::report::ExperimentReport;

pub async fn run(session: &Session, reference: &ExperimentRef, is_confirmed: bool) -> Result<ExitCode, Error> {
    confirm::check(is_confirmed)?;
    let experiment = find(session, reference).await?;
    if !is_confirmed {
        let report = ExperimentReport::new(&experiment);
        print_line(&experiment, &format!("{}; {}", report.state_label(), report.summary))?;
        let counts = if report.divergence.is_some() { " Its counts are deleted too." } else { "" };
        if !confirm::ask(&format!("Delete {}?{counts}", experiment.id))? {
            print_line(&experiment, "it was not deleted")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    session.backend.delete(&experiment).await?;
    print_line(&experiment, &format!("deleted; {} is unchanged", experiment.policy))?;
    Ok(ExitCode::SUCCESS)
}
