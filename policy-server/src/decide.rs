//! The decision of one revision about one request: matching, evaluation within the time limit, enforcement, metrics and log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proviso_core::matching::{Coverage, Labels};
use proviso_core::review::{Operation, REDACTED};
use proviso_core::{Action, Failure, Mode, Review, Verdict};
use proviso_engines::{Deadline, EvaluationError, Shortage};

use crate::budgets::Overloaded;
use crate::metrics::{Outcome, RefusalReason};
use crate::preview::PreviewQueue;
use crate::program::{NO_VERDICT, RevisionProgram};
use crate::requests::{Purpose, evaluate_object};
use crate::table::{Revision, Table};

/// The reason why a request policy is not asked about a review.
const NOT_ABOUT_REVIEWS: &str = "the policy decides about requests to services";

/// The key of the audit annotation that gives the reason why the program of a policy was not evaluated.
const NOT_ASKED: &str = "not-asked";

/// A decision of a revision about a request.
#[derive(Debug)]
pub struct Decision {
    /// The verdict that answers the request.
    pub verdict: Verdict,
    /// The verdict of the program before the mode, `mutating` and the message of the policy apply. Only in the mode Monitor: `None`
    /// in the mode Protect, or if the program was not asked.
    pub unenforced: Option<Box<Verdict>>,
    /// True if the program was asked. False if the policy is disabled or does not cover the request.
    pub was_asked: bool,
}

/// The reason why an evaluation has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoVerdict {
    /// The server cannot evaluate the request now.
    Overloaded(Shortage),
    /// The evaluation failed. The request is denied.
    Failed(Failure),
}

impl From<Failure> for NoVerdict {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<EvaluationError> for NoVerdict {
    fn from(error: EvaluationError) -> Self {
        match error {
            EvaluationError::Overloaded(shortage) => Self::Overloaded(shortage),
            error => Self::Failed(Failure::from(&error)),
        }
    }
}

/// Returns the reason why the program of a revision is not evaluated for a request at its path; `None` if it must be evaluated,
/// unless its `matchConditions` exclude the request.
fn skip_reason(revision: &Revision, review: &Review, namespaces: &BTreeMap<String, Labels>) -> Option<&'static str> {
    let Some(admission) = revision.admission() else { return Some(NOT_ABOUT_REVIEWS) };
    if !admission.is_matched_by_api_server || !revision.enabled {
        return mismatch(revision, review, namespaces);
    }
    // The API server has matched the request with current labels. The labels of namespaces that this replica knows may be older:
    // a second match would allow requests that the policy covers. Only the limits of a namespaced policy are checked again,
    // because its owner may not be allowed to see other requests.
    match admission.matching.covers_by_confinement(review) {
        Coverage::NotCovered { why } => Some(why),
        Coverage::Covered => None,
    }
}

/// Returns the reason why the policy of a revision does not decide about a request, apart from its `matchConditions`.
fn mismatch(revision: &Revision, review: &Review, namespaces: &BTreeMap<String, Labels>) -> Option<&'static str> {
    let Some(admission) = revision.admission() else { return Some(NOT_ABOUT_REVIEWS) };
    if !revision.enabled {
        return Some("spec.enabled is false");
    }
    match admission.matching.covers(review, |name| namespaces.get(name)) {
        Coverage::NotCovered { why } => Some(why),
        Coverage::Covered => None,
    }
}

/// Returns true if this server checks the `matchConditions`, and not an API server. A raw request has no fields that a condition could
/// read.
fn checks_conditions(revision: &Revision, review: &Review) -> bool {
    let admission = revision.admission().filter(|admission| !admission.is_matched_by_api_server);
    admission.is_some_and(|admission| admission.conditions.is_some()) && review.head().is_some()
}

/// Returns the reason why the `matchConditions` exclude a request, if this server checks them.
///
/// # Errors
/// Returns an error if their evaluation fails.
async fn condition_mismatch(revision: &Revision, review: &Review) -> Result<Option<&'static str>, EvaluationError> {
    if checks_conditions(revision, review) && is_excluded_by_conditions(revision, review).await? {
        return Ok(Some("spec.admission.matchConditions exclude the request"));
    }
    Ok(None)
}

/// Returns the reason why the policy of a revision does not decide about a request, as far as this server knows; `None` if the
/// policy decides. In a cluster, the API server evaluates the `matchConditions`.
///
/// # Errors
/// Returns an error if this server checks the `matchConditions` and their evaluation fails.
pub async fn exclusion(
    revision: &Revision,
    review: &Review,
    namespaces: &BTreeMap<String, Labels>,
) -> Result<Option<&'static str>, EvaluationError> {
    match mismatch(revision, review, namespaces) {
        Some(why) => Ok(Some(why)),
        None => condition_mismatch(revision, review).await,
    }
}

/// Returns true if the `matchConditions` of the revision exclude the request.
///
/// # Errors
/// Returns an error if the evaluation of a condition fails and no other condition excludes the request.
pub async fn is_excluded_by_conditions(revision: &Revision, review: &Review) -> Result<bool, EvaluationError> {
    let conditions = revision.admission().and_then(|admission| admission.conditions.as_ref());
    let Some(conditions) = conditions else { return Ok(false) };
    let by = conditions.excludes(review, Deadline::after(revision.timeout)).await.map_err(|(_, error)| error)?;
    Ok(by.is_some())
}

