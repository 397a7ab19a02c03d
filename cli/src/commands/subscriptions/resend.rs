//! `proviso subscriptions resend`: requests that all policies of a component are sent again, and waits for the answer of the component.

use std::process::ExitCode;
use std::time::Instant;

use uuid::Uuid;

use crate::arguments::Resend;
use crate::backend::Backend;
use crate::commands::follow::POLL_INTERVAL;
use crate::commands::{Session, print};
use crate::error::Error;
use crate::objects::{SubscriptionName, SubscriptionObject};
use crate::render;
use crate::report::{DeliveryState, ItemReport, ItemState, SubscriptionReport};

pub(super) async fn run(session: &Session<Backend>, arguments: &Resend) -> Result<ExitCode, Error> {
    let subscription = session.backend.find_subscription(&arguments.subscription.0).await?;
    let name = &subscription.name;
    let value = session.backend.request_resend(&subscription, Uuid::new_v4().to_string()).await?;
    if !arguments.wait {
        let follow = format!("{} subscriptions status {} -n {} --watch", session.program, name.name, name.namespace);
        print_line(name, &format!("the policies are sent again; follow it: {follow}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(name, "the policies are sent again")?;
    let start = Instant::now();
    let mut last = None;
    loop {
        match session.backend.reload_subscription(&subscription).await {
            Ok(Some(object)) if object.uid == subscription.uid => {
                let report = SubscriptionReport::new(&object);
                if let Some(state) = outcome(&object, &report, &value) {
                    print_line(name, &message(&report))?;
                    let is_delivered = state == DeliveryState::Delivered;
                    return Ok(if is_delivered { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
                last = Some(report);
            }
            Ok(_) => {
                print_line(name, "it was deleted meanwhile")?;
                return Ok(ExitCode::FAILURE);
            }
            // The last state is still valid while the server does not answer.
            Err(error) if error.is_unanswered() => {}
            Err(error) => return Err(error),
        }
        if start.elapsed() > arguments.timeout {
            print_line(name, &format!("no answer in time: {}", last.as_ref().map(message).unwrap_or_default()))?;
            return Ok(ExitCode::FAILURE);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the state after the resend; `None` if the resend has not ended. A failed update is sent again, so the resend goes on.
/// The status of a subscription whose resend has begun has this `value`.
fn outcome(object: &SubscriptionObject, report: &SubscriptionReport, value: &str) -> Option<DeliveryState> {
    let status = &object.status;
    if status.observed_resend.as_deref() != Some(value) || !status.unconfirmed.is_empty() {
        return None;
    }
    match report.state {
        DeliveryState::Pending => None,
        // A rejection of one policy: the others may still be on their way.
        DeliveryState::Rejected if ItemReport::list(object).iter().any(is_on_its_way) => None,
        state => Some(state),
    }
}

fn is_on_its_way(item: &ItemReport) -> bool {
    matches!(item.state, ItemState::Pending | ItemState::Unconfirmed)
}

fn message(report: &SubscriptionReport) -> String {
    match &report.problem {
        Some(problem) => format!("{}: {}: {}", report.summary, problem.reason, problem.message),
        None => report.summary.clone(),
    }
}

fn print_line(name: &SubscriptionName, line: &str) -> Result<(), Error> {
    print(&format!("{name}: {}\n", render::printable(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::subscription;
    use serde_json::json;

    #[test]
    fn a_resend_ends_with_the_answer_to_this_request() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let status = |resend: &str, delivered: &str, reason: &str| {
            let condition = |type_: &str, status: &str, reason: &str| {
                json!({
                    "type": type_, "status": status, "reason": reason, "message": "m",
                    "lastTransitionTime": "2026-11-21T09:30:00Z",
                })
            };
            json!({
                "observedResend": resend, "observedGeneration": 1,
                "conditions": [condition("Resolved", "True", "Resolved"), condition("Delivered", delivered, reason)],
            })
        };
        let mut unconfirmed = status("new", "True", "Delivered");
        unconfirmed["unconfirmed"] = json!(["cluster.memory"]);
        let mut rejected = status("new", "False", "Rejected");
        rejected["rejected"] = json!([{"id": "cluster.memory", "version": "2", "digest": digest, "message": "no"}]);
        rejected["pending"] = json!([{"id": "cluster.memory", "version": "2"}]);
        let mut partial = rejected.clone();
        partial["pending"] = json!([{"id": "cluster.memory", "version": "2"}, {"id": "cluster.other", "version": "1"}]);
        for (status, wanted) in [
            (json!(null), None),
            (status("old", "True", "Delivered"), None),
            (unconfirmed, None),
            (status("new", "False", "Delivering"), None),
            (status("new", "True", "Delivered"), Some(DeliveryState::Delivered)),
            (rejected, Some(DeliveryState::Rejected)),
            (partial, None),
            (status("new", "False", "ConfigMapConflict"), Some(DeliveryState::Failed)),
        ] {
            let object = subscription(1, &status);
            let state = outcome(&object, &SubscriptionReport::new(&object), "new");
            assert_eq!(state, wanted, "{status}");
        }
    }
}
