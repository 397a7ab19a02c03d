//! Plans a rollback, and follows the new generation. Pure; the operator does the work.

pub mod error;

use proviso_core::Failure;
use proviso_crds::PolicyPhase;
use serde_json::Value;

use self::error::PlanError;
use crate::changes::is_same;
use crate::objects::{PolicyObject, RevisionObject};
use crate::report::{EventReport, PolicyReport};

/// The reasons of the Events of a rollback that the operator made, and of one that it refused.
const ROLLED_BACK: &str = "RolledBack";
const REFUSED: &str = "RollbackRefused";

/// Returns the revision to go back to: that of the generation `wish`. Without one it is the live revision if the newest
/// generation is not live, which undoes an update; else the newest revision that was live before and has another spec.
///
/// # Errors
/// When no such revision is kept, or the policy is being deleted.
pub fn plan<'a>(
    policy: &PolicyObject,
    revisions: &'a [RevisionObject],
    wish: Option<i64>,
) -> Result<&'a RevisionObject, PlanError> {
    let id = || policy.id.clone();
    if policy.is_being_deleted {
        return Err(PlanError::Deleted { policy: id() });
    }
    let kept = |generation: i64| revisions.iter().find(|revision| revision.generation == generation);
    if let Some(generation) = wish {
        let mut all: Vec<_> = revisions.iter().map(|revision| revision.generation).collect();
        all.sort_unstable();
        return kept(generation).ok_or_else(|| PlanError::NotKept { policy: id(), generation, kept: all });
    }
    let present = newest_spec(policy, revisions);
    let was_live =
        |it: &&RevisionObject| it.generation < policy.generation && it.was_ever_live() && !is_same(&it.data, present);
    let before = || revisions.iter().filter(was_live).max_by_key(|revision| revision.generation);
    under_way(policy).and_then(kept).or_else(before).ok_or_else(|| PlanError::Nothing { policy: id() })
}

/// Returns the live generation if a newer one is to replace it.
#[must_use]
pub fn under_way(policy: &PolicyObject) -> Option<i64> {
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
    /// The uid of the policy, and its generation at the time of the request.
    pub uid: String,
    pub before: i64,
    /// The origin of the new generation, such as `generation 2`; and its spec, if the user may read it.
    pub origin: String,
    pub wanted: Option<Value>,
    /// The new generation.
    pub new: Option<i64>,
}

/// The progress of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operator has not answered the request.
    Asked,
    /// The operator has answered, without a new generation: an Event will say why.
    Answered,
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
    Live {
        generation: i64,
    },
    /// The new generation is disabled.
    Disabled {
        generation: i64,
    },
    Failed {
        generation: i64,
        live: Option<i64>,
        problem: Failure,
    },
    Refused(String),
    /// The policy has that spec already.
    Unchanged,
    /// Somebody else changed the policy.
    Overtaken {
        generation: i64,
    },
    Gone,
}

impl Request {
    /// Returns the progress by the policy and the Events that are new since the request.
    pub fn look(&mut self, policy: Option<&PolicyObject>, events: &[EventReport]) -> Step {
        let Some(policy) = policy.filter(|policy| policy.uid == self.uid) else { return Step::Done(Outcome::Gone) };
        let generation = policy.generation;
        if generation == self.before {
            if policy.rollback_to.is_some() {
                return Step::Asked;
            }
            return match events.iter().rev().find(|it| it.reason == REFUSED || it.reason == ROLLED_BACK) {
                Some(event) if event.reason == REFUSED => Step::Done(Outcome::Refused(event.message.clone())),
                Some(_) => Step::Done(Outcome::Unchanged),
                None => Step::Answered,
            };
        }
        let is_ours = self.wanted.as_ref().is_none_or(|wanted| is_same(wanted, &policy.spec));
        if *self.new.get_or_insert(generation) != generation || !is_ours {
            return Step::Done(Outcome::Overtaken { generation });
        }
        let report = PolicyReport::new(policy);
        match (report.phase, report.problem) {
            (PolicyPhase::Active, _) => Step::Done(Outcome::Live { generation }),
            (PolicyPhase::Disabled, _) => Step::Done(Outcome::Disabled { generation }),
            (PolicyPhase::Failed, Some(problem)) => {
                Step::Done(Outcome::Failed { generation, live: report.live_generation, problem })
            }
            _ => Step::RollingOut {
                generation,
                summary: report.summary,
                replicas: report.replicas.map(|replicas| replicas.summary),
            },
        }
    }
}

impl Step {
    /// Returns the progress in words.
    #[must_use]
    pub fn in_words(&self, origin: &str) -> String {
        match self {
            Self::Asked => format!("asked the operator for {origin}"),
            Self::Answered => "the operator has taken it up, and made no new generation".to_owned(),
            Self::RollingOut { summary, replicas: Some(replicas), .. } => format!("{summary} ({replicas} replicas)"),
            Self::RollingOut { summary, replicas: None, .. } => summary.clone(),
            Self::Done(outcome) => outcome.in_words(origin),
        }
    }
}

