use proptest::prelude::*;

use super::*;

fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), uid: format!("uid-{name}") }
}

fn session(is_active: bool, generation: i64) -> Session {
    Session { is_active, generation, start: "10:00".to_owned() }
}

fn candidate_session(generation: i64) -> CandidateSession {
    CandidateSession { generation, policy: policy(), start: "10:00".to_owned() }
}

fn policy() -> Policy {
    Policy { uid: "p".to_owned(), server: "default".to_owned() }
}

fn candidate(name: &str, session: CandidateSession, loaded_by: &[&str]) -> Candidate {
    let replicas = loaded_by.iter().map(|name| Replica { pod: pod(name), result: Some(Ok(())), warning: None });
    Candidate { name: name.to_owned(), session: Some(session), initialized: Some(Ok(())), replicas: replicas.collect() }
}

/// Generation 1 of an accepted experiment before the first start.
fn idle() -> Observed {
    Observed {
        generation: 1,
        is_deleted: false,
        auto_start: false,
        session: None,
        policy: Some(policy()),
        older: 0,
        is_committed: false,
        intent: None,
        shares_webhook: true,
        candidates: Vec::new(),
        has_webhook: false,
        pods: vec![pod("a"), pod("b")],
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

fn failure() -> Failure {
    Failure::new("CompileError", "no")
}

#[test]
fn an_experiment_is_not_previewed_before_its_start() {
    let decision = decide(&idle());
    assert_eq!((decision.change, decision.create, decision.webhook), (None, false, false));
    assert_eq!(decision.progress, Progress::NotStarted);
}

#[test]
fn auto_start_follows_creation_and_updates_but_not_a_stop() {
    let auto = Observed { auto_start: true, ..idle() };
    for (observed, expected) in [
        (auto.clone(), Some(Change::Start)),
        (Observed { session: Some(session(true, 1)), ..auto.clone() }, None),
        (Observed { session: Some(session(false, 1)), ..auto.clone() }, None),
        (Observed { generation: 2, session: Some(session(true, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { generation: 2, session: Some(session(false, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { policy: None, ..auto.clone() }, None),
        (Observed { older: 10, ..auto.clone() }, None),
        (Observed { is_deleted: true, ..auto.clone() }, None),
        (Observed { is_committed: true, ..auto }, None),
        // An update suspends the preview, unless it starts a new one.
        (Observed { generation: 2, ..active() }, Some(Change::Suspend)),
        (Observed { generation: 2, policy: None, auto_start: true, ..active() }, Some(Change::Suspend)),
        (Observed { generation: 2, session: Some(session(false, 1)), ..idle() }, None),
        (active(), None),
    ] {
        assert_eq!(decide(&observed).change, expected, "{observed:?}");
    }
}

#[test]
fn a_candidate_belongs_to_one_session_generation_and_policy_server() {
    let decision = decide(&active());
    assert_eq!((decision.create, decision.delete.len()), (false, 0));
    assert_eq!((decision.progress, decision.ready, decision.total), (Progress::Previewing, 2, 2));
    let other_server = Policy { server: "other".to_owned(), ..policy() };
    let recreated = Policy { uid: "q".to_owned(), ..policy() };
    let restarted = Session { start: "10:01".to_owned(), ..session(true, 1) };
    for (observed, create) in [
        (Observed { session: Some(session(false, 1)), ..active() }, false),
        (Observed { generation: 2, ..active() }, false),
        (Observed { is_deleted: true, ..active() }, false),
        (Observed { older: 10, ..active() }, false),
        (Observed { policy: None, ..active() }, false),
        (Observed { is_committed: true, ..active() }, false),
        (Observed { session: Some(restarted), ..active() }, true),
        (Observed { session: Some(session(true, 2)), generation: 2, ..active() }, true),
        (Observed { policy: Some(other_server), ..active() }, true),
        (Observed { policy: Some(recreated), ..active() }, true),
    ] {
        let decision = decide(&observed);
        assert_eq!((decision.delete, decision.create, decision.webhook), (vec!["c".to_owned()], create, false));
    }
    // An unreadable candidate is replaced.
    let mut unreadable = active();
    unreadable.candidates[0].session = None;
    let decision = decide(&unreadable);
    assert_eq!((decision.delete.len(), decision.create), (1, true));
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
    assert_eq!(with(|it| it.older = 10), (Acceptance::TooMany, Progress::NotAccepted));
    assert_eq!(with(|it| it.older = 9), accepted(Progress::Previewing));
    assert_eq!(with(|it| it.session = Some(session(false, 1))), accepted(Progress::Suspended));
    assert_eq!(with(|it| it.generation = 2), accepted(Progress::Suspended));
    assert_eq!(with(|it| it.candidates.clear()), accepted(Progress::Initializing));
    assert_eq!(with(|it| it.candidates[0].initialized = None), accepted(Progress::Initializing));
    assert_eq!(
        with(|it| it.candidates[0].initialized = Some(Err(failure()))),
        accepted(Progress::InitializationFailed(failure()))
    );
    assert_eq!(with(|it| it.pods.clear()), accepted(Progress::NoReplicas));
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
    assert!(!decide(&Observed { has_webhook: true, session: Some(session(false, 1)), ..other.clone() }).webhook);
    assert!(!decide(&Observed { has_webhook: true, shares_webhook: true, ..other.clone() }).webhook);
    assert!(!decide(&Observed { pods: Vec::new(), ..other }).webhook);
}

#[test]
fn an_interrupted_commit_is_completed_or_abandoned() {
    assert!(decide(&Observed { is_committed: true, ..active() }).remove);
    assert!(!decide(&Observed { is_committed: true, is_deleted: true, ..active() }).remove);
    let with_intent = |seconds, is_committed| {
        decide(&Observed { intent: Some(Duration::from_secs(seconds)), is_committed, ..active() })
    };
    let fresh = with_intent(20, false);
    assert_eq!((fresh.clear_commit_intent, fresh.requeue_after), (false, Some(Duration::from_secs(40))));
    let expired = with_intent(60, false);
    assert_eq!((expired.clear_commit_intent, expired.requeue_after, expired.remove), (true, None, false));
    let committed = with_intent(600, true);
    assert_eq!((committed.clear_commit_intent, committed.remove), (false, true));
}

#[test]
fn a_deleted_experiment_waits_for_its_candidates_and_its_webhook() {
    let deleted = Observed { is_deleted: true, ..idle() };
    assert!(decide(&deleted).is_cleaned_up && !decide(&idle()).is_cleaned_up);
    assert!(!decide(&Observed { has_webhook: true, ..deleted.clone() }).is_cleaned_up);
    assert!(!decide(&Observed { candidates: active().candidates, ..deleted }).is_cleaned_up);
}

proptest! {
    /// Repeated decisions reach a stable state, and a suspended experiment keeps no candidate and no webhook.
    #[test]
    fn decisions_converge(
        (generation, started, is_active, auto_start) in (1..3_i64, proptest::option::of(1..3_i64), any::<bool>(), any::<bool>()),
        (older, has_policy, shares_webhook, has_webhook, is_deleted) in (8..12_usize, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        existing in proptest::collection::vec(1..3_i64, 0..3),
    ) {
        let mut observed = Observed {
            generation, is_deleted, auto_start, older, shares_webhook, has_webhook,
            session: started.map(|generation| session(is_active, generation)),
            policy: has_policy.then(policy),
            candidates: existing.into_iter().map(|it| candidate(&format!("c{it}"), candidate_session(it), &["a", "b"])).collect(),
            ..idle()
        };
        observed.candidates.dedup_by_key(|it| it.name.clone());
        for _ in 0..4 {
            let decision = decide(&observed);
            match decision.change {
                Some(Change::Start) => observed.session = Some(session(true, generation)),
                Some(Change::Suspend) => observed.session.as_mut().unwrap().is_active = false,
                None => {}
            }
            observed.has_webhook = decision.webhook;
            observed.candidates.retain(|it| !decision.delete.contains(&it.name));
            if decision.create {
                observed.candidates.push(candidate(&format!("c{generation}"), candidate_session(generation), &["a", "b"]));
            }
        }
        let end = decide(&observed);
        prop_assert!(end.change.is_none() && !end.create && end.delete.is_empty() && end.webhook == observed.has_webhook);
        let is_previewed = end.progress == Progress::Previewing && !is_deleted;
        prop_assert_eq!(observed.candidates.len(), usize::from(is_previewed));
        prop_assert_eq!(end.webhook, is_previewed && !shares_webhook);
        prop_assert_eq!(end.is_cleaned_up, is_deleted);
    }
}
