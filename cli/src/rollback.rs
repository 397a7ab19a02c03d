//! Chooses the revision of a rollback, and computes the progress of the new generation. Pure.

pub mod error;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proviso_core::Failure;
use proviso_crds::PolicyPhase;
use serde_json::Value;

use self::error::PlanError;
use crate::changes::is_same;
use crate::objects::{PolicyObject, RevisionObject};
use crate::report::{EventReport, PolicyReport};

/// The reasons of the operator's Events about a rollback: made, and refused.
const ROLLED_BACK: &str = "RolledBack";
const REFUSED: &str = "RollbackRefused";

/// Returns the revision to roll back to: that of the generation `requested`. If `requested` is `None`, it is the live revision
/// if the newest generation is not live; otherwise the newest revision that was live before and has another spec.
///
/// # Errors
/// When no such revision is kept, or the policy is being deleted.
pub fn plan<'a>(
    policy: &PolicyObject,
    revisions: &'a [RevisionObject],
    requested: Option<i64>,
) -> Result<&'a RevisionObject, PlanError> {
    let id = || policy.id.clone();
    if policy.is_being_deleted {
        return Err(PlanError::Deleted { policy: id() });
    }
    let kept = |generation: i64| revisions.iter().find(|revision| revision.generation == generation);
    if let Some(generation) = requested {
        let mut all: Vec<_> = revisions.iter().map(|revision| revision.generation).collect();
        all.sort_unstable();
        return kept(generation).ok_or_else(|| PlanError::NotKept { policy: id(), generation, kept: all });
    }
    let current = newest_spec(policy, revisions);
    let was_live =
        |it: &&RevisionObject| it.generation < policy.generation && it.was_ever_live() && !is_same(&it.data, current);
    let before = || revisions.iter().filter(was_live).max_by_key(|revision| revision.generation);
    generation_to_replace(policy).and_then(kept).or_else(before).ok_or_else(|| PlanError::NoTarget { policy: id() })
}

/// Returns the live generation if a newer generation is to replace it.
#[must_use]
pub fn generation_to_replace(policy: &PolicyObject) -> Option<i64> {
    policy.status.live_generation.filter(|live| *live != policy.generation)
}

/// Returns the spec of the newest generation: that of its revision, or of the policy if there is no revision yet.
#[must_use]
pub fn newest_spec<'a>(policy: &'a PolicyObject, revisions: &'a [RevisionObject]) -> &'a Value {
    let revision = revisions.iter().find(|revision| revision.generation == policy.generation);
    revision.map_or(&policy.spec, |revision| &revision.data)
}

/// A request for a new generation, and its progress.
#[derive(Clone, Debug)]
pub struct Request {
    /// The uid of the policy.
    pub uid: String,
    /// The newest generation at the time of the request.
    pub old_generation: i64,
    /// The origin of the requested spec for messages, such as `generation 2`.
    pub origin: String,
    /// The requested spec; `None` if the user may not read it.
    pub desired_spec: Option<Value>,
    /// The refusal of an earlier request; `None` if there was none.
    pub known_refusal: Option<Condition>,
    /// The generation after the request; `None` until it is seen.
    pub new_generation: Option<i64>,
}

/// The progress of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operator has not processed the request.
    Requested,
    /// The operator has processed the request without a new generation. An Event will have the reason.
    Acknowledged,
    /// The new generation is being rolled out.
    RollingOut {
        generation: i64,
        summary: String,
        replicas: Option<String>,
    },
    Done(Outcome),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The new generation is live. `summary` is the state of the policy in a sentence.
    Live { summary: String },
    /// The new generation is disabled.
    Disabled { generation: i64, summary: String },
    /// The new generation does not work.
    Failed { summary: String, problem: Failure },
    /// The operator refused the request; the text is its message.
    Refused(String),
    /// The policy has the requested spec already.
    Unchanged,
    /// Another user changed the policy.
    Superseded { generation: i64 },
    /// The policy no longer exists.
    Gone,
}