impl Outcome {
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Live { .. } | Self::Disabled { .. } | Self::Unchanged)
    }

    fn in_words(&self, origin: &str) -> String {
        match self {
            Self::Live { generation } => format!("generation {generation} answers requests: what {origin} was"),
            Self::Disabled { generation } => {
                format!("generation {generation} is what {origin} was: disabled, it decides about no request")
            }
            Self::Failed { generation, live, problem } => {
                let answering = live.map_or_else(
                    || "nothing answers".to_owned(),
                    |live| format!("generation {live} goes on answering"),
                );
                format!("generation {generation} does not work; {answering}: {problem}")
            }
            Self::Refused(message) => format!("the operator refused: {message}"),
            Self::Unchanged => format!("nothing to do: it is what {origin} was"),
            Self::Overtaken { generation } => {
                format!("somebody else changed the policy: generation {generation} is not what {origin} was")
            }
            Self::Gone => "the policy was deleted".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, failed, live, policy, revision, spec};
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
    fn without_a_wish_the_last_that_worked_is_chosen() {
        let chosen = |generation: i64, status: &Value, revisions: &[RevisionObject]| {
            plan(&policy(generation, status), revisions, None).map(|revision| revision.generation)
        };
        let kept = kept();
        assert_eq!(chosen(5, &failed(5, 4, "CompileError", ""), &kept), Ok(4), "the failed update is undone");
        assert_eq!(chosen(4, &active(4), &kept[1..]), Ok(2), "generation 3 was never live");
        let mut disabled = active(5);
        (disabled["phase"], disabled["liveGeneration"]) = (json!("Disabled"), Value::Null);
        let replaced = [revision(4, "c", false, &live("False", 4)), revision(2, "a", false, &live("False", 2))];
        assert_eq!(chosen(5, &disabled, &replaced), Ok(4), "what was live before the policy was disabled");
        let same = [revision(4, "c", true, &live("True", 4)), revision(3, "c", false, &live("False", 3))];
        let nothing = Err(PlanError::Nothing { policy: policy(4, &active(4)).id });
        assert_eq!(chosen(4, &active(4), &same), nothing, "what is the same is no way back");
        assert_eq!(chosen(1, &Value::Null, &[]), nothing);
    }

    #[test]
    fn only_what_is_kept_can_be_wished_for() {
        let (policy, kept) = (policy(5, &active(5)), kept());
        assert_eq!(plan(&policy, &kept, Some(3)).map(|revision| revision.generation), Ok(3));
        let error = plan(&policy, &kept, Some(1)).unwrap_err();
        assert_eq!(error.to_string(), "generation 1 of ns.team.labels is not kept");
        assert_eq!(error.remedy("proviso").unwrap(), "Kept: 2, 3, 4, 5.");
    }

    fn request() -> Request {
        Request {
            uid: "u".to_owned(),
            before: 5,
            origin: "generation 4".to_owned(),
            wanted: Some(spec("owner")),
            new: None,
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
    fn a_request_is_followed_to_its_end() {
        let mut request = request();
        let mut waiting = policy(5, &failed(5, 4, "CompileError", ""));
        waiting.rollback_to = Some("4".to_owned());
        assert_eq!(request.look(Some(&waiting), &[]), Step::Asked);
        let updating = policy(6, &failed(5, 4, "CompileError", "of the generation before"));
        let Step::RollingOut { generation: 6, .. } = request.look(Some(&updating), &[]) else {
            panic!("not under way")
        };
        assert_eq!(request.look(Some(&policy(6, &active(6))), &[]), Step::Done(Outcome::Live { generation: 6 }));
        let failure = request.look(Some(&policy(6, &failed(6, 4, "CacheError", "full"))), &[]);
        assert_eq!(
            failure.in_words("generation 4"),
            "generation 6 does not work; generation 4 goes on answering: CacheError: full"
        );
        assert_eq!(request.look(Some(&policy(7, &active(6))), &[]), Step::Done(Outcome::Overtaken { generation: 7 }));
        assert_eq!(request.look(None, &[]), Step::Done(Outcome::Gone));
    }

    #[test]
    fn an_edit_at_the_same_time_is_not_taken_for_the_rollback() {
        let mut other = policy(6, &active(6));
        other.spec = spec("team");
        assert_eq!(request().look(Some(&other), &[]), Step::Done(Outcome::Overtaken { generation: 6 }));
    }

    #[test]
    fn a_refusal_is_told_by_its_event() {
        let taken = policy(5, &active(5));
        assert_eq!(request().look(Some(&taken), &[]), Step::Answered);
        let refused = Step::Done(Outcome::Refused("because".to_owned()));
        assert_eq!(request().look(Some(&taken), &[event("Live"), event("RollbackRefused")]), refused);
        let done = request().look(Some(&taken), &[event("RolledBack")]);
        assert_eq!(done, Step::Done(Outcome::Unchanged), "the spec was the same");
    }
}
