use std::time::Duration;

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
        marks_before: Vec::new(),
        marks_after: Vec::new(),
        delete_webhooks: Vec::new(),
        is_break_glass: false,
        answering: live,
        progress,
        refusal: None,
        ready: 1,
        total: 2,
        silent: Vec::new(),
        warnings: Vec::new(),
        is_cleaned_up: false,
        requeue_after: None,
    }
}

fn observed() -> Observed {
    Observed {
        generation: 2,
        needs_replicas: true,
        is_enabled: true,
        is_deleted: false,
        refusal: None,
        reported_live: None,
        webhooks: Vec::new(),
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

/// Returns the Events about a policy that decides about requests.
fn events(old: &PolicyStatus, new: &PolicyStatus) -> Vec<Event> {
    super::events(old, new, Effect::Requests)
}

fn status_of(progress: Progress, live: Option<i64>, break_glass: Option<&BreakGlass>) -> PolicyStatus {
    status_after(&decision(progress, live), break_glass)
}

fn status_after(decision: &Decision, break_glass: Option<&BreakGlass>) -> PolicyStatus {
    let revisions = [revision(1, "Monitor"), revision(2, "Protect")];
    status(&[], &observed(), decision, break_glass, &revisions, "default")
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
        (Progress::NotPrepared, "Unknown NotPrepared", "False NotPrepared", "False NotPrepared"),
        (Progress::InitializationFailed(failure()), "False PullError", "False NotInitialized", "False NotInitialized"),
        (Progress::NoReplicas, "True Prepared", "False NoReplicas", "False NoReplicas"),
        (Progress::Loading, "True Prepared", "False Loading", "False Loading"),
        (Progress::Silent, "True Prepared", "False ReplicaSilent", "False ReplicaSilent"),
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
fn a_refused_policy_reports_the_reason_and_the_generation_that_answers() {
    let refusal = Failure::new(reasons::NAMESPACE_NOT_ALLOWED, "not allowed");
    let refused = |progress, live| Decision { refusal: Some(refusal.clone()), ..decision(progress, live) };
    let status = status_after(&refused(Progress::Refused(refusal.clone()), Some(1)), None);
    let actual: Vec<_> = status.conditions.iter().map(|it| format!("{} {}", it.status, it.reason)).collect();
    let reason = "NamespaceNotAllowed";
    assert_eq!(
        actual,
        [format!("False {reason}"), format!("Unknown {reason}"), format!("False {reason}"), format!("False {reason}")]
    );
    assert_eq!(status.conditions[0].message, "not allowed; generation 1 goes on answering");
    assert_eq!((status.phase, status.live_generation), (Some(PolicyPhase::Failed), Some(1)));
    let published: Vec<_> = events(&PolicyStatus::default(), &status).into_iter().map(|event| event.reason).collect();
    assert!(published.iter().any(|it| it == reason), "{published:?}");

    // A live generation stays live.
    let status = status_after(&refused(Progress::Live, Some(2)), None);
    assert_eq!(status.conditions[0].message, "not allowed; requests are answered by it");
    assert_eq!((status.conditions[3].reason.as_str(), status.phase), ("Live", Some(PolicyPhase::Active)));
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
            "not every Ready replica has loaded it; server-0, server-1: PullError: no such host",
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
        (Progress::NotPrepared, None, PolicyPhase::Pending),
        (Progress::NotPrepared, Some(1), PolicyPhase::Updating),
        (Progress::Silent, Some(1), PolicyPhase::Updating),
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
fn break_glass_reports_the_generation_that_the_webhook_calls() {
    let mut decision = decision(Progress::BreakGlass, Some(2));
    decision.answering = Some(1);
    let status = status_after(&decision, Some(&break_glass()));
    assert_eq!((status.live_generation, status.mode), (Some(1), Some(Mode::Monitor)));
    let message = &status.conditions[3].message;
    assert!(message.contains("(the generation that it calls: 1; the live generation on record: 2)"), "{message}");
    decision.answering = None;
    let status = status_after(&decision, Some(&break_glass()));
    assert_eq!((status.live_generation, status.phase), (None, Some(PolicyPhase::Pending)));
    assert!(status.conditions[3].message.contains("that it calls: none;"), "{status:?}");
}

#[test]
fn missing_reports_name_the_replicas_or_the_policy_server() {
    let mut decision = decision(Progress::Silent, Some(1));
    decision.silent = (0..7).map(|number| format!("server-{number}")).collect();
    let status = status_after(&decision, None);
    let message = &status.conditions[2].message;
    assert!(message.contains("; server-0, server-1, server-2, server-3, server-4 and 2 more: Ready, but"), "{message}");
    decision.progress = Progress::NotPrepared;
    let status = status_after(&decision, None);
    for condition in &status.conditions[1..3] {
        let wanted = "no leader of the PolicyServer default has reported for 60 s";
        assert!(condition.message.starts_with(wanted) && condition.message.contains("LeaderElected"), "{condition:?}");
    }
}

#[test]
fn warnings_about_replicas_leave_the_generation_ready() {
    let mut decision = decision(Progress::Live, Some(2));
    let warning = Failure::new("LoadedBefore", "an unknown field");
    decision.warnings = vec![("server-0".to_owned(), warning.clone()), ("server-2".to_owned(), warning)];
    decision.silent = vec!["server-1".to_owned()];
    let status = status_after(&decision, None);
    let ready = &status.conditions[2];
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "LoadedBefore"));
    let wanted = "it is loaded, with warnings about replicas; server-0, server-2: LoadedBefore: an unknown field; \
                  server-1: ReplicaSilent: ";
    assert!(ready.message.starts_with(wanted), "{}", ready.message);
    assert_eq!(status.phase, Some(PolicyPhase::Active));
    let healthy = status_of(Progress::Live, Some(2), None);
    let actual: Vec<_> = events(&healthy, &status).iter().map(line).collect();
    assert!(actual.len() == 1 && actual[0].starts_with("Warning LoadedBefore: generation 2: it is"), "{actual:?}");
    assert!(events(&status, &status).is_empty() && events(&status, &healthy).is_empty());
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
    let silent = || {
        let mut decision = decision(Progress::Silent, Some(1));
        decision.silent = vec!["server-1".to_owned()];
        status_after(&decision, None)
    };
    let silence = "Warning ReplicaSilent: generation 2: not every Ready replica has loaded it; server-1: Ready, but nothing \
                   reported about this generation for 60 s: the log of the pod has the cause";
    let unprepared = "Warning NotPrepared: generation 2: no leader of the PolicyServer default has reported for 60 s that it has \
                      prepared it: the condition LeaderElected of the PolicyServer, and the log of its leader, have the cause";
    let cases: [(PolicyStatus, PolicyStatus, &[&str]); 17] = [
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
        (of(Progress::Loading, Some(1)), silent(), &[silence]),
        (silent(), silent(), &[]),
        (silent(), of(Progress::Live, Some(2)), &["Normal Live: generation 2 answers requests"]),
        (of(Progress::Initializing, Some(1)), of(Progress::NotPrepared, Some(1)), &[unprepared]),
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
