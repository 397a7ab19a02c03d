mod commits;
mod properties;
mod starts;
mod stops;
mod without_replicas;

use super::*;

fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), uid: format!("uid-{name}") }
}

/// Returns a session that was loaded and does not expire.
fn session(is_active: bool, generation: i64) -> Session {
    Session {
        is_active,
        generation,
        start: "10:00".to_owned(),
        was_loaded: true,
        expiry: None,
        stop_reason: StopReason::Lasting,
    }
}

fn candidate_session(generation: i64) -> CandidateSession {
    CandidateSession { generation, policy: policy(), start: "10:00".to_owned() }
}

fn policy() -> Policy {
    Policy { uid: "p".to_owned(), server: "default".to_owned() }
}

fn replica(name: &str, result: Option<Result<(), Failure>>) -> Replica {
    Replica { pod: pod(name), result, warning: None }
}

/// Returns a prepared candidate that is previewed and that these pods have loaded.
fn candidate(name: &str, session: CandidateSession, loaded_by: &[&str]) -> Candidate {
    Candidate {
        name: name.to_owned(),
        session: Some(session),
        is_enabled: true,
        initialized: Some(Ok(())),
        replicas: loaded_by.iter().map(|name| replica(name, Some(Ok(())))).collect(),
        stopped: Vec::new(),
    }
}

/// Generation 1 of an accepted experiment before the first start.
fn idle() -> Observed {
    Observed {
        generation: 1,
        is_deleted: false,
        needs_replicas: true,
        auto_start: false,
        session: None,
        policy: Some(policy()),
        is_policy_malformed: false,
        older: 0,
        is_refused: false,
        commit: None,
        shares_webhook: true,
        candidates: Vec::new(),
        has_webhook: false,
        pods: vec![pod("a"), pod("b")],
        elapsed: Vec::new(),
    }
}

/// Generation 1 of an experiment that each replica previews.
fn active() -> Observed {
    Observed {
        session: Some(session(true, 1)),
        candidates: vec![candidate("c", candidate_session(1), &["a", "b"])],
        ..idle()
    }
}

/// The same after a stop by a caller.
fn stopped() -> Observed {
    Observed { session: Some(session(false, 1)), ..active() }
}

/// A commit of generation 1 in progress.
fn commit(is_copied: bool) -> Commit {
    Commit { id: "id".to_owned(), generation: 1, is_copied }
}

fn committed() -> Observed {
    Observed { commit: Some(commit(true)), ..active() }
}

fn failure() -> Failure {
    Failure::new("CompileError", "no")
}

#[test]
fn an_experiment_that_the_policy_server_does_not_permit_has_no_candidate() {
    for observed in [idle(), active(), Observed { commit: Some(commit(false)), ..idle() }] {
        let decision = decide(&Observed { is_refused: true, candidates: Vec::new(), ..observed });
        assert_eq!((decision.acceptance, decision.create), (Acceptance::NotPermitted, None));
    }
    let decision = decide(&Observed { is_refused: true, auto_start: true, ..idle() });
    assert_eq!((decision.change, decision.progress), (None, Progress::NotAccepted));
}

#[test]
fn an_experiment_is_not_previewed_before_its_start() {
    let decision = decide(&idle());
    assert_eq!((decision.change, decision.create, decision.webhook), (None, None, false));
    assert_eq!((decision.progress, decision.initialization), (Progress::NotStarted, Initialization::NotNeeded));
    assert_eq!((decision.timers, decision.requeue_after), (Vec::new(), None));
}

#[test]
fn a_candidate_belongs_to_one_session_generation_and_policy_server() {
    let decision = decide(&active());
    assert_eq!((decision.create, decision.delete.len(), decision.disable.len()), (None, 0, 0));
    assert_eq!((decision.progress, decision.ready, decision.total), (Progress::Previewing, 2, 2));
    assert_eq!(decision.initialization, Initialization::Prepared);
    let other_server = Policy { server: "other".to_owned(), ..policy() };
    let recreated = Policy { uid: "q".to_owned(), ..policy() };
    let restarted = Session { start: "10:01".to_owned(), ..session(true, 1) };
    // A second start within the same second, while the candidate of the first start is stopped.
    let mut stopping = active();
    stopping.candidates[0].is_enabled = false;
    for (observed, is_created) in [
        (Observed { is_deleted: true, ..active() }, false),
        (Observed { session: Some(restarted), ..active() }, true),
        (Observed { session: Some(session(true, 2)), generation: 2, ..active() }, true),
        (Observed { policy: Some(other_server), ..active() }, true),
        (Observed { policy: Some(recreated), ..active() }, true),
        (stopping, true),
    ] {
        let decision = decide(&observed);
        let created = decision.create.as_ref();
        assert_eq!((decision.delete, created.is_some(), decision.webhook), (vec!["c".to_owned()], is_created, false));
        assert!(created.is_none_or(|it| it.is_enabled && it.session.generation == observed.generation), "{created:?}");
        assert!(decision.disable.is_empty() && decision.delete_stopped.is_empty());
    }
    // An unreadable candidate is replaced.
    let mut unreadable = active();
    unreadable.candidates[0].session = None;
    let decision = decide(&unreadable);
    assert_eq!((decision.delete.len(), decision.create.is_some()), (1, true));
    unreadable.session = None;
    assert_eq!(decide(&unreadable).delete.len(), 1);
}

