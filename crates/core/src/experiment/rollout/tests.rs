use proptest::prelude::*;

use super::*;

fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), uid: format!("uid-{name}") }
}

fn session(is_active: bool, generation: i64) -> Session {
    Session { is_active, generation, start: "10:00".to_owned() }
}

fn made_for(generation: i64) -> MadeFor {
    MadeFor { generation, policy: policy(), start: "10:00".to_owned() }
}

fn policy() -> Policy {
    Policy { uid: "p".to_owned(), server: "default".to_owned() }
}

fn candidate(name: &str, made_for: MadeFor, loaded_by: &[&str]) -> Candidate {
    let replicas = loaded_by.iter().map(|name| Replica { pod: pod(name), result: Some(Ok(())) });
    Candidate {
        name: name.to_owned(),
        made_for: Some(made_for),
        initialized: Some(Ok(())),
        replicas: replicas.collect(),
    }
}

/// Generation 1 of an accepted experiment that nobody has started.
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
        rides: true,
        candidates: Vec::new(),
        has_webhook: false,
        pods: vec![pod("a"), pod("b")],
    }
}

/// The same, previewed by every replica.
fn active() -> Observed {
    Observed { session: Some(session(true, 1)), candidates: vec![candidate("c", made_for(1), &["a", "b"])], ..idle() }
}

fn failure() -> Failure {
    Failure::new("CompileError", "no")
}

#[test]
fn nothing_is_previewed_before_it_is_started() {
    let decision = decide(&idle());
    assert_eq!((decision.change, decision.create, decision.webhook), (None, false, false));
    assert_eq!(decision.progress, Progress::NotStarted);
}

