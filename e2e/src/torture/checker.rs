//! Checks a recorded history against the invariants of the product. Pure.
//!
//! Looks at the cluster take time, so the live time of a generation is known only within bounds. Each check uses the bound with
//! which it finds no violation that did not happen.

use std::fmt;
use std::time::Duration;

use super::history::{History, Outcome, PolicyHistory, Request, Time, Verdict};

/// The times that the checks allow for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The time for which a replaced generation still answers: `--retire-after` of the operator.
    pub grace: Duration,
    /// The longest time after which an API server uses a changed webhook.
    pub propagation: Duration,
    /// The longest time after the end of an outage in which API servers may still call a replica that does not answer.
    pub recovery: Duration,
}

/// An invariant of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invariant {
    AnswersAreOfKnownSpecs,
    OnlyLiveGenerationsAnswer,
    RetiredGenerationsDoNotAnswer,
    AllowedOnlyIfAGenerationAllows,
    UndecidedOnlyInOutages,
    LiveGenerationsOnlyGrow,
    PreviewsCountRequestsOnce,
    ProcessesDoNotCrash,
    GoodSpecsAreAccepted,
    NewestGoodGenerationIsLive,
    NothingIsOrphaned,
}

impl Invariant {
    /// Returns the invariant as a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::AnswersAreOfKnownSpecs => "each answer is the answer of a spec of its policy",
            Self::OnlyLiveGenerationsAnswer => "a generation that was never live answers no request",
            Self::RetiredGenerationsDoNotAnswer => "a generation answers no request after its grace",
            Self::AllowedOnlyIfAGenerationAllows => "a request is not allowed if every generation in its window denies",
            Self::UndecidedOnlyInOutages => "a request stays without a decision only while no replica could decide it",
            Self::LiveGenerationsOnlyGrow => "an older generation never replaces a newer one",
            Self::PreviewsCountRequestsOnce => "a preview counts each request once",
            Self::ProcessesDoNotCrash => "no process crashes",
            Self::GoodSpecsAreAccepted => "a spec that works is not refused",
            Self::NewestGoodGenerationIsLive => "after quiet, the newest good generation is live on every replica",
            Self::NothingIsOrphaned => "after quiet, no object is left without its owner",
        }
    }
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub at: Time,
    pub invariant: Invariant,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s: violated: {}: {}", self.at.as_secs_f64(), self.invariant.sentence(), self.text)
    }
}

/// Checks a history. Returns the violations, the earliest first.
#[must_use]
pub fn check(history: &History, limits: Limits) -> Vec<Violation> {
    let mut violations: Vec<_> = history.policies.iter().flat_map(|(name, policy)| check_order(name, policy)).collect();
    violations.extend(history.requests.iter().filter_map(|request| check_request(request, history, limits)));
    violations.extend(check_previews(history));
    for (notes, invariant) in
        [(&history.crashes, Invariant::ProcessesDoNotCrash), (&history.refusals, Invariant::GoodSpecsAreAccepted)]
    {
        violations.extend(notes.iter().map(|note| Violation { at: note.at, invariant, text: note.text.clone() }));
    }
    violations.sort_by_key(|violation| violation.at);
    violations
}

/// Checks that the webhook never returns to an older generation. A rollback creates a new generation.
fn check_order(name: &str, policy: &PolicyHistory) -> Vec<Violation> {
    let pairs = policy.sightings.windows(2).filter(|pair| pair[1].newest < pair[0].newest);
    pairs
        .map(|pair| Violation {
            at: pair[1].first_answered,
            invariant: Invariant::LiveGenerationsOnlyGrow,
            text: format!("policy {name}: generation {} replaced {}", pair[1].newest, pair[0].newest),
        })
        .collect()
}

/// Checks the answer to one request.
fn check_request(request: &Request, history: &History, limits: Limits) -> Option<Violation> {
    let unknown = PolicyHistory::default();
    let policy = history.policies.get(&request.policy).unwrap_or(&unknown);
    let window = Window { request, policy, history, limits };
    let (invariant, why) = match &request.outcome {
        Outcome::Denied(marker) => window.check_answer(marker, Verdict::Denies)?,
        Outcome::Allowed(Some(marker)) => window.check_answer(marker, Verdict::AllowsMarked)?,
        Outcome::Allowed(None) => window.check_unmarked()?,
        Outcome::Undecided(_) | Outcome::Unanswered(_) => {
            if history.is_outage(request.begin, request.end, limits.recovery) {
                return None;
            }
            (Invariant::UndecidedOnlyInOutages, "replicas were Ready, and no program was at fault".to_owned())
        }
    };
    let (policy, begin) = (&request.policy, request.begin.as_secs_f64());
    let text = format!("policy {policy}: request from {begin:.3} s: {}: {why}", request.outcome);
    Some(Violation { at: request.end, invariant, text })
}

/// The time of a request, in which several generations of its policy may answer.
struct Window<'a> {
    request: &'a Request,
    policy: &'a PolicyHistory,
    history: &'a History,
    limits: Limits,
}

/// The relation of a request to the live time of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timing {
    /// The generation may answer the request.
    Within,
    /// The generation was never live.
    NeverLive,
    /// The request ended at a time when the generation was not live yet.
    TooEarly,
    /// The request began after the grace of the generation.
    TooLate,
}

