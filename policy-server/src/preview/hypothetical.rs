//! The answers that revisions would give to a request if they were live. Nothing is counted or logged as a decision.

use proviso_core::{Enforcement, Failure, Verdict};
use proviso_engines::EvaluationError;

use super::Job;
use super::evaluation::Concern;
use crate::budgets::Overloaded;
use crate::decide::{NoVerdict, evaluate, exclusion, is_excluded_by_conditions};
use crate::requests::Purpose;
use crate::table::Revision;

/// The answer that a revision would give.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub verdict: Verdict,
    /// The failure that the verdict answers; `None` if the evaluation did not fail.
    pub failure: Option<Failure>,
}

/// The coverage of a request by a revision.
#[derive(Debug, PartialEq, Eq)]
enum Coverage {
    Covered,
    NotCovered,
    /// The API server denies the request, because the evaluation of the `matchConditions` fails.
    Refused(Failure),
    /// This server denies the request for the same reason. The mode of the policy applies.
    Failed(Failure),
}

impl Answer {
    /// Returns the answer to a request that the revision does not cover.
    pub(super) fn not_covered() -> Self {
        Self { verdict: Verdict::allow(), failure: None }
    }

    /// Returns the denial by the API server, which the mode of the policy does not change.
    pub(super) fn refused(failure: Failure, code: u16, reason: Option<&str>) -> Self {
        let verdict = Verdict { code: Some(code), reason: reason.map(ToOwned::to_owned), ..failure.verdict() };
        Self { verdict, failure: Some(failure) }
    }

    fn failed(failure: Failure, enforcement: &Enforcement) -> Self {
        Self { verdict: failure.verdict().enforce(enforcement), failure: Some(failure) }
    }
}

/// Returns the answer of an experiment; `None` if the request does not count for the experiment. With `is_protecting`, the mode
/// Protect applies instead of that of the experiment.
///
/// # Errors
/// Returns [`Overloaded`] if this server cannot evaluate the request now.
pub(super) async fn of_experiment(
    revision: &Revision,
    concern: Concern,
    job: &Job,
    is_protecting: bool,
) -> Result<Option<Answer>, Overloaded> {
    if concern == Concern::IfExcluded {
        let is_excluded = by_conditions(revision, job).await? == Coverage::NotCovered;
        return Ok(is_excluded.then(Answer::not_covered));
    }
    let is_own_webhook = concern == Concern::UnlessExcluded;
    let coverage = coverage(revision, job, is_own_webhook).await?;
    if is_own_webhook && coverage == Coverage::NotCovered {
        return Ok(None);
    }
    answer(revision, job, coverage, is_protecting).await.map(Some)
}

/// Returns the answer of a live revision that the API server has not asked. With `is_protecting`, the mode Protect applies instead of
/// that of the policy.
///
/// # Errors
/// Returns [`Overloaded`] if this server cannot evaluate the request now.
pub(super) async fn of_live(revision: &Revision, job: &Job, is_protecting: bool) -> Result<Verdict, Overloaded> {
    let coverage = coverage(revision, job, true).await?;
    Ok(answer(revision, job, coverage, is_protecting).await?.verdict)
}

async fn answer(revision: &Revision, job: &Job, coverage: Coverage, is_protecting: bool) -> Result<Answer, Overloaded> {
    let enforcement = revision.enforcement();
    let enforcement = &if is_protecting { enforcement.protecting() } else { enforcement };
    match coverage {
        Coverage::Covered => {}
        Coverage::NotCovered => return Ok(Answer::not_covered()),
        Coverage::Refused(failure) => return Ok(Answer::refused(failure, 403, Some("Forbidden"))),
        Coverage::Failed(failure) => return Ok(Answer::failed(failure, enforcement)),
    }
    match evaluate(&job.table, revision, &job.review, Purpose::Preview).await {
        Ok(verdict) => Ok(Answer { verdict: verdict.enforce(enforcement), failure: None }),
        Err(NoVerdict::Overloaded(_)) => Err(Overloaded),
        Err(NoVerdict::Failed(failure)) => Ok(Answer::failed(failure, enforcement)),
    }
}

/// Returns the coverage of the request, as far as this server knows. In a cluster, the `matchConditions` are evaluated only if
/// `checks_conditions`: the API server has evaluated those of a webhook that it has called.
async fn coverage(revision: &Revision, job: &Job, checks_conditions: bool) -> Result<Coverage, Overloaded> {
    let is_matched_by_api_server = revision.admission().is_some_and(|admission| admission.is_matched_by_api_server);
    match exclusion(revision, &job.review, &job.table.namespaces).await {
        Ok(Some(_)) => Ok(Coverage::NotCovered),
        Ok(None) if checks_conditions && is_matched_by_api_server => by_conditions(revision, job).await,
        Ok(None) => Ok(Coverage::Covered),
        Err(EvaluationError::Overloaded(_)) => Err(Overloaded),
        Err(error) => Ok(Coverage::Failed(Failure::from(&error))),
    }
}

