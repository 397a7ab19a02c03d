//! Experiments that need no replicas: their policies configure components.

use super::*;

/// Generation 1 of an experiment whose candidate has this result of its validation.
fn previewed(initialized: Option<Result<(), Failure>>, was_loaded: bool) -> Observed {
    let candidate = Candidate { initialized, ..candidate("c", candidate_session(1), &[]) };
    let session = Session { was_loaded, ..session(true, 1) };
    Observed { needs_replicas: false, session: Some(session), candidates: vec![candidate], pods: Vec::new(), ..idle() }
}

#[test]
fn a_valid_candidate_is_previewed_at_once() {
    let start = decide(&Observed { candidates: Vec::new(), ..previewed(None, false) });
    assert!(start.create.is_some_and(|created| created.is_enabled));
    for (initialized, progress) in [(None, Progress::Initializing), (Some(Ok(())), Progress::Previewing)] {
        let decision = decide(&previewed(initialized, false));
        assert_eq!((decision.progress, decision.change), (progress, None));
        assert_eq!((decision.ready, decision.total, decision.webhook), (0, 0, false));
        assert_eq!((decision.timers, decision.requeue_after), (vec![], None));
    }
}

#[test]
fn a_candidate_that_is_not_valid_suspends_the_start() {
    let decision = decide(&previewed(Some(Err(failure())), false));
    assert_eq!(decision.progress, Progress::InitializationFailed(failure()));
    assert_eq!(decision.change, Some(Change::Suspend(Suspension::Failed)));
}

#[test]
fn a_stop_waits_for_no_replica() {
    let mut observed = previewed(Some(Ok(())), true);
    observed.session = Some(session(false, 1));
    let decision = decide(&observed);
    assert_eq!((decision.disable, decision.progress), (vec!["c".to_owned()], Progress::Stopping));
    observed.candidates[0].is_enabled = false;
    assert_eq!(decide(&observed).delete_stopped, ["c"]);
    observed.candidates.clear();
    assert_eq!(decide(&observed).progress, Progress::Suspended);
}

#[test]
fn a_commit_needs_a_valid_candidate_and_no_replica() {
    let committing = Observed { commit: Some(commit(false)), ..idle() };
    let committing = Observed { needs_replicas: false, pods: Vec::new(), ..committing };
    let created = decide(&committing).create.unwrap();
    assert!(!created.is_enabled && created.session.start.is_empty());
    let session = CandidateSession { start: String::new(), ..candidate_session(1) };
    let prepared = Candidate { is_enabled: false, ..candidate("c", session, &[]) };
    let decision = decide(&Observed { candidates: vec![prepared], ..committing });
    assert_eq!((decision.initialization, decision.delete.len()), (Initialization::Prepared, 0));
    let copied = Observed { commit: Some(commit(true)), ..previewed(Some(Ok(())), true) };
    assert_eq!(decide(&copied).commit, Some(CommitStep::Complete));
}