impl Request {
    /// Returns the progress. `events` are the Events since the request.
    pub fn step(&mut self, policy: Option<&PolicyObject>, events: &[EventReport]) -> Step {
        let Some(policy) = policy.filter(|policy| policy.uid == self.uid) else { return Step::Done(Outcome::Gone) };
        let generation = policy.generation;
        if generation == self.old_generation {
            let refusal = policy.refused_rollback().filter(|refusal| self.known_refusal.as_ref() != Some(*refusal));
            if let Some(refusal) = refusal {
                return Step::Done(Outcome::Refused(refusal.message.clone()));
            }
            if policy.rollback_to.is_some() {
                return Step::Requested;
            }
            return match events.iter().rev().find(|it| it.reason == REFUSED || it.reason == ROLLED_BACK) {
                Some(event) if event.reason == REFUSED => Step::Done(Outcome::Refused(event.message.clone())),
                Some(_) => Step::Done(Outcome::Unchanged),
                None => Step::Acknowledged,
            };
        }
        let is_desired = self.desired_spec.as_ref().is_none_or(|desired| is_same(desired, &policy.spec));
        if *self.new_generation.get_or_insert(generation) != generation || !is_desired {
            return Step::Done(Outcome::Superseded { generation });
        }
        let report = PolicyReport::new(policy);
        match (report.phase, report.problem) {
            (PolicyPhase::Active, _) => Step::Done(Outcome::Live { summary: report.summary }),
            (PolicyPhase::Disabled, _) => Step::Done(Outcome::Disabled { generation, summary: report.summary }),
            (PolicyPhase::Failed, Some(problem)) => Step::Done(Outcome::Failed { summary: report.summary, problem }),
            _ => Step::RollingOut {
                generation,
                summary: report.summary,
                replicas: report.replicas.map(|replicas| replicas.summary),
            },
        }
    }
}

impl Step {
    /// Returns the message for the user. `origin` is the origin of the requested spec.
    #[must_use]
    pub fn message(&self, origin: &str) -> String {
        match self {
            Self::Requested => format!("requested {origin} from the operator"),
            Self::Acknowledged => "the operator has processed the request, and made no new generation".to_owned(),
            Self::RollingOut { summary, replicas: Some(replicas), .. } => format!("{summary} ({replicas} replicas)"),
            Self::RollingOut { summary, replicas: None, .. } => summary.clone(),
            Self::Done(outcome) => outcome.message(origin),
        }
    }
}

