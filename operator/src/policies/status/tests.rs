use std::time::Duration;

use proviso_core::Failure;

use proviso_crds::{Mode, PolicyRevision};
use serde_json::{Value, json};

use super::*;

/// Returns a decision in which one of two replicas serves the newest generation.
fn decision(progress: Progress, live: Option<i64>) -> Decision {
    Decision {
        create: false,
        enable: Vec::new(),
        disable: Vec::new(),
        delete: Vec::new(),
        live,
        is_break_glass: false,
        progress,
        ready: 1,
        total: 2,
        is_cleaned_up: false,
        requeue_after: None,
    }
}

fn observed(live: Option<i64>) -> Observed {
    Observed {
        generation: 2,
        is_enabled: true,
        is_deleted: false,
        live,
        is_break_glass: false,
        revisions: Vec::new(),
        pods: Vec::new(),
        history_limit: 10,
        retire_after: Duration::from_mins(5),
    }
}

/// Returns a revision of this generation in this mode.
fn revision(generation: i64, mode: &str) -> Revision {
    let revision: PolicyRevision = serde_json::from_value(json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "metadata": {"name": "cluster.a"},
        "spec": {
            "policyServer": "default", "enabled": true,
            "policyRef": {"kind": "ClusterPolicy", "name": "a", "uid": "u", "generation": generation},
            "data": {"program": {"cel": {"validations": []}}, "admission": {"rules": [], "mode": mode}},
        },
    }))
    .unwrap();
    revision.into()
}

fn status_of(progress: Progress, live: Option<i64>, break_glass: Option<&BreakGlass>) -> PolicyStatus {
    let revisions = [revision(1, "Monitor"), revision(2, "Protect")];
    status(&[], &observed(live), &decision(progress, live), break_glass, &revisions)
}

#[test]
fn the_mode_is_that_of_the_live_generation() {
    for (live, mode) in [(Some(1), Some(Mode::Monitor)), (Some(2), Some(Mode::Protect)), (None, None), (Some(3), None)]
    {
        assert_eq!(status_of(Progress::Loading, live, None).mode, mode, "{live:?}");
    }
}

fn failure() -> Failure {
    Failure::new("PullError", "no such host")
}

fn break_glass() -> BreakGlass {
    BreakGlass {
        configuration: "validatingwebhookconfiguration/proviso-cluster.a".to_owned(),
        reason: "INC-17".to_owned(),
    }
}

#[test]
fn each_condition_reports_its_status_and_reason() {
    let not_loaded = || vec![("server-1".to_owned(), Failure { reason: Reason::new("CacheError"), ..failure() })];
    let scheduled = "True RevisionCreated";
    for (progress, initialized, ready, live) in [
        (Progress::Unscheduled, "Unknown Preparing", "False Preparing", "False Preparing"),
        (Progress::Initializing, "Unknown Preparing", "False Preparing", "False Preparing"),
        (Progress::InitializationFailed(failure()), "False PullError", "False NotInitialized", "False NotInitialized"),
        (Progress::NoReplicas, "True Prepared", "False NoReplicas", "False NoReplicas"),
        (Progress::Loading, "True Prepared", "False Loading", "False Loading"),
        (Progress::LoadingFailed(not_loaded()), "True Prepared", "False LoadingFailed", "False LoadingFailed"),
        (Progress::BreakGlass, "True Prepared", "True Loaded", "False BreakGlass"),
        (Progress::Live, "True Prepared", "True Loaded", "True Live"),
        (Progress::Disabled, "Unknown Disabled", "False Disabled", "False Disabled"),
    ] {
        let status = status_of(progress.clone(), Some(1), None);
        let actual: Vec<_> = status.conditions.iter().map(|it| format!("{} {}", it.status, it.reason)).collect();
        assert_eq!(actual, [scheduled, initialized, ready, live], "{progress:?}");
        let names: Vec<_> = status.conditions.iter().map(|it| it.type_.as_str()).collect();
        assert_eq!(names, ["Scheduled", "Initialized", "Ready", "Live"]);
        assert!(status.conditions.iter().all(|it| it.observed_generation == Some(2)), "{status:?}");
        assert_eq!(status.replicas.as_ref().map(|it| it.summary.as_str()), Some("1/2"));
    }
}

#[test]
fn messages_name_the_cause_and_the_generation_that_answers() {
    let two = vec![("server-0".to_owned(), failure()), ("server-1".to_owned(), failure())];
    for (progress, live, step, expected) in [
        (Progress::Unscheduled, None, 3, "not yet; no generation answers requests"),
        (Progress::Initializing, Some(1), 3, "not yet; generation 1 goes on answering"),
        (Progress::InitializationFailed(failure()), Some(1), 1, "no such host"),
        (Progress::Loading, Some(1), 2, "not every Ready replica has loaded it"),
        (
            Progress::LoadingFailed(two),
            Some(1),
            2,
            "not every Ready replica has loaded it; server-0: PullError: no such host; server-1: PullError: no such host",
        ),
        (Progress::NoReplicas, None, 2, "no replica of the policy server is Ready"),
        (Progress::Live, Some(2), 3, "requests are answered by it"),
        (Progress::Disabled, None, 3, "spec.enabled is false: requests are not decided by this policy"),
    ] {
        let status = status_of(progress.clone(), live, None);
        assert_eq!(status.conditions[step].message, expected, "{progress:?}");
    }
}