#[test]
fn progress_names_the_reason_why_a_preview_does_not_run() {
    let with = |change: fn(&mut Observed)| {
        let mut observed = active();
        change(&mut observed);
        let decision = decide(&observed);
        (decision.acceptance, decision.progress)
    };
    let accepted = |progress| (Acceptance::Accepted, progress);
    assert_eq!(with(|it| it.policy = None), (Acceptance::PolicyNotFound, Progress::NotAccepted));
    assert_eq!(with(|it| (it.policy, it.session) = (None, None)), (Acceptance::PolicyNotFound, Progress::NotAccepted));
    assert_eq!(
        with(|it| (it.policy, it.is_policy_malformed) = (None, true)),
        (Acceptance::PolicyMalformed, Progress::NotAccepted)
    );
    assert_eq!(with(|it| it.older = 10), (Acceptance::TooMany, Progress::NotAccepted));
    assert_eq!(with(|it| it.older = 9), accepted(Progress::Previewing));
    assert_eq!(with(|it| it.session = Some(session(false, 1))), accepted(Progress::Stopping));
    assert_eq!(with(|it| it.generation = 2), accepted(Progress::Stopping));
    assert_eq!(
        with(|it| {
            it.session = Some(session(false, 1));
            it.candidates.clear();
        }),
        accepted(Progress::Suspended)
    );
    assert_eq!(with(|it| it.candidates.clear()), accepted(Progress::Initializing));
    assert_eq!(with(|it| it.candidates[0].initialized = None), accepted(Progress::Initializing));
    assert_eq!(
        with(|it| it.candidates[0].initialized = Some(Err(failure()))),
        accepted(Progress::InitializationFailed(failure()))
    );
    assert_eq!(with(|it| it.pods.clear()), accepted(Progress::NoReplicas));
    assert_eq!(
        with(|it| {
            it.pods.clear();
            it.candidates[0].initialized = None;
        }),
        accepted(Progress::NoReplicas)
    );
    assert_eq!(with(|it| drop(it.candidates[0].replicas.pop())), accepted(Progress::Loading));
    assert_eq!(
        with(|it| it.candidates[0].replicas[1].result = Some(Err(failure()))),
        accepted(Progress::LoadingFailed(vec![("b".to_owned(), failure())]))
    );
    // A new pod of the same name has not loaded the candidate yet.
    assert_eq!(with(|it| it.pods[0].uid = "later".to_owned()), accepted(Progress::Loading));
}

#[test]
fn a_preview_webhook_needs_a_candidate_on_every_replica() {
    let other = Observed { shares_webhook: false, ..active() };
    assert!(decide(&other).webhook && !decide(&active()).webhook);
    let mut loading = other.clone();
    loading.candidates[0].replicas.pop();
    assert!(!decide(&loading).webhook);
    // A new replica does not remove the webhook. The end of the preview removes it, and so does a live policy that covers the
    // same requests.
    assert!(decide(&Observed { has_webhook: true, ..loading }).webhook);
    let suspended = Observed { has_webhook: true, session: Some(session(false, 1)), ..other.clone() };
    assert!(!decide(&suspended).webhook && !decide(&Observed { commit: Some(commit(false)), ..suspended }).webhook);
    assert!(!decide(&Observed { has_webhook: true, shares_webhook: true, ..other.clone() }).webhook);
    assert!(!decide(&Observed { pods: Vec::new(), ..other }).webhook);
}

#[test]
fn a_deleted_experiment_waits_for_its_candidates_and_its_webhook_but_for_no_counts() {
    let deleted = Observed { is_deleted: true, ..idle() };
    assert!(decide(&deleted).is_cleaned_up && !decide(&idle()).is_cleaned_up);
    assert!(!decide(&Observed { has_webhook: true, ..deleted.clone() }).is_cleaned_up);
    let decision = decide(&Observed { candidates: stopped().candidates, session: Some(session(false, 1)), ..deleted });
    assert!(!decision.is_cleaned_up && decision.disable.is_empty());
    assert_eq!((decision.delete, decision.timers), (vec!["c".to_owned()], Vec::new()));
}