impl Outcome {
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Live { .. } | Self::Disabled { .. } | Self::Unchanged)
    }

    fn message(&self, origin: &str) -> String {
        match self {
            Self::Live { summary } => format!("{summary}, with the spec of {origin}"),
            Self::Disabled { generation, summary } => {
                format!("generation {generation} has the spec of {origin}: {summary}")
            }
            Self::Failed { summary, problem } => format!("{summary}: {problem}"),
            Self::Refused(message) => format!("the operator refused: {message}"),
            Self::Unchanged => format!("nothing to do: it has the spec of {origin} already"),
            Self::Superseded { generation } => {
                format!("another user changed the policy: generation {generation} does not have the spec of {origin}")
            }
            Self::Gone => "the policy was deleted".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, failed, live, policy, revision, spec};
    use serde_json::json;

    fn kept() -> Vec<RevisionObject> {
        vec![
            revision(5, "d", true, &[]),
            revision(4, "c", true, &live("True", 4)),
            revision(3, "b", false, &[]),
            revision(2, "a", false, &live("False", 2)),
        ]
    }

    #[test]
    fn the_default_is_the_last_different_live_revision() {
        let chosen = |generation: i64, status: &Value, revisions: &[RevisionObject]| {
            plan(&policy(generation, status), revisions, None).map(|revision| revision.generation)
        };
        let kept = kept();
        assert_eq!(chosen(5, &failed(5, 4, "CompileError", ""), &kept), Ok(4), "the failed update is undone");
        assert_eq!(chosen(4, &active(4), &kept[1..]), Ok(2), "generation 3 was never live");
        let mut disabled = active(5);
        (disabled["phase"], disabled["liveGeneration"]) = (json!("Disabled"), Value::Null);
        let replaced = [revision(4, "c", false, &live("False", 4)), revision(2, "a", false, &live("False", 2))];
        assert_eq!(chosen(5, &disabled, &replaced), Ok(4), "generation 4 was live before the policy was disabled");
        let same = [revision(4, "c", true, &live("True", 4)), revision(3, "c", false, &live("False", 3))];
        let no_target = Err(PlanError::NoTarget { policy: policy(4, &active(4)).id });
        assert_eq!(chosen(4, &active(4), &same), no_target, "a revision with the same spec changes nothing");
        assert_eq!(chosen(1, &Value::Null, &[]), no_target);
    }

    #[test]
    fn only_a_kept_generation_can_be_requested() {
        let (policy, kept) = (policy(5, &active(5)), kept());
        assert_eq!(plan(&policy, &kept, Some(3)).map(|revision| revision.generation), Ok(3));
        let error = plan(&policy, &kept, Some(1)).unwrap_err();
        assert_eq!(error.to_string(), "generation 1 of ns.team.labels is not kept");
        assert_eq!(error.remedy("proviso").unwrap(), "Kept generations: 2, 3, 4, 5.");
    }

    fn request() -> Request {
        Request {
            uid: "u".to_owned(),
            old_generation: 5,
            origin: "generation 4".to_owned(),
            desired_spec: Some(spec("owner")),
            known_refusal: None,
            new_generation: None,
        }
    }

    fn event(reason: &str) -> EventReport {
        EventReport {
            type_: "Normal".to_owned(),
            reason: reason.to_owned(),
            message: "because".to_owned(),
            count: 1,
            last_seen: None,
            version: "1".to_owned(),
        }
    }

    #[test]
    fn a_request_is_followed_to_its_outcome() {
        let mut request = request();
        let mut waiting = policy(5, &failed(5, 4, "CompileError", ""));
        waiting.rollback_to = Some("4".to_owned());
        assert_eq!(request.step(Some(&waiting), &[]), Step::Requested);
        let updating = policy(6, &failed(5, 4, "CompileError", "of the generation before"));
        let Step::RollingOut { generation: 6, .. } = request.step(Some(&updating), &[]) else {
            panic!("generation 6 is not being rolled out")
        };
        assert_eq!(
            request.step(Some(&policy(6, &active(6))), &[]),
            Step::Done(Outcome::Live { summary: "generation 6 answers requests".to_owned() })
        );
        let failure = request.step(Some(&policy(6, &failed(6, 4, "CacheError", "full"))), &[]);
        assert_eq!(
            failure.message("generation 4"),
            "generation 6 does not work; generation 4 goes on answering: CacheError: full"
        );
        assert_eq!(request.step(Some(&policy(7, &active(6))), &[]), Step::Done(Outcome::Superseded { generation: 7 }));
        assert_eq!(request.step(None, &[]), Step::Done(Outcome::Gone));
    }

    #[test]
    fn a_concurrent_edit_is_not_mistaken_for_the_rollback() {
        let mut other = policy(6, &active(6));
        other.spec = spec("team");
        assert_eq!(request().step(Some(&other), &[]), Step::Done(Outcome::Superseded { generation: 6 }));
    }

    #[test]
    fn a_new_refusal_in_the_status_ends_the_wait() {
        let refused = |generation: i64, time: &str| {
            let mut status = active(5);
            let mut refusal = condition("RolledBack", "False", "RollbackRefused", "because", generation);
            refusal["lastTransitionTime"] = json!(time);
            status["conditions"].as_array_mut().unwrap().push(refusal);
            policy(5, &status)
        };
        let (earlier, later) = (refused(5, "2026-11-21T09:20:00Z"), refused(5, "2026-11-21T09:20:01Z"));
        let mut request = request();
        request.known_refusal = earlier.refused_rollback().cloned();
        assert_eq!(request.step(Some(&earlier), &[]), Step::Acknowledged, "the refusal of an earlier request");
        let outcome = Step::Done(Outcome::Refused("because".to_owned()));
        assert_eq!(request.step(Some(&later), &[]), outcome);
        // The API server also refuses to remove the annotation.
        let mut pending = later.clone();
        pending.rollback_to = Some("4".to_owned());
        assert_eq!(request.step(Some(&pending), &[]), outcome);
        assert_eq!(request.step(Some(&refused(4, "2026-11-21T09:20:01Z")), &[]), Step::Acknowledged);
    }

    #[test]
    fn an_event_has_the_reason_of_a_refusal() {
        let processed = policy(5, &active(5));
        assert_eq!(request().step(Some(&processed), &[]), Step::Acknowledged);
        let refused = Step::Done(Outcome::Refused("because".to_owned()));
        assert_eq!(request().step(Some(&processed), &[event("Live"), event("RollbackRefused")]), refused);
        let done = request().step(Some(&processed), &[event("RolledBack")]);
        assert_eq!(done, Step::Done(Outcome::Unchanged), "the spec was the same");
    }
}
