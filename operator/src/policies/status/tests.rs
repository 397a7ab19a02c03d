use std::time::Duration;

use proviso_core::Failure;

use proviso_crds::{Mode, PolicyRevision};
use serde_json::{Value, json};

use super::*;

/// One of two replicas serves the newest generation.
fn decision(progress: Progress, live: Option<i64>) -> Decision {
    Decision {
        create: false,
        enable: Vec::new(),
        disable: Vec::new(),
        delete: Vec::new(),
        live,
        is_held: false,
        progress,
        ready: 1,
        total: 2,
        is_gone: false,
        look_again: None,
    }
}

fn observed(live: Option<i64>) -> Observed {
    Observed {
        generation: 2,
        is_enabled: true,
        is_deleted: false,
        live,
        is_held: false,
        revisions: Vec::new(),
        pods: Vec::new(),
        history_limit: 10,
        retire_after: Duration::from_mins(5),
    }
}

/// A revision of this generation in this mode.
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

fn told(progress: Progress, live: Option<i64>, held: Option<&BreakGlass>) -> PolicyStatus {
    let revisions = [revision(1, "Monitor"), revision(2, "Protect")];
    status(&[], &observed(live), &decision(progress, live), held, &revisions)
}

#[test]
fn the_mode_is_that_of_the_live_generation() {
    for (live, mode) in [(Some(1), Some(Mode::Monitor)), (Some(2), Some(Mode::Protect)), (None, None), (Some(3), None)]
    {
        assert_eq!(told(Progress::Loading, live, None).mode, mode, "{live:?}");
    }
}

fn failure() -> Failure {
    Failure::new("PullError", "no such host")
}

fn held() -> BreakGlass {
    BreakGlass {
        configuration: "validatingwebhookconfiguration/proviso-cluster.a".to_owned(),
        why: "INC-17".to_owned(),
    }
}

#[test]
fn each_step_says_whether_it_is_done_or_what_it_waits_for() {
    let not_loaded = || vec![("server-1".to_owned(), Failure { reason: Reason::new("CacheError"), ..failure() })];
    let scheduled = "True RevisionCreated";
    for (progress, initialized, ready, live) in [
        (Progress::Unscheduled, "Unknown Preparing", "False Preparing", "False Preparing"),
        (Progress::Initializing, "Unknown Preparing", "False Preparing", "False Preparing"),
        (Progress::InitializationFailed(failure()), "False PullError", "False NotInitialized", "False NotInitialized"),
        (Progress::NoReplicas, "True Prepared", "False NoReplicas", "False NoReplicas"),
        (Progress::Loading, "True Prepared", "False Loading", "False Loading"),
        (Progress::LoadingFailed(not_loaded()), "True Prepared", "False LoadingFailed", "False LoadingFailed"),
        (Progress::Held, "True Prepared", "True Loaded", "False BreakGlass"),
        (Progress::Live, "True Prepared", "True Loaded", "True Live"),
        (Progress::Disabled, "Unknown Disabled", "False Disabled", "False Disabled"),
    ] {
        let status = told(progress.clone(), Some(1), None);
        let said: Vec<_> = status.conditions.iter().map(|it| format!("{} {}", it.status, it.reason)).collect();
        assert_eq!(said, [scheduled, initialized, ready, live], "{progress:?}");
        let names: Vec<_> = status.conditions.iter().map(|it| it.type_.as_str()).collect();
        assert_eq!(names, ["Scheduled", "Initialized", "Ready", "Live"]);
        assert!(status.conditions.iter().all(|it| it.observed_generation == Some(2)), "{status:?}");
        assert_eq!(status.replicas.as_ref().map(|it| it.summary.as_str()), Some("1/2"));
    }
}

#[test]
fn messages_name_the_cause_and_who_answers_meanwhile() {
    let two = vec![("server-0".to_owned(), failure()), ("server-1".to_owned(), failure())];
    for (progress, live, step, expected) in [
        (Progress::Unscheduled, None, 3, "not yet; nothing answers"),
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
        let status = told(progress.clone(), live, None);
        assert_eq!(status.conditions[step].message, expected, "{progress:?}");
    }
}