#[test]
fn it_starts_by_itself_after_creation_and_after_each_update_and_not_after_a_stop() {
    let auto = Observed { auto_start: true, ..idle() };
    for (observed, wanted) in [
        (auto.clone(), Some(Change::Start)),
        (Observed { session: Some(session(true, 1)), ..auto.clone() }, None),
        (Observed { session: Some(session(false, 1)), ..auto.clone() }, None),
        (Observed { generation: 2, session: Some(session(true, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { generation: 2, session: Some(session(false, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { policy: None, ..auto.clone() }, None),
        (Observed { older: 10, ..auto.clone() }, None),
        (Observed { is_deleted: true, ..auto.clone() }, None),
        (Observed { is_committed: true, ..auto }, None),
        // An update suspends, unless it starts.
        (Observed { generation: 2, ..active() }, Some(Change::Suspend)),
        (Observed { generation: 2, policy: None, auto_start: true, ..active() }, Some(Change::Suspend)),
        (Observed { generation: 2, session: Some(session(false, 1)), ..idle() }, None),
        (active(), None),
    ] {
        assert_eq!(decide(&observed).change, wanted, "{observed:?}");
    }
}

#[test]
fn a_candidate_is_of_one_session_of_one_generation_on_the_policys_server() {
    let decision = decide(&active());
    assert_eq!((decision.create, decision.delete.len()), (false, 0));
    assert_eq!((decision.progress, decision.ready, decision.total), (Progress::Previewing, 2, 2));
    let elsewhere = Policy { server: "other".to_owned(), ..policy() };
    let anew = Policy { uid: "q".to_owned(), ..policy() };
    let again = Session { start: "10:01".to_owned(), ..session(true, 1) };
    for (observed, create) in [
        (Observed { session: Some(session(false, 1)), ..active() }, false),
        (Observed { generation: 2, ..active() }, false),
        (Observed { is_deleted: true, ..active() }, false),
        (Observed { older: 10, ..active() }, false),
        (Observed { policy: None, ..active() }, false),
        (Observed { is_committed: true, ..active() }, false),
        (Observed { session: Some(again), ..active() }, true),
        (Observed { session: Some(session(true, 2)), generation: 2, ..active() }, true),
        (Observed { policy: Some(elsewhere), ..active() }, true),
        (Observed { policy: Some(anew), ..active() }, true),
    ] {
        let decision = decide(&observed);
        assert_eq!((decision.delete, decision.create, decision.webhook), (vec!["c".to_owned()], create, false));
    }
    // What cannot be read is made anew.
    let mut spoilt = active();
    spoilt.candidates[0].made_for = None;
    let decision = decide(&spoilt);
    assert_eq!((decision.delete.len(), decision.create), (1, true));
    spoilt.session = None;
    assert_eq!(decide(&spoilt).delete.len(), 1);
}

#[test]
fn progress_names_what_stands_in_the_way() {
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
    // A pod of the same name is not the one that said it.
    assert_eq!(with(|it| it.pods[0].uid = "later".to_owned()), accepted(Progress::Loading));
}

#[test]
fn a_webhook_is_for_what_no_live_call_brings_and_comes_when_every_replica_can_answer() {
    let other = Observed { rides: false, ..active() };
    assert!(decide(&other).webhook && !decide(&active()).webhook);
    let mut loading = other.clone();
    loading.candidates[0].replicas.pop();
    assert!(!decide(&loading).webhook);
    // A replica that comes later does not take it away; the end of the preview does, and a live policy that matches.
    assert!(decide(&Observed { has_webhook: true, ..loading }).webhook);
    assert!(!decide(&Observed { has_webhook: true, session: Some(session(false, 1)), ..other.clone() }).webhook);
    assert!(!decide(&Observed { has_webhook: true, rides: true, ..other.clone() }).webhook);
    assert!(!decide(&Observed { pods: Vec::new(), ..other }).webhook);
}

#[test]
fn a_commit_that_was_interrupted_ends() {
    assert!(decide(&Observed { is_committed: true, ..active() }).remove);
    assert!(!decide(&Observed { is_committed: true, is_deleted: true, ..active() }).remove);
    let about = |seconds, is_committed| {
        decide(&Observed { intent: Some(Duration::from_secs(seconds)), is_committed, ..active() })
    };
    let fresh = about(20, false);
    assert_eq!((fresh.forget_intent, fresh.look_again), (false, Some(Duration::from_secs(40))));
    let old = about(60, false);
    assert_eq!((old.forget_intent, old.look_again, old.remove), (true, None, false));
    let done = about(600, true);
    assert_eq!((done.forget_intent, done.remove), (false, true));
}

#[test]
fn a_deleted_experiment_goes_when_nothing_is_left_of_it() {
    let deleted = Observed { is_deleted: true, ..idle() };
    assert!(decide(&deleted).is_gone && !decide(&idle()).is_gone);
    assert!(!decide(&Observed { has_webhook: true, ..deleted.clone() }).is_gone);
    assert!(!decide(&Observed { candidates: active().candidates, ..deleted }).is_gone);
}

proptest! {
    /// What a decision leads to needs no other decision, and what is suspended leaves nothing.
    #[test]
    fn decisions_converge(
        (generation, started, is_active, auto_start) in (1..3_i64, proptest::option::of(1..3_i64), any::<bool>(), any::<bool>()),
        (older, has_policy, rides, has_webhook, is_deleted) in (8..12_usize, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        existing in proptest::collection::vec(1..3_i64, 0..3),
    ) {
        let mut observed = Observed {
            generation, is_deleted, auto_start, older, rides, has_webhook,
            session: started.map(|generation| session(is_active, generation)),
            policy: has_policy.then(policy),
            candidates: existing.into_iter().map(|it| candidate(&format!("c{it}"), made_for(it), &["a", "b"])).collect(),
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
                observed.candidates.push(candidate(&format!("c{generation}"), made_for(generation), &["a", "b"]));
            }
        }
        let end = decide(&observed);
        prop_assert!(end.change.is_none() && !end.create && end.delete.is_empty() && end.webhook == observed.has_webhook);
        let is_previewed = end.progress == Progress::Previewing && !is_deleted;
        prop_assert_eq!(observed.candidates.len(), usize::from(is_previewed));
        prop_assert_eq!(end.webhook, is_previewed && !rides);
        prop_assert_eq!(end.is_gone, is_deleted);
    }
}