/// Decides about a request at the path of the revision, with the policies of this table. The time limit of the evaluation begins when it
/// has a place. `previews` is the queue of the previews of request policies; `None` if the request must not be previewed.
///
/// # Errors
/// Returns [`Overloaded`] if no place became free in time, if the share of the policy has no memory for the evaluation, or if the
/// evaluation got no CPU before its deadline.
pub async fn decide(
    table: &Table,
    revision: &Revision,
    review: &Review,
    action: Action,
    previews: Option<&PreviewQueue>,
) -> Result<Decision, Overloaded> {
    if let Some(why) = skip_reason(revision, review, &table.namespaces) {
        return Ok(skip(revision, review, why));
    }
    let (asked, duration) = ask(table, revision, review, Purpose::Answer { previews }).await?;
    let (decided, failed) = match asked {
        Ok(Asked::Excluded(why)) => return Ok(skip(revision, review, why)),
        Ok(Asked::Evaluated(verdict)) => (verdict, None),
        Err(NoVerdict::Overloaded(shortage)) => return Err(count_shortage(revision, shortage)),
        Err(NoVerdict::Failed(failure)) => (failure.verdict(), Some(failure)),
    };
    let denied = !decided.allowed;
    let denial = decided.message.clone();
    // The preview of an experiment in the mode Monitor compares this verdict.
    let enforcement = revision.enforcement();
    let is_monitored = action == Action::Validate && enforcement.mode == Mode::Monitor;
    let unenforced = is_monitored.then(|| Box::new(decided.clone()));
    let verdict = if action == Action::Audit { decided } else { decided.enforce(&enforcement) };
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
    Ok(Decision { verdict, unenforced, was_asked: true })
}

/// Counts an evaluation that did not get a resource. Returns its error.
pub fn count_shortage(revision: &Revision, shortage: Shortage) -> Overloaded {
    revision.metrics.places.count_refused(match shortage {
        Shortage::Cpu => RefusalReason::Cpu,
        Shortage::Memory => RefusalReason::Memory,
    });
    Overloaded
}

/// Returns the decision about a request that the program is not asked about, for this reason.
fn skip(revision: &Revision, review: &Review, why: &'static str) -> Decision {
    revision.metrics.observe(Outcome::Skipped, None);
    tracing::debug!(policy = %revision.policy, request_uid = review.uid(), reason = why, "policy not asked");
    let verdict = Verdict { audit_annotations: [(NOT_ASKED.to_owned(), why.to_owned())].into(), ..Verdict::allow() };
    Decision { verdict, unenforced: None, was_asked: false }
}

/// The answer of a revision.
enum Asked {
    /// The `matchConditions` exclude the request, for this reason.
    Excluded(&'static str),
    Evaluated(Verdict),
}

/// Asks a revision about a request. Returns its answer, and the duration without the wait for a place of its policy.
async fn ask(
    table: &Table,
    revision: &Revision,
    review: &Review,
    purpose: Purpose<'_>,
) -> Result<(Result<Asked, NoVerdict>, Duration), Overloaded> {
    let is_code = matches!(revision.program, RevisionProgram::Code(_));
    let mut start = Instant::now();
    if is_code || checks_conditions(revision, review) {
        let budget = revision.accounts.place(revision.program.may_use_wasm(), &revision.metrics.places).await?;
        start = Instant::now();
        let within_place = async {
            match condition_mismatch(revision, review).await? {
                Some(why) => Ok(Some(Asked::Excluded(why))),
                None if is_code => {
                    evaluate(table, revision, review, purpose).await.map(|it| Some(Asked::Evaluated(it)))
                }
                None => Ok(None),
            }
        };
        if let Some(asked) = budget.run(within_place).await.transpose() {
            return Ok((asked, start.elapsed()));
        }
    }
    // This evaluation holds no place: the request policies take places of their own. Otherwise, evaluations could wait for each other
    // until none has time left.
    let verdict = evaluate(table, revision, review, purpose).await;
    Ok((verdict.map(Asked::Evaluated), start.elapsed()))
}

/// Returns the verdict of the program, before the mode, `mutating` and the message of the policy apply. The caller runs code within the
/// budget of the policy.
///
/// # Errors
/// Returns an error if the evaluation fails.
pub async fn evaluate(
    table: &Table,
    revision: &Revision,
    review: &Review,
    purpose: Purpose<'_>,
) -> Result<Verdict, NoVerdict> {
    match &revision.program {
        RevisionProgram::Code(program) => Ok(program.evaluate(review, Deadline::after(revision.timeout)).await?),
        RevisionProgram::Requests(requests) => evaluate_object(table, requests, revision, review, purpose).await,
        RevisionProgram::Configuration(_) => Err(EvaluationError::Failed(NO_VERDICT.to_owned()).into()),
    }
}

/// Logs the decision. A line about a denial names the object and the user, because only the audit log of the API server has the
/// uid of a request.
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
                mode = revision.enforcement().mode.as_str(),
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
    let is_confidential = review.is_confidential();
    let redacted = |message| if is_confidential { REDACTED } else { message };
    let head = review.head().cloned().unwrap_or_default();
    let (kind, namespace, name, user) = (head.kind.kind, head.namespace, head.name, head.user.username);
    let operation = head.operation.map(Operation::as_str).unwrap_or_default();
    if let Some(Failure { reason, message }) = failed {
        let (reason, error) = (reason.as_str(), redacted(message.as_str()));
        decision!(warn, "evaluation failed", reason, error, operation, kind, namespace, name, user, omitted);
    } else {
        let denial = redacted(denial);
        decision!(info, "request denied", denial, operation, kind, namespace, name, user, omitted);
    }
}
