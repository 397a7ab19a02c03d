//! One request to one revision: covered or not, evaluated under its budget, enforced, counted and logged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use proviso_core::matching::{Coverage, Labels};
use proviso_core::review::Operation;
use proviso_core::{Action, Failure, Review, Verdict};
use proviso_engines::{Deadline, EvaluationError};

use crate::metrics::Outcome;
use crate::table::Revision;

/// The key of the audit annotation that says why a policy was not asked.
const NOT_ASKED: &str = "not-asked";

/// The server has no room for this evaluation: its caller may try again.
#[derive(Clone, Copy, Debug)]
pub struct Overloaded;

/// Why a revision need not be asked about a request; none where it must.
///
/// # Errors
/// When conditions that nobody has looked at before come to no decision.
pub async fn exemption(
    revision: &Revision,
    review: &Review,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Option<Cow<'static, str>>, EvaluationError> {
    if !revision.enabled {
        return Ok(Some("spec.enabled is false".into()));
    }
    if let Coverage::NotCovered { why } = revision.matching.covers(review, |name| namespaces.get(name)) {
        return Ok(Some(why.into()));
    }
    // Conditions are about requests of Kubernetes; of others nothing but the program knows.
    if revision.asks_conditions && review.head().is_some() && left_out(revision, review).await? {
        return Ok(Some("spec.admission.matchConditions leave the request out".into()));
    }
    Ok(None)
}

/// Whether the revision's `matchConditions` leave the request out.
///
/// # Errors
/// When they come to no decision.
pub async fn left_out(revision: &Revision, review: &Review) -> Result<bool, EvaluationError> {
    let Some(conditions) = &revision.conditions else { return Ok(false) };
    let by = conditions.leave_out(review, Deadline::after(revision.timeout)).await.map_err(|(_, error)| error)?;
    Ok(by.is_some())
}

/// The verdict of the live revision, as it leaves.
///
/// # Errors
/// When every place for an evaluation stayed taken.
pub async fn decide(
    revision: &Revision,
    review: &Review,
    action: Action,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Verdict, Overloaded> {
    let start = Instant::now();
    let exemption = exemption(revision, review, namespaces).await;
    if let Ok(Some(why)) = exemption {
        revision.metrics.observe(Outcome::Skipped, None);
        tracing::debug!(policy = %revision.policy, request_uid = review.uid(), reason = %why, "policy not asked");
        return Ok(Verdict {
            audit_annotations: [(NOT_ASKED.to_owned(), why.into_owned())].into(),
            ..Verdict::allow()
        });
    }
    let result = match exemption {
        Ok(_) => evaluate(revision, review).await,
        Err(error) => Err(error),
    };
    let duration = start.elapsed();
    let failed = match &result {
        Err(EvaluationError::Overloaded) => return Err(Overloaded),
        Err(error) => Some(Failure::from(error)),
        Ok(_) => None,
    };
    let decided = result.unwrap_or_else(|error| Failure::from(&error).verdict());
    let denied = !decided.allowed;
    let denial = decided.message.clone();
    let verdict = if action == Action::Audit { decided } else { decided.enforce(&revision.enforcement) };
    let outcome = match (&failed, denied, &verdict) {
        (Some(_), ..) => Outcome::Failed,
        (None, true, verdict) if verdict.allowed => Outcome::Monitored,
        (None, _, verdict) if !verdict.allowed => Outcome::Denied,
        (None, _, verdict) if verdict.patch.is_some() => Outcome::Mutated,
        _ => Outcome::Allowed,
    };
    revision.metrics.observe(outcome, Some(duration));
    let denial = denial.or_else(|| verdict.message.clone()).unwrap_or_default();
    log(revision, review, outcome, (verdict.allowed, &denial), failed.as_ref(), duration.as_micros());
    Ok(verdict)
}

/// The verdict of a program, before the policy's mode, `mutating` and message apply.
///
/// # Errors
/// When the program comes to no decision.
pub async fn evaluate(revision: &Revision, review: &Review) -> Result<Verdict, EvaluationError> {
    revision.program.evaluate(review, Deadline::after(revision.timeout)).await
}

/// Logs the decision. A line about a denial names the object and the user: the uid of a request stands in no other log but the API
/// server's audit log.
fn log(
    revision: &Revision,
    review: &Review,
    outcome: Outcome,
    (allowed, denial): (bool, &str),
    failed: Option<&Failure>,
    duration_us: u128,
) {
    macro_rules! decision {
        ($level:ident, $message:literal $(, $($field:tt)*)?) => {
            tracing::$level!(
                policy = %revision.policy,
                generation = revision.generation,
                request_uid = review.uid(),
                engine = revision.program.engine(),
                mode = revision.enforcement.mode.as_str(),
                allowed,
                duration_us,
                $($($field)*,)?
                $message
            )
        };
    }
    if failed.is_none() && !matches!(outcome, Outcome::Denied | Outcome::Monitored) {
        decision!(debug, "request allowed");
        return;
    }
    let Some(omitted) = revision.metrics.denials.admit() else { return };
    let head = review.head().cloned().unwrap_or_default();
    let (kind, namespace, name, user) = (head.kind.kind, head.namespace, head.name, head.user.username);
    let operation = head.operation.map(Operation::as_str).unwrap_or_default();
    if let Some(Failure { reason, message }) = failed {
        let (reason, error) = (reason.as_str(), message.as_str());
        decision!(warn, "evaluation failed", reason, error, operation, kind, namespace, name, user, omitted);
    } else {
        decision!(info, "request denied", denial, operation, kind, namespace, name, user, omitted);
    }
}
