//! Requests to services that are Kubernetes objects: the request policies of the table decide about an admission review.

use std::sync::Arc;
use std::time::Instant;

use proviso_core::{Failure, Reason, Review, Verdict};
use proviso_crds::tenant;
use proviso_engines::{EvaluationError, Shortage};
use tokio::time::timeout_at;

use super::{Purpose, Refusal, evaluate};
use crate::budgets::QUEUE_TIME;
use crate::decide::NoVerdict;
use crate::program::ObjectRequests;
use crate::table::{Origin, Revision, Table};

/// A policy that covers the request has no generation that works.
const UNSERVED: Reason = Reason::new("Unserved");
/// This replica does not know everything yet that the decision depends on.
const NOT_READY: Reason = Reason::new("NotReady");
/// The share of a policy of the chain is in use.
const OVERLOADED: Reason = Reason::new("Overloaded");

/// Returns the verdict of the live request policies of a table about the object of a review, within the time limit of the revision
/// whose program they are. For an answer, the caller holds no place, because the policies take places of their own.
///
/// # Errors
/// Returns an error if a policy fails or has no generation that works, at the end of the time limit, or if this server cannot evaluate
/// the request now.
pub async fn evaluate_object(
    table: &Table,
    requests: &ObjectRequests,
    revision: &Revision,
    review: &Review,
    purpose: Purpose<'_>,
) -> Result<Verdict, NoVerdict> {
    if !table.is_complete {
        // Without all policies, the chain would allow too much.
        return Err(Failure::new(NOT_READY, "the policies are still being loaded: try again").into());
    }
    let request = match requests.binding.request(review, tenant_of(table, review)?) {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(Verdict::allow()),
        Err(error) => return Ok(error.verdict()),
    };
    let payload = request.payload().clone();
    let deadline = Instant::now() + revision.timeout;
    let evaluation = Box::pin(evaluate(table, request, Arc::clone(&requests.cache), deadline, purpose));
    // The policy that runs at the deadline ends the chain, and is named. A policy that waits for a place then ends here.
    let outcome = timeout_at((deadline + QUEUE_TIME).into(), evaluation)
        .await
        .map_err(|_| Failure::from(&EvaluationError::DeadlineExceeded))?
        .map_err(|refusal| match refusal {
            // An HTTP error would let the object pass under `failurePolicy: Ignore`, and each tenant can use up the share of its own
            // policies.
            Refusal::Overloaded if matches!(purpose, Purpose::Answer { .. }) => {
                Failure::new(OVERLOADED, format!("{refusal}: try again")).into()
            }
            Refusal::Overloaded => NoVerdict::Overloaded(Shortage::Cpu),
            Refusal::Unserved { .. } => Failure::new(UNSERVED, refusal.to_string()).into(),
            Refusal::NotLoaded { .. } => Failure::new(NOT_READY, refusal.to_string()).into(),
        })?;
    Ok(requests.binding.verdict(&payload, &outcome)?)
}

/// Returns the tenant of the namespace of an object; `None` for an object without a namespace.
fn tenant_of(table: &Table, review: &Review) -> Result<Option<String>, Failure> {
    let Some(namespace) = review.head().map(|head| head.namespace.as_str()).filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    // The label of a namespace that this replica does not know yet may name a tenant, whose policies bind the request.
    if matches!(table.origin, Origin::Cluster(_)) && !table.namespaces.contains_key(namespace) {
        let message = format!("the labels of the namespace {namespace} are not known yet: try again");
        return Err(Failure::new(NOT_READY, message));
    }
    Ok(Some(tenant(namespace, table.namespaces.get(namespace)).to_owned()))
}
