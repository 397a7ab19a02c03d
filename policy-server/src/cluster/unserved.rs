//! The request policies whose requests this replica must refuse. No webhook calls a request policy, so this replica alone decides
//! whether its requests need its answer. It decides by the marks on the revisions (docs/adr/0019), as every other replica does.

use std::collections::BTreeMap;

use proviso_core::PolicyId;

use super::Follower;
use super::object::Object;
use crate::lifecycle::Slot;
use crate::table::{RequestPoint, UnservedRequests};

/// The state of one generation of a request policy.
#[derive(Clone, Copy, Debug)]
struct Generation {
    number: u64,
    mark: Mark,
    progress: Progress,
    /// True if the revision and its policy are enabled.
    is_enabled: bool,
}

/// The record of the operator on a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The generation has not been live.
    None,
    Live,
    /// The generation was live.
    Retired,
}

/// The progress of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// This replica has not loaded the generation, and no failure is known.
    Pending,
    /// This replica has loaded the generation.
    Loaded,
    /// The leader or this replica could not prepare the generation.
    Failed,
}

/// The generations of a policy whose requests must be refused.
#[derive(Debug, PartialEq, Eq)]
struct Unserved {
    /// The generation whose requests must be refused.
    covering: u64,
    /// The generation that is not loaded, or that has failed.
    cause: u64,
    is_live: bool,
}

/// Returns the requests that must be refused; `None` if the live generation is loaded, or if the policy decides about no requests yet.
fn unserved(generations: &[Generation]) -> Option<Unserved> {
    // While the operator switches to the next generation, both are marked.
    let live = generations.iter().filter(|it| it.mark == Mark::Live).max_by_key(|it| it.number);
    if let Some(Generation { number, progress, .. }) = live {
        let unserved = Unserved { covering: *number, cause: *number, is_live: true };
        return (*progress != Progress::Loaded).then_some(unserved);
    }
    let newest = generations.iter().max_by_key(|it| it.number).filter(|it| it.is_enabled && it.mark == Mark::None)?;
    let last_live = generations.iter().filter(|it| it.mark != Mark::None).map(|it| it.number).max().unwrap_or_default();
    // A failure counts until a generation is live: an update that is being prepared does not open a gap.
    let failed = generations.iter().filter(|it| it.number > last_live && it.progress == Progress::Failed);
    let failed = failed.max_by_key(|it| it.number)?;
    Some(Unserved { covering: newest.number, cause: failed.number, is_live: false })
}

impl Object {
    /// Returns the state of a generation of a request policy; `None` for another revision.
    fn request_generation(&self, slot: Option<&Slot>) -> Option<(&PolicyId, Generation)> {
        let (policy, number) = self.request_policy()?;
        let reported = &self.observed.reported;
        let generation = Generation {
            number,
            mark: match (reported.is_live, reported.was_live) {
                (true, _) => Mark::Live,
                (false, true) => Mark::Retired,
                (false, false) => Mark::None,
            },
            progress: match slot {
                Some(slot) if slot.loaded().is_some() => Progress::Loaded,
                Some(slot) if slot.failure().is_some() => Progress::Failed,
                _ if reported.failure().is_some() => Progress::Failed,
                _ => Progress::Pending,
            },
            is_enabled: self.is_enabled() && self.spec().is_none_or(|spec| spec.enabled),
        };
        Some((policy, generation))
    }

    /// Returns the reason why the generation does not answer requests.
    fn cause(&self, slot: Option<&Slot>) -> String {
        let local = slot.and_then(Slot::failure).map(ToString::to_string);
        let reported = self.observed.reported.failure().map(|it| format!("{}: {}", it.reason, it.message));
        let none = if slot.is_some() { "it is being loaded" } else { "its revision is disabled" };
        local.or(reported).unwrap_or_else(|| none.to_owned())
    }
}

/// A generation with its object and its slot.
type Observed<'a> = (Generation, &'a Object, Option<&'a Slot>);

