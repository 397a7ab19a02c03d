//! The recorded history of a run: the generations of the policies, the answers to requests, and the outages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A time since the start of the run.
pub type Time = Duration;

/// The history of a run.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The history of each policy, by its name.
    pub policies: BTreeMap<String, PolicyHistory>,
    /// The answered requests, in the order of their answers.
    pub requests: Vec<Request>,
    pub outages: Vec<Outage>,
    /// The reported numbers of previews.
    pub previews: Vec<PreviewCount>,
    /// The processes that crashed.
    pub crashes: Vec<Note>,
    /// The specs that must be accepted, and were refused.
    pub refusals: Vec<Note>,
    /// The steps of the run and other events, for its reader.
    pub notes: Vec<Note>,
}

/// An event, described for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub at: Time,
    pub text: String,
}

/// The effect of a spec on the requests of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Denies with its marker as the message.
    Denies,
    /// Allows, and changes nothing.
    Allows,
    /// Allows, and adds its marker to the object.
    AllowsMarked,
    /// Cannot be prepared, so no generation with this spec may become live.
    Fails,
}

impl Verdict {
    const ALL: [Self; 4] = [Self::Denies, Self::Allows, Self::AllowsMarked, Self::Fails];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denies => "denies",
            Self::Allows => "allows",
            Self::AllowsMarked => "allows-marked",
            Self::Fails => "fails",
        }
    }

    /// Returns the verdict with this name; `None` if there is none.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.as_str() == name)
    }
}

/// The history of one policy.
#[derive(Debug, Clone, Default)]
pub struct PolicyHistory {
    /// The specs of the generations.
    pub generations: BTreeMap<i64, Generation>,
    /// The generations that were live: the webhook pointed at them, or their revision has the condition `Live`.
    pub lived: BTreeSet<i64>,
    /// The generations at which the webhook pointed, oldest sighting first.
    pub sightings: Vec<Sighting>,
}

/// The spec of a generation. Several generations have the same spec after a rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The text that an answer of this spec contains. It is unique among specs.
    pub marker: String,
    pub verdict: Verdict,
}

/// Consecutive looks at the webhook of a policy that found the same generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The oldest generation that a webhook of the policy points at. There are two webhooks for a moment while a policy changes
    /// from validating to mutating, or back.
    pub oldest: i64,
    /// The newest generation that a webhook of the policy points at.
    pub newest: i64,
    /// The time at which the first of the looks ended.
    pub first_answered: Time,
    /// The time at which the last of the looks began.
    pub last_asked: Time,
}

impl PolicyHistory {
    /// Records the spec of a generation.
    pub fn add(&mut self, generation: i64, marker: &str, verdict: Verdict) {
        self.generations.entry(generation).or_insert_with(|| Generation { marker: marker.to_owned(), verdict });
    }

    /// Records a look at the webhooks of the policy.
    pub fn sight(&mut self, oldest: i64, newest: i64, asked: Time, answered: Time) {
        self.lived.extend([oldest, newest]);
        match self.sightings.last_mut() {
            Some(last) if (last.oldest, last.newest) == (oldest, newest) => last.last_asked = asked,
            _ => self.sightings.push(Sighting { oldest, newest, first_answered: answered, last_asked: asked }),
        }
    }

    /// Returns the last time at which this generation was certainly not live yet: a look found only older generations.
    #[must_use]
    pub fn live_after(&self, generation: i64) -> Time {
        let earlier = self.sightings.iter().rfind(|sighting| sighting.newest < generation);
        earlier.map(|sighting| sighting.last_asked).unwrap_or_default()
    }

    /// Returns the first time at which a newer generation had certainly replaced this one; `None` if no look found that.
    #[must_use]
    pub fn replaced_by(&self, generation: i64) -> Option<Time> {
        let later = self.sightings.iter().find(|sighting| sighting.oldest > generation);
        later.map(|sighting| sighting.first_answered)
    }

    /// Returns the newest generation whose spec works, and that was live.
    #[must_use]
    pub fn newest_lived(&self) -> Option<i64> {
        self.lived.iter().rfind(|generation| !self.fails(**generation)).copied()
    }

    /// Returns true if the spec of this generation cannot be prepared.
    #[must_use]
    pub fn fails(&self, generation: i64) -> bool {
        self.generations.get(&generation).is_some_and(|known| known.verdict == Verdict::Fails)
    }
}

/// A request for admission and its answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// The policy that covers the request.
    pub policy: String,
    pub begin: Time,
    pub end: Time,
    pub outcome: Outcome,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The request is allowed; `None` if no policy has added its marker.
    Allowed(Option<String>),
    /// The request is denied with this marker.
    Denied(String),
    /// The request is denied for want of a decision: the policy server did not answer, or could not decide.
    Undecided(String),
    /// The API server did not answer, or failed.
    Unanswered(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(None) => f.write_str("allowed"),
            Self::Allowed(Some(marker)) => write!(f, "allowed by {marker}"),
            Self::Denied(marker) => write!(f, "denied by {marker}"),
            Self::Undecided(message) => write!(f, "no decision: {message}"),
            Self::Unanswered(message) => write!(f, "no answer: {message}"),
        }
    }
}

/// A time in which requests may stay without a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    pub kind: OutageKind,
    pub cause: String,
    pub begin: Time,
    /// The end; `None` while the outage lasts.
    pub end: Option<Time>,
}

impl Outage {
    /// Returns true if the outage, prolonged by `slack`, has a common time with this interval.
    #[must_use]
    pub fn overlaps(&self, begin: Time, end: Time, slack: Duration) -> bool {
        self.begin <= end && self.end.is_none_or(|over| begin <= over + slack)
    }
}

/// The kind of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageKind {
    /// The API server or etcd does not work. API servers learn of changes later.
    ControlPlane,
    /// A replica does not work, and API servers may still call it.
    Replica,
    /// No replica is Ready.
    NoReplica,
}

impl History {
    /// Records the begin of an outage. Returns its number, for [`Self::end_outage`].
    pub fn begin_outage(&mut self, at: Time, kind: OutageKind, cause: String) -> usize {
        self.outages.push(Outage { kind, cause, begin: at, end: None });
        self.outages.len() - 1
    }

    /// Records the end of an outage. The first end counts.
    pub fn end_outage(&mut self, at: Time, number: usize) {
        if let Some(outage) = self.outages.get_mut(number) {
            outage.end = outage.end.or(Some(at));
        }
    }

    /// Returns true if a request in this interval may stay without a decision. `slack` is the time after the end of an outage in
    /// which API servers may still call a replica that does not work.
    #[must_use]
    pub fn is_outage(&self, begin: Time, end: Time, slack: Duration) -> bool {
        self.outages.iter().any(|outage| outage.overlaps(begin, end, slack))
    }

    /// Returns the time between `from` and `to` in which the control plane did not work. Simultaneous outages count separately.
    #[must_use]
    pub fn control_plane_outage(&self, from: Time, to: Time) -> Duration {
        let outages = self.outages.iter().filter(|outage| outage.kind == OutageKind::ControlPlane);
        outages.map(|outage| outage.end.unwrap_or(to).min(to).saturating_sub(outage.begin.max(from))).sum()
    }
}

/// The number of requests that an experiment has previewed, as its status reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewCount {
    pub at: Time,
    pub experiment: String,
    /// The sum of the evaluated and of the dropped requests.
    pub counted: u64,
    /// The largest number that is right.
    pub requests: u64,
    /// True if no fault and no switch disturbed the preview, so that exactly this number of requests must be counted.
    pub is_complete: bool,
}
