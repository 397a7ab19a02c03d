//! Events of an experiment for `kubectl describe`, which report changes and not states.

use kube::runtime::events::{Event, EventType};
use proviso_core::{Divergence, PolicyId, Reason};
use proviso_crds::{ConditionType, Conditions as _, DivergenceCounts, DivergenceSample, ExperimentStatus, reasons};

/// Returns an Event with this reason.
pub(super) fn event(type_: EventType, reason: &Reason, note: String) -> Event {
    Event { type_, reason: reason.to_string(), note: Some(note), action: "Preview".to_owned(), secondary: None }
}

/// Returns the Events about a change of the status. `expiry` is the notice that the message of the condition `Previewing`
/// ends with; `None` if the preview does not end soon.
pub(super) fn of_status(
    experiment: &PolicyId,
    old: &ExperimentStatus,
    new: &ExperimentStatus,
    expiry: Option<&str>,
) -> Vec<Event> {
    let mut events = of_conditions(old, new);
    if let Some(notice) = expiry {
        let known = old.conditions.condition(ConditionType::Previewing);
        if known.is_none_or(|known| !known.message.ends_with(notice)) {
            events.push(event(EventType::Normal, &reasons::PREVIEW_EXPIRES, notice.to_owned()));
        }
    }
    // A difference is what a preview looks for, and no fault.
    let divergence = first_divergence(experiment, old, new);
    events.extend(divergence.map(|note| event(EventType::Normal, &reasons::FIRST_DIVERGENCE, note)));
    events
}

fn of_conditions(old: &ExperimentStatus, new: &ExperimentStatus) -> Vec<Event> {
    let mut events = Vec::new();
    for condition in &new.conditions {
        let is_new = !old.conditions.iter().any(|it| {
            (&it.type_, &it.status, &it.reason, it.observed_generation)
                == (&condition.type_, &condition.status, &condition.reason, condition.observed_generation)
        });
        let is_previewing = condition.type_ == ConditionType::Previewing.as_str();
        let (type_, is_reported) = match condition.status.as_str() {
            "True" => (EventType::Normal, is_previewing),
            "False" if is_previewing => (EventType::Warning, condition.reason == reasons::LOADING_FAILED),
            "False" => (EventType::Warning, true),
            _ => (EventType::Normal, false),
        };
        if is_new && is_reported {
            let generation = condition.observed_generation.unwrap_or_default();
            let note = format!("generation {generation}: {}", condition.message);
            events.push(event(type_, &condition.reason.clone().into(), note));
        }
    }
    events
}

/// Returns the note about the first request on which the experiment and the live version differ; `None` if there is no
/// such request, or if it is known. It is reported once for each start of the preview and each live version.
fn first_divergence(experiment: &PolicyId, old: &ExperimentStatus, new: &ExperimentStatus) -> Option<String> {
    let counts = new.divergence.as_ref().filter(|counts| diverge(counts))?;
    let start = &new.preview_metadata.as_ref()?.start_time;
    let is_same = |old: &DivergenceCounts| old.since >= *start && old.live_etag == counts.live_etag;
    if old.divergence.as_ref().is_some_and(|old| is_same(old) && diverge(old)) {
        return None;
    }
    let what = new.samples.first().map_or_else(|| "a request".to_owned(), describe);
    Some(format!("{what}. To see all differences: kubectl proviso experiment status {experiment}"))
}

/// Returns whether the verdicts on any request differ.
fn diverge(counts: &DivergenceCounts) -> bool {
    Divergence::ALL.into_iter().any(|divergence| divergence != Divergence::Same && counts.of(divergence) > 0)
}

fn describe(sample: &DivergenceSample) -> String {
    let DivergenceSample { divergence, kind, namespace, user, .. } = sample;
    let place = if namespace.is_empty() { String::new() } else { format!(" in the namespace {namespace}") };
    format!("{}: a {kind}{place} from {user}", divergence.as_str())
}

#[cfg(test)]
mod tests {
    use proviso_crds::fixtures::condition;
    use serde_json::{Value, json};

