//! Commits: the candidate that a commit needs, and its completion or its end by the operator.

use super::*;

fn committing(observed: Observed) -> Observed {
    Observed { commit: Some(commit(false)), ..observed }
}

fn after(seconds: u64) -> Vec<(Timer, Duration)> {
    vec![(Timer::Commit("id".to_owned()), Duration::from_secs(seconds))]
}

/// Returns a candidate that was created for a commit.
fn prepared() -> Candidate {
    let session = CandidateSession { start: String::new(), ..candidate_session(1) };
    Candidate { is_enabled: false, replicas: Vec::new(), ..candidate("c", session, &[]) }
}

#[test]
fn a_commit_is_completed_only_if_the_policy_records_it() {
    assert_eq!(decide(&committed()).commit, Some(CommitStep::Complete));
    assert_eq!(decide(&Observed { is_deleted: true, ..committed() }).commit, None);
    assert_eq!(decide(&Observed { elapsed: after(600), ..committed() }).commit, Some(CommitStep::Complete));
    // The experiment was changed after the commit: it stays.
    assert_eq!(decide(&Observed { generation: 2, ..committed() }).commit, None);
    // Without a commit in the status of the experiment, there is nothing that the policy could record.
    assert_eq!(decide(&active()).commit, None);
    // Nothing else is done for an experiment that is deleted now.
    let decision = decide(&Observed { auto_start: true, session: None, candidates: Vec::new(), ..committed() });
    assert_eq!((decision.change, decision.create, decision.timers), (None, None, Vec::new()));
}

#[test]
fn an_abandoned_commit_is_aborted_after_a_minute_of_the_operators_clock() {
    for (seconds, step, left) in [(0, None, Some(60)), (59, None, Some(1)), (60, Some(CommitStep::Abort), None)] {
        let decision = decide(&Observed { elapsed: after(seconds), ..committing(active()) });
        assert_eq!((decision.commit, decision.requeue_after), (step, left.map(Duration::from_secs)), "{seconds}");
        assert_eq!(decision.timers, [Timer::Commit("id".to_owned())]);
    }
    // The time of another commit does not count.
    let other = vec![(Timer::Commit("other".to_owned()), Duration::from_mins(9))];
    assert_eq!(decide(&Observed { elapsed: other, ..committing(active()) }).commit, None);
    // A commit of an outdated generation is aborted too, even if it was copied: the changed experiment stays.
    let outdated = Observed { generation: 2, elapsed: after(60), ..committed() };
    assert_eq!(decide(&outdated).commit, Some(CommitStep::Abort));
    assert_eq!(decide(&Observed { is_deleted: true, ..outdated }).commit, None);
}

#[test]
fn a_deletion_aborts_a_commit_that_is_not_copied_before_the_experiment_goes() {
    // The deletion increases the generation.
    let deleted = |observed: Observed| Observed { is_deleted: true, generation: 2, ..observed };
    let uncopied = deleted(committing(idle()));
    let malformed = Observed { policy: None, is_policy_malformed: true, ..uncopied.clone() };
    for observed in [uncopied.clone(), malformed, deleted(committing(active()))] {
        let decision = decide(&observed);
        assert_eq!((decision.commit, decision.is_cleaned_up), (Some(CommitStep::Abort), false), "{observed:?}");
    }
    for (what, observed) in [
        ("copied", deleted(Observed { commit: Some(commit(true)), ..idle() })),
        ("no commit", deleted(idle())),
        ("no policy", Observed { policy: None, ..uncopied }),
    ] {
        let decision = decide(&observed);
        assert_eq!((decision.commit, decision.is_cleaned_up), (None, true), "{what}");
    }
}

#[test]
fn a_commit_needs_a_prepared_candidate_but_no_preview() {
    let too_many = Observed { older: 10, ..committing(idle()) };
    let suspended = Observed { session: Some(session(false, 1)), ..committing(idle()) };
    for (observed, progress) in [
        (committing(idle()), Progress::NotStarted),
        (too_many, Progress::NotAccepted),
        (suspended, Progress::Suspended),
    ] {
        let decision = decide(&observed);
        let created = decision.create.unwrap();
        assert!(!created.is_enabled && created.session.start.is_empty(), "{created:?}");
        assert_eq!((decision.initialization, decision.progress), (Initialization::Running, progress.clone()));
        for (initialized, expected) in [
            (None, Initialization::Running),
            (Some(Ok(())), Initialization::Prepared),
            (Some(Err(failure())), Initialization::Failed(failure())),
        ] {
            let candidates = vec![Candidate { initialized, ..prepared() }];
            let decision = decide(&Observed { candidates, ..observed.clone() });
            assert_eq!((decision.initialization, decision.progress), (expected, progress.clone()));
            assert!(decision.create.is_none() && decision.disable.is_empty() && decision.delete.is_empty());
            assert!(decision.ready == 0 && !decision.webhook);
        }
    }
    assert_eq!(decide(&Observed { policy: None, ..committing(idle()) }).create, None);
    let outdated = decide(&Observed { generation: 2, candidates: vec![prepared()], ..committing(idle()) });
    assert_eq!((outdated.create, outdated.delete.len()), (None, 1));
}

#[test]
fn a_commit_uses_the_candidate_of_the_preview() {
    let decision = decide(&committing(active()));
    assert_eq!((decision.progress, decision.initialization), (Progress::Previewing, Initialization::Prepared));
    assert!(decision.create.is_none() && decision.disable.is_empty() && decision.delete.is_empty());
    // A stop keeps the prepared candidate, but ends its evaluation.
    let mut observed = committing(stopped());
    let decision = decide(&observed);
    assert_eq!((decision.disable, decision.progress), (vec!["c".to_owned()], Progress::Stopping));
    assert_eq!((decision.initialization, decision.create), (Initialization::Prepared, None));
    observed.candidates[0].is_enabled = false;
    assert_eq!(decide(&observed).progress, Progress::Stopping);
    observed.candidates[0].stopped = vec![pod("a"), pod("b")];
    let decision = decide(&observed);
    assert_eq!((decision.progress, decision.initialization), (Progress::Suspended, Initialization::Prepared));
    assert!(decision.delete.is_empty() && decision.delete_stopped.is_empty());
    // At the end of the commit, the candidate is deleted.
    observed.commit = None;
    assert_eq!(decide(&observed).delete_stopped, ["c"]);
    let aborted = Observed { candidates: vec![prepared()], ..idle() };
    assert_eq!((decide(&aborted).delete, decide(&aborted).progress), (vec!["c".to_owned()], Progress::NotStarted));
    // A stop is not reported again when such a candidate is deleted.
    let aborted = Observed { session: Some(session(false, 1)), ..aborted };
    assert_eq!((decide(&aborted).delete.len(), decide(&aborted).progress), (1, Progress::Suspended));
}

#[test]
fn a_start_during_a_commit_creates_the_candidate_of_the_preview() {
    let observed = Observed { candidates: vec![prepared()], session: Some(session(true, 1)), ..committing(idle()) };
    let decision = decide(&observed);
    assert_eq!((decision.delete.len(), decision.create.map(|it| it.is_enabled)), (1, Some(true)));
    // A candidate of another policy server, or of a policy that was created again, is not used.
    let mut moved = committing(stopped());
    moved.policy = Some(Policy { server: "other".to_owned(), ..policy() });
    let decision = decide(&moved);
    assert_eq!((decision.delete.len(), decision.create.map(|it| it.is_enabled)), (1, Some(false)));
}