#[test]
fn the_phase_follows_the_progress_of_the_rollout() {
    for (progress, live, phase) in [
        (Progress::Unscheduled, None, PolicyPhase::Pending),
        (Progress::Initializing, Some(1), PolicyPhase::Updating),
        (Progress::InitializationFailed(failure()), Some(1), PolicyPhase::Failed),
        (Progress::NoReplicas, None, PolicyPhase::Pending),
        (Progress::Loading, Some(1), PolicyPhase::Updating),
        (Progress::LoadingFailed(Vec::new()), None, PolicyPhase::Failed),
        (Progress::BreakGlass, Some(1), PolicyPhase::Updating),
        (Progress::Live, Some(2), PolicyPhase::Active),
        (Progress::Disabled, None, PolicyPhase::Disabled),
    ] {
        let status = status_of(progress.clone(), live, None);
        assert_eq!((status.phase, status.live_generation), (Some(phase), live), "{progress:?}");
    }
}

#[test]
fn break_glass_is_reported_with_its_reason_and_the_command_to_end_it() {
    for (progress, live) in [(Progress::Live, 2), (Progress::BreakGlass, 1), (Progress::Initializing, 1)] {
        let status = status_of(progress, Some(live), Some(&break_glass()));
        let actual = &status.conditions[3];
        assert_eq!((actual.status.as_str(), actual.reason.as_str()), ("Unknown", "BreakGlass"));
        let back = "kubectl annotate validatingwebhookconfiguration/proviso-cluster.a proviso.dev/break-glass-";
        assert!(actual.message.contains("\"INC-17\"") && actual.message.ends_with(back), "{}", actual.message);
    }
}

#[test]
fn events_report_changes_and_not_states() {
    let of = |progress, live| status_of(progress, live, None);
    let broken = |live| status_of(Progress::BreakGlass, Some(live), Some(&break_glass()));
    let pull = || Progress::InitializationFailed(failure());
    let other_cause = Progress::InitializationFailed(Failure { message: "timed out".to_owned(), ..failure() });
    let cannot = || Progress::LoadingFailed(vec![("server-1".to_owned(), failure())]);
    let loading =
        "Warning LoadingFailed: generation 2: not every Ready replica has loaded it; server-1: PullError: no such host";
    let (ended, live_1) = (
        "Normal BreakGlassEnded: the operator reconciles the webhook again",
        "Normal Live: generation 1 answers requests",
    );
    let failed = "Warning PullError: generation 2: no such host";
    let cases: [(PolicyStatus, PolicyStatus, &[&str]); 13] = [
        (PolicyStatus::default(), of(Progress::Initializing, None), &[]),
        (PolicyStatus::default(), of(pull(), None), &[failed]),
        (PolicyStatus::default(), of(Progress::Loading, Some(1)), &[live_1]),
        (of(Progress::Loading, Some(1)), of(Progress::Live, Some(2)), &["Normal Live: generation 2 answers requests"]),
        (of(Progress::Live, Some(2)), of(Progress::Live, Some(2)), &[]),
        (of(Progress::Initializing, Some(1)), of(pull(), Some(1)), &[failed]),
        (of(pull(), Some(1)), of(pull(), Some(1)), &[]),
        (of(pull(), Some(1)), of(other_cause, Some(1)), &["Warning PullError: generation 2: timed out"]),
        (of(Progress::Loading, Some(1)), of(cannot(), Some(1)), &[loading]),
        (
            of(Progress::Live, Some(2)),
            of(Progress::Disabled, None),
            &["Normal NotLive: requests are no longer decided by this policy"],
        ),
        (broken(1), broken(1), &[]),
        (broken(1), of(Progress::Live, Some(2)), &["Normal Live: generation 2 answers requests", ended]),
        (broken(1), of(pull(), Some(1)), &[ended, failed]),
    ];
    for (old, new, expected) in cases {
        let actual: Vec<_> = events(&old, &new).into_iter().map(|event| line(&event)).collect();
        assert_eq!(actual, expected, "{old:?} to {new:?}");
    }
    let actual: Vec<_> = events(&of(Progress::Loading, Some(1)), &broken(1)).iter().map(line).collect();
    assert!(actual.len() == 1 && actual[0].starts_with("Warning BreakGlass: "), "{actual:?}");
}

#[test]
fn the_same_failure_of_another_generation_is_a_new_event() {
    let old = status_of(Progress::InitializationFailed(failure()), None, None);
    let mut new: Value = json!(old);
    for condition in new["conditions"].as_array_mut().unwrap() {
        condition["observedGeneration"] = json!(3);
    }
    let actual = events(&old, &serde_json::from_value(new).unwrap());
    assert_eq!(actual.iter().map(line).collect::<Vec<_>>(), ["Warning PullError: generation 3: no such host"]);
}

fn line(event: &Event) -> String {
    let type_ = if matches!(event.type_, EventType::Warning) { "Warning" } else { "Normal" };
    format!("{type_} {}: {}", event.reason, event.note.as_deref().unwrap_or_default())
}