    use super::*;

    const START: &str = "2026-11-21T09:00:00Z";

    /// Returns a status of the preview that was started at [`START`].
    fn status(conditions: &Value, divergence: &Value, samples: &Value) -> ExperimentStatus {
        serde_json::from_value(json!({
            "previewMetadata": {"state": "ACTIVE", "logPrefix": "PolicyPreviewLog", "startTime": START, "generation": 1},
            "conditions": conditions, "divergence": divergence, "samples": samples,
        }))
        .unwrap()
    }

    fn counts(since: &str, live_etag: &str, newly_denied: u64, errors: u64) -> Value {
        json!({
            "evaluated": 9, "same": 9, "newlyDenied": newly_denied, "newlyAllowed": 0, "mutationDiffers": 0,
            "messageDiffers": 0, "errors": errors, "dropped": 0, "since": since, "liveEtag": live_etag,
        })
    }

    fn reported(old: &ExperimentStatus, new: &ExperimentStatus, expiry: Option<&str>) -> Vec<(String, String)> {
        let events = of_status(&"ns.team.e".parse().unwrap(), old, new, expiry);
        events.into_iter().map(|it| (it.reason, it.note.unwrap_or_default())).collect()
    }

    #[test]
    fn the_first_difference_of_each_session_and_live_version_is_reported() {
        let (none, later, earlier) = (json!([]), "2026-11-21T09:30:00Z", "2026-11-21T08:59:59Z");
        let samples = json!([{
            "divergence": "NewlyDenied", "kind": "Pod", "namespace": "team", "user": "ann", "count": 1, "name": "secret",
            "message": "secret", "firstSeen": START, "lastSeen": START,
        }]);
        let new = status(&none, &counts(START, "a", 1, 0), &samples);
        for (old, is_new) in [
            (Value::Null, true),
            (counts(START, "a", 0, 0), true),
            (counts(START, "a", 1, 0), false),
            (counts(later, "a", 0, 1), false),
            (counts(START, "b", 1, 0), true),
            // Counts of an earlier session.
            (counts(earlier, "a", 1, 0), true),
        ] {
            let events = reported(&status(&none, &old, &none), &new, None);
            assert_eq!(events.len(), usize::from(is_new), "{old}");
            if let Some((reason, note)) = events.first() {
                assert_eq!(reason, "FirstDivergence");
                assert_eq!(
                    note,
                    "NewlyDenied: a Pod in the namespace team from ann. To see all differences: kubectl proviso experiment \
                     status ns.team.e"
                );
            }
        }
        let same = status(&none, &counts(START, "a", 0, 0), &none);
        assert!(reported(&ExperimentStatus::default(), &same, None).is_empty());
        let failed = status(&none, &counts(START, "a", 0, 1), &none);
        assert_eq!(reported(&same, &failed, None).len(), 1);
    }

    #[test]
    fn the_end_of_a_preview_is_announced_once() {
        let notice = "the preview stops by itself at 2026-11-22T09:00:00Z";
        let with = |message: &str| {
            status(&json!([condition("Previewing", "True", "Previewing", message, 1)]), &Value::Null, &json!([]))
        };
        let (silent, announced) = (with("it runs"), with(&format!("it runs; {notice}")));
        assert_eq!(reported(&silent, &announced, Some(notice)), [("PreviewExpires".to_owned(), notice.to_owned())]);
        assert!(reported(&announced, &announced, Some(notice)).is_empty());
        // Also if a replica that restarts changes the condition.
        let loading = format!("not every Ready replica has loaded it; {notice}");
        let loading = json!([condition("Previewing", "False", "Loading", &loading, 1)]);
        let loading = status(&loading, &Value::Null, &json!([]));
        assert!(reported(&announced, &loading, Some(notice)).is_empty());
        let events = reported(&loading, &announced, Some(notice));
        assert_eq!(events.iter().map(|(reason, _)| reason.as_str()).collect::<Vec<_>>(), ["Previewing"]);
    }
}