#[test]
fn one_word_says_where_a_policy_stands() {
    for (progress, live, phase) in [
        (Progress::Unscheduled, None, PolicyPhase::Pending),
        (Progress::Initializing, Some(1), PolicyPhase::Updating),
        (Progress::InitializationFailed(failure()), Some(1), PolicyPhase::Failed),
        (Progress::NoReplicas, None, PolicyPhase::Pending),
        (Progress::Loading, Some(1), PolicyPhase::Updating),
        (Progress::LoadingFailed(Vec::new()), None, PolicyPhase::Failed),
        (Progress::Held, Some(1), PolicyPhase::Updating),
        (Progress::Live, Some(2), PolicyPhase::Active),
        (Progress::Disabled, None, PolicyPhase::Disabled),
    ] {
        let status = told(progress.clone(), live, None);
        assert_eq!((status.phase, status.live_generation), (Some(phase), live), "{progress:?}");
    }
}

#[test]
fn a_webhook_that_somebody_holds_is_told_with_the_reason_and_the_way_back() {
    for (progress, live) in [(Progress::Live, 2), (Progress::Held, 1), (Progress::Initializing, 1)] {
        let status = told(progress, Some(live), Some(&held()));
        let said = &status.conditions[3];
        assert_eq!((said.status.as_str(), said.reason.as_str()), ("Unknown", "BreakGlass"));
        let back = "kubectl annotate validatingwebhookconfiguration/proviso-cluster.a proviso.dev/break-glass-";
        assert!(said.message.contains("\"INC-17\"") && said.message.ends_with(back), "{}", said.message);
    }
}

#[test]
fn events_are_about_changes_and_not_about_states() {
    let of = |progress, live| told(progress, live, None);
    let broken = |live| told(Progress::Held, Some(live), Some(&held()));
    let pull = || Progress::InitializationFailed(failure());
    let other_cause = Progress::InitializationFailed(Failure { message: "timed out".to_owned(), ..failure() });
    let cannot = || Progress::LoadingFailed(vec![("server-1".to_owned(), failure())]);
    let loading =
        "Warning LoadingFailed: generation 2: not every Ready replica has loaded it; server-1: PullError: no such host";
    let (ended, live_1) =
        ("Normal BreakGlassEnded: the webhook is Proviso's again", "Normal Live: generation 1 answers requests");
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
            &["Normal NotLive: requests are not decided by this policy any more"],
        ),
        (broken(1), broken(1), &[]),
        (broken(1), of(Progress::Live, Some(2)), &["Normal Live: generation 2 answers requests", ended]),
        (broken(1), of(pull(), Some(1)), &[ended, failed]),
    ];
    for (old, new, expected) in cases {
        let said: Vec<_> = events(&old, &new).into_iter().map(|event| line(&event)).collect();
        assert_eq!(said, expected, "{old:?} to {new:?}");
    }
    let said: Vec<_> = events(&of(Progress::Loading, Some(1)), &broken(1)).iter().map(line).collect();
    assert!(said.len() == 1 && said[0].starts_with("Warning BreakGlass: "), "{said:?}");
}

#[test]
fn a_failure_of_another_generation_is_news_though_it_is_the_same() {
    let old = told(Progress::InitializationFailed(failure()), None, None);
    let mut new: Value = json!(old);
    for condition in new["conditions"].as_array_mut().unwrap() {
        condition["observedGeneration"] = json!(3);
    }
    let said = events(&old, &serde_json::from_value(new).unwrap());
    assert_eq!(said.iter().map(line).collect::<Vec<_>>(), ["Warning PullError: generation 3: no such host"]);
}

fn line(event: &Event) -> String {
    let type_ = if matches!(event.type_, EventType::Warning) { "Warning" } else { "Normal" };
    format!("{type_} {}: {}", event.reason, event.note.as_deref().unwrap_or_default())
}
