//! `proviso experiment`.

mod commit;
mod create;
mod delete;
mod difference;
mod preview;
mod session;
mod status;
mod subject;
mod to_file;
mod watch;

use std::process::ExitCode;

use self::difference::difference;
use self::session::{Session, with_policy};
use super::print;
use crate::arguments::Experiment;
use crate::error::Error;

pub async fn run(session: &Session, command: &Experiment) -> Result<ExitCode, Error> {
    match command {
        Experiment::Create(arguments) => create::run(session, arguments).await,
        Experiment::Start(arguments) => preview::start(session, arguments).await,
        Experiment::Stop(arguments) => preview::stop(session, arguments).await,
        Experiment::Status(arguments) => status::run(session, arguments).await,
        Experiment::Diff { experiment } => {
            let (experiment, policy) = with_policy(session, experiment).await?;
            print(&difference(&experiment, &policy)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Experiment::Commit(arguments) => commit::run(session, arguments).await,
        Experiment::Delete { experiment, yes } => delete::run(session, experiment, *yes).await,
    }
}
