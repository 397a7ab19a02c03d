//! `proviso subscriptions status`.

use std::process::ExitCode;

use crate::arguments::SubscriptionStatus;
use crate::backend::Backend;
use crate::commands::{Session, in_form, print, watch};
use crate::error::Error;
use crate::render;
use crate::report::{DeliveryState, ItemReport, SubscriptionDetail};

/// The exit code while the delivery goes on.
const EXIT_PENDING: u8 = 3;

pub(super) async fn run(session: &Session<Backend>, arguments: &SubscriptionStatus) -> Result<ExitCode, Error> {
    let read = async || detail(session, arguments).await;
    let report = read().await?;
    let form = arguments.output.output;
    let text =
        |report: &SubscriptionDetail| in_form(report, form, || render::subscription(report, &session.view(form)));
    if !arguments.watch {
        print(&text(&report)?)?;
        return Ok(exit_code(report.subscription.state));
    }
    let show = |report: &SubscriptionDetail| watch::show(report, form, || text(report));
    match watch::watch(session.program, report, read, show).await? {}
}

async fn detail(session: &Session<Backend>, arguments: &SubscriptionStatus) -> Result<SubscriptionDetail, Error> {
    let backend = &session.backend;
    let subscription = backend.find_subscription(&arguments.subscription.0).await?;
    let items = ItemReport::list(&subscription);
    let (bodies, unseen) = if arguments.diff {
        let (bodies, unseen) = backend.bodies(&subscription, &items).await?;
        (Some(bodies.compare(&items)?), unseen)
    } else {
        (None, Vec::new())
    };
    Ok(SubscriptionDetail::new(&subscription, items, bodies, unseen, session.program))
}

fn exit_code(state: DeliveryState) -> ExitCode {
    match state {
        DeliveryState::Delivered => ExitCode::SUCCESS,
        DeliveryState::Pending => ExitCode::from(EXIT_PENDING),
        DeliveryState::Rejected | DeliveryState::Failed => ExitCode::FAILURE,
    }
}
