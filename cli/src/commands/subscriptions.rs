//! `proviso subscriptions`.

mod list;
mod resend;
mod status;

use std::process::ExitCode;

use super::Session;
use crate::arguments::Subscription;
use crate::backend::Backend;
use crate::error::Error;

pub async fn run(session: &Session<Backend>, command: &Subscription) -> Result<ExitCode, Error> {
    match command {
        Subscription::List(arguments) => list::run(session, arguments).await,
        Subscription::Status(arguments) => status::run(session, arguments).await,
        Subscription::Resend(arguments) => resend::run(session, arguments).await,
    }
}