/// Returns the coverage of the request by the `matchConditions`, as the API server would find it: a condition that is false excludes
/// the request even if others fail, and `failurePolicy` decides about a condition that fails.
async fn by_conditions(revision: &Revision, job: &Job) -> Result<Coverage, Overloaded> {
    match is_excluded_by_conditions(revision, &job.review).await {
        Ok(true) => Ok(Coverage::NotCovered),
        Ok(false) => Ok(Coverage::Covered),
        // The API server limits the cost of conditions, and not their time: a timeout here is no failure there.
        Err(EvaluationError::Overloaded(_) | EvaluationError::DeadlineExceeded) => Err(Overloaded),
        Err(_) if !revision.admission().is_some_and(|admission| admission.fails_closed) => Ok(Coverage::NotCovered),
        Err(error) => {
            let message = format!("spec.admission.matchConditions: {error}");
            Ok(Coverage::Refused(Failure::new(error.reason(), message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::lifecycle::tests::revision_of;
    use crate::preview::tests::{job, review};

    /// A condition that fails for a Pod without `spec.replicas`.
    const FAILING: &str = "object.spec.replicas > 1";

    /// Returns a revision that denies Pods, with these `matchConditions` and other fields of `admission`.
    fn denying(conditions: &[&str], admission: &Value, is_matched_by_api_server: bool) -> Revision {
        let conditions = conditions.iter().map(|it| json!({"name": "a", "expression": it}));
        let mut section = json!({
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["pods"]}],
            "matchConditions": conditions.collect::<Vec<_>>(),
        });
        for (field, value) in admission.as_object().unwrap() {
            section[field] = value.clone();
        }
        let program = json!({"cel": {"validations": [{"expression": "false", "message": "no"}]}});
        revision_of(&json!({"program": program, "admission": section}), is_matched_by_api_server)
    }

    /// Returns the decision, the code, and whether the evaluation failed; `None` if the request does not count.
    async fn preview(revision: &Revision, concern: Concern) -> Option<(bool, Option<u16>, bool)> {
        let answer = of_experiment(revision, concern, &job(review("u")), false).await.unwrap()?;
        Some((answer.verdict.allowed, answer.verdict.code, answer.failure.is_some()))
    }

    #[tokio::test]
    async fn a_condition_that_fails_counts_as_the_failure_policy_says() {
        use Concern::{Always, IfExcluded, UnlessExcluded};
        let (fail, ignore) = (json!({}), json!({"failurePolicy": "Ignore"}));
        let monitor = json!({"mode": "Monitor"});
        let (denied, refused, skipped) = ((false, Some(422), false), (false, Some(403), true), (true, None, false));
        for (conditions, admission, at_own_webhook, at_the_policy) in [
            (&["true"][..], &fail, Some(denied), None),
            (&["false"], &fail, None, Some(skipped)),
            (&[FAILING], &fail, Some(refused), None),
            (&[FAILING, "false"], &fail, None, Some(skipped)),
            (&["true", FAILING], &fail, Some(refused), None),
            (&[FAILING], &ignore, None, Some(skipped)),
            (&["true"], &ignore, Some(denied), None),
            // The API server denies, so the mode has no effect.
            (&[FAILING], &monitor, Some(refused), None),
            (&["true"], &monitor, Some(skipped), None),
        ] {
            let revision = denying(conditions, admission, true);
            assert_eq!(preview(&revision, UnlessExcluded).await, at_own_webhook, "{conditions:?} {admission}");
            assert_eq!(preview(&revision, IfExcluded).await, at_the_policy, "{conditions:?} {admission}");
            // Every request counts once, at one of the webhooks.
            assert!(at_own_webhook.is_none() != at_the_policy.is_none());
            // The API server has evaluated the conditions of a webhook that the experiment shares.
            let shared = if admission == &monitor { skipped } else { denied };
            assert_eq!(preview(&revision, Always).await, Some(shared), "{conditions:?} {admission}");
        }
    }

    #[tokio::test]
    async fn over_a_folder_a_condition_that_fails_is_a_failed_evaluation() {
        for (admission, wanted) in [
            (json!({}), (false, Some(500), true)),
            // Only an API server applies the failure policy.
            (json!({"failurePolicy": "Ignore"}), (false, Some(500), true)),
            (json!({"mode": "Monitor"}), (true, None, true)),
        ] {
            let revision = denying(&[FAILING], &admission, false);
            assert_eq!(preview(&revision, Concern::Always).await, Some(wanted), "{admission}");
        }
    }

    #[tokio::test]
    async fn a_live_revision_that_was_not_asked_answers_as_behind_an_api_server() {
        let services = json!({"rules": [
            {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["services"]},
        ]});
        for (conditions, admission, wanted) in [
            (&["true"][..], json!({}), (false, Some(422))),
            (&["false"], json!({}), (true, None)),
            (&[FAILING], json!({}), (false, Some(403))),
            (&[FAILING], json!({"failurePolicy": "Ignore"}), (true, None)),
            // The rules come first.
            (&[FAILING], services, (true, None)),
        ] {
            let live = of_live(&denying(conditions, &admission, true), &job(review("u")), false).await.unwrap();
            assert_eq!((live.allowed, live.code), wanted, "{conditions:?} {admission}");
        }
    }

    #[tokio::test]
    async fn the_mode_protect_can_replace_the_mode() {
        let revision = denying(&[], &json!({"mode": "Monitor", "message": "see the wiki"}), true);
        let (as_is, protecting) = (false, true);
        let live = async |is_protecting| of_live(&revision, &job(review("u")), is_protecting).await.unwrap();
        assert_eq!(live(as_is).await, Verdict::allow());
        let denied = live(protecting).await;
        assert_eq!((denied.allowed, denied.message.as_deref()), (false, Some("see the wiki")));
    }
}