impl Window<'_> {
    fn timing(&self, generation: i64) -> Timing {
        if !self.policy.lived.contains(&generation) {
            return Timing::NeverLive;
        }
        if self.request.end < self.policy.live_after(generation) {
            return Timing::TooEarly;
        }
        let Some(replaced) = self.policy.replaced_by(generation) else { return Timing::Within };
        // While the control plane does not work, API servers do not learn of a switch.
        let outage = self.history.control_plane_outage(replaced, self.request.begin);
        let end = replaced + self.limits.grace + self.limits.propagation + outage;
        if self.request.begin > end { Timing::TooLate } else { Timing::Within }
    }

    /// Checks an answer that names its spec. Returns the violated invariant with the reason; `None` if the answer is right.
    fn check_answer(&self, marker: &str, verdict: Verdict) -> Option<(Invariant, String)> {
        let known: Vec<_> = self.policy.generations.iter().filter(|(_, known)| known.marker == marker).collect();
        let matching = known.iter().filter(|(_, known)| known.verdict == verdict).map(|(generation, _)| **generation);
        let matching: Vec<i64> = matching.collect();
        if matching.is_empty() {
            let specs: Vec<_> = known.iter().map(|(_, known)| known.verdict.as_str()).collect();
            return Some((
                Invariant::AnswersAreOfKnownSpecs,
                format!("the spec {marker} {specs:?} does not answer so"),
            ));
        }
        let timings: Vec<_> = matching.iter().map(|generation| self.timing(*generation)).collect();
        if timings.contains(&Timing::Within) {
            return None;
        }
        let invariant = if timings.contains(&Timing::TooLate) {
            Invariant::RetiredGenerationsDoNotAnswer
        } else {
            Invariant::OnlyLiveGenerationsAnswer
        };
        let bounds: Vec<_> = matching.iter().zip(timings).map(|(it, timing)| self.describe(*it, timing)).collect();
        Some((invariant, bounds.join(", ")))
    }

    /// Checks an answer that allows the request without a marker.
    fn check_unmarked(&self) -> Option<(Invariant, String)> {
        let in_window = self.policy.generations.iter().filter(|(it, _)| self.timing(**it) == Timing::Within);
        let in_window: Vec<_> = in_window.collect();
        if in_window.iter().any(|(_, known)| known.verdict == Verdict::Allows) {
            return None;
        }
        let specs = in_window.iter().map(|(it, known)| format!("{it} {}", known.verdict.as_str()));
        let specs: Vec<_> = specs.collect();
        Some((Invariant::AllowedOnlyIfAGenerationAllows, format!("generations in its window: {}", specs.join(", "))))
    }

    fn describe(&self, generation: i64, timing: Timing) -> String {
        let from = self.policy.live_after(generation).as_secs_f64();
        match (timing, self.policy.replaced_by(generation)) {
            (Timing::NeverLive, _) => format!("generation {generation} was never live"),
            (_, None) => format!("generation {generation} became live after {from:.3} s"),
            (_, Some(until)) => {
                let until = until.as_secs_f64();
                format!("generation {generation} became live after {from:.3} s, and was replaced by {until:.3} s")
            }
        }
    }
}

fn check_previews(history: &History) -> Vec<Violation> {
    let wrong = history.previews.iter().filter(|preview| {
        preview.counted > preview.requests || (preview.is_complete && preview.counted < preview.requests)
    });
    wrong
        .map(|preview| Violation {
            at: preview.at,
            invariant: Invariant::PreviewsCountRequestsOnce,
            text: format!("{}: {} of {} requests were counted", preview.experiment, preview.counted, preview.requests),
        })
        .collect()
}

/// The state of a policy after quiet.
#[derive(Debug, Clone)]
pub struct FinalPolicy {
    pub name: String,
    /// `metadata.generation`.
    pub newest: i64,
    /// The generation at which the webhook points.
    pub live: Option<i64>,
    /// `status.liveGeneration`.
    pub reported: Option<i64>,
    /// The Ready replicas that have not loaded the live generation.
    pub missing_on: Vec<String>,
}

/// Checks the state of the policies after quiet.
///
/// If the newest spec does not work, another good generation must be live, and none that is older than the newest good
/// generation that was live. A good generation that a newer spec replaced before its rollout ended need not be live.
#[must_use]
pub fn check_final(at: Time, policies: &[FinalPolicy], history: &History) -> Vec<Violation> {
    let described = policies.iter().filter_map(|policy| Some((policy, describe_final(policy, history)?)));
    described
        .map(|(policy, why)| Violation {
            at,
            invariant: Invariant::NewestGoodGenerationIsLive,
            text: format!("policy {}: {why}", policy.name),
        })
        .collect()
}

/// Returns the fault of the state of a policy; `None` if the state is right.
fn describe_final(policy: &FinalPolicy, history: &History) -> Option<String> {
    let Some(known) = history.policies.get(&policy.name) else { return Some("its history is unknown".to_owned()) };
    let Some(live) = policy.live else { return Some("no generation is live".to_owned()) };
    let newest = policy.newest;
    if known.fails(live) {
        return Some(format!("generation {live} is live, and cannot be prepared"));
    }
    if !known.fails(newest) && live != newest {
        return Some(format!("generation {live} is live, and not the newest, {newest}"));
    }
    if let Some(lived) = known.newest_lived().filter(|lived| live < *lived) {
        return Some(format!("generation {live} is live, and the newer {lived} was live before"));
    }
    if policy.reported != Some(live) {
        return Some(format!("generation {live} is live, and the status reports {:?}", policy.reported));
    }
    let missing = policy.missing_on.join(", ");
    (!missing.is_empty()).then(|| format!("generation {live} is live, and not loaded on {missing}"))
}

#[cfg(test)]
mod tests;
