//! `proviso subscriptions list`.

use std::process::ExitCode;

use crate::arguments::SubscriptionList;
use crate::backend::Backend;
use crate::commands::{Session, in_form, print, watch};
use crate::error::Error;
use crate::render;
use crate::report::SubscriptionOverview;

pub(super) async fn run(session: &Session<Backend>, arguments: &SubscriptionList) -> Result<ExitCode, Error> {
    let read = async || {
        let found = session.backend.subscriptions(arguments.all_namespaces).await?;
        Ok::<_, Error>(SubscriptionOverview::new(found))
    };
    let report = read().await?;
    let form = arguments.output.output;
    let text = |report: &SubscriptionOverview| {
        let namespace = (!arguments.all_namespaces).then(|| session.backend.namespace());
        in_form(report, form, || render::subscriptions(report, namespace, &session.view(form)))
    };
    if !arguments.watch {
        print(&text(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let show = |report: &SubscriptionOverview| watch::show(report, form, || text(report));
    match watch::watch(session.program, report, read, show).await? {}
}