impl Follower {
    /// Returns the request policies whose requests this replica must refuse.
    pub(super) fn unserved_requests(&self) -> Vec<(PolicyId, UnservedRequests)> {
        let mut policies: BTreeMap<&PolicyId, Vec<Observed<'_>>> = BTreeMap::new();
        for (name, object) in &self.objects {
            let slot = self.lifecycle.get(name);
            if let Some((policy, generation)) = object.request_generation(slot) {
                policies.entry(policy).or_default().push((generation, object, slot));
            }
        }
        let mut all = Vec::new();
        for (policy, generations) in policies {
            let states: Vec<_> = generations.iter().map(|(generation, ..)| *generation).collect();
            let Some(found) = unserved(&states) else { continue };
            let of = |number| generations.iter().find(|(generation, ..)| generation.number == number);
            let (Some((_, covering, _)), Some((_, cause, slot))) = (of(found.covering), of(found.cause)) else {
                continue;
            };
            let request = covering.spec().and_then(|spec| spec.request.as_ref());
            let point = request.and_then(|request| RequestPoint::new("spec.data.request", policy, request).ok());
            let live = found.is_live.then_some(found.covering);
            let why = match live {
                Some(_) => cause.cause(*slot),
                None => format!("generation {}: {}", found.cause, cause.cause(*slot)),
            };
            all.push((policy.clone(), UnservedRequests { point, live, why }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a generation: its number, and the letters of its state. `l` is live, `w` was live, `e` is enabled, `a` is loaded (answers),
    /// and `f` has failed.
    fn generation(text: &str) -> Generation {
        let number = text.trim_end_matches(char::is_alphabetic);
        let has = |letter| text.contains(letter);
        let mark = match (has('l'), has('w')) {
            (true, _) => Mark::Live,
            (false, true) => Mark::Retired,
            (false, false) => Mark::None,
        };
        let progress = match (has('a'), has('f')) {
            (true, _) => Progress::Loaded,
            (false, true) => Progress::Failed,
            (false, false) => Progress::Pending,
        };
        Generation { number: number.parse().unwrap(), mark, progress, is_enabled: has('e') }
    }

    #[test]
    fn requests_are_refused_unless_the_highest_live_generation_is_loaded() {
        let live = |number| Some(Unserved { covering: number, cause: number, is_live: true });
        let never = |covering, cause| Some(Unserved { covering, cause, is_live: false });
        for (generations, wanted) in [
            ("", None),
            ("1lea", None),
            // Not loaded: it is being loaded, it has failed, or somebody disabled its revision.
            ("1le", live(1)),
            ("1lef", live(1)),
            ("1l", live(1)),
            // The operator has marked the next generation, and not removed the old mark yet.
            ("1lea 2lea", None),
            ("1lea 2le", live(2)),
            ("1lef 2lea", None),
            // The last generation that worked keeps answering, whatever happens to a newer one.
            ("1lea 2e", None),
            ("1lea 2ef", None),
            ("1lea 2ea", None),
            // A new policy has no effect while it is being loaded. It is refused if it does not work.
            ("1e", None),
            ("1ea", None),
            ("1ef", never(1, 1)),
            // The correction of a policy that never worked opens no gap while it is being loaded.
            ("1f 2e", never(2, 1)),
            ("1f 2ea", never(2, 1)),
            ("1f 2ef", never(2, 2)),
            ("1f 2lea", None),
            // Disabled, and enabled again with a program that does not work.
            ("1w 2", None),
            ("1wf 2", None),
            ("1w 2 3ef", never(3, 3)),
            ("1w 2 3e", None),
            // The failure of a generation before the last live one does not count any more.
            ("1f 2w 3 4e", None),
            // A deleted policy: its revision answers nobody any more, and is about to be deleted.
            ("1wea", None),
            ("1wef", None),
        ] {
            let states: Vec<_> = generations.split_whitespace().map(generation).collect();
            assert_eq!(unserved(&states), wanted, "{generations:?}");
        }
    }
}
