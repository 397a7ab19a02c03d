//! Properties of all decisions.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn sessions() -> impl Strategy<Value = Option<Session>> {
    let reasons = vec![
        StopReason::Lasting,
        StopReason::Updated,
        StopReason::NotAccepted,
        StopReason::NoReplicas,
        StopReason::Failed,
    ];
    let left = option::of(select(vec![0_u64, 30, 100_000]));
    let facts = (any::<bool>(), 1..3_i64, any::<bool>(), left, select(reasons));
    option::of(facts.prop_map(|(is_active, generation, was_loaded, left, stop_reason)| Session {
        was_loaded,
        expiry: left.map(|left| Expiry { left: Duration::from_secs(left), ttl: Duration::from_hours(24) }),
        stop_reason,
        ..session(is_active, generation)
    }))
}

fn results() -> impl Strategy<Value = Option<Result<(), Failure>>> {
    select(vec![None, Some(Ok(())), Some(Err(failure()))])
}

fn candidates_of(generation: i64) -> impl Strategy<Value = Option<Candidate>> {
    let facts = (any::<bool>(), any::<bool>(), any::<bool>(), results(), results(), results());
    option::of(facts.prop_map(move |(is_of_preview, is_enabled, has_stopped, initialized, a, b)| {
        let start = if is_of_preview { "10:00" } else { "" };
        Candidate {
            name: format!("c{generation}"),
            session: Some(CandidateSession { start: start.to_owned(), ..candidate_session(generation) }),
            is_enabled,
            initialized,
            replicas: vec![replica("a", a), replica("b", b)],
            stopped: has_stopped.then(|| pod("a")).into_iter().collect(),
        }
    }))
}

fn observations() -> impl Strategy<Value = Observed> {
    let flag = any::<bool>;
    let flags = (flag(), flag(), flag(), flag(), flag(), flag(), flag());
    let numbers = (1..3_i64, 8..12_usize, 0..3_usize, select(vec![0_u64, 20, 45, 600]));
    let commits = option::of((1..3_i64, any::<bool>()));
    (flags, numbers, sessions(), candidates_of(1), candidates_of(2), commits).prop_map(
        |(flags, (generation, older, pods, seconds), session, first, second, commit)| {
            let (is_deleted, auto_start, has_policy, is_malformed, shares_webhook, has_webhook, needs_replicas) = flags;
            let timers = [
                Timer::Commit("id".to_owned()),
                Timer::StartFailure("10:00".to_owned()),
                Timer::Retry("10:00".to_owned()),
                Timer::Stop("c1".to_owned()),
                Timer::Stop("c2".to_owned()),
            ];
            Observed {
                generation,
                is_deleted,
                needs_replicas,
                auto_start,
                session,
                policy: has_policy.then(policy),
                is_policy_malformed: !has_policy && is_malformed,
                older,
                is_refused: older == 11,
                commit: commit.map(|(generation, is_copied)| Commit { id: "id".to_owned(), generation, is_copied }),
                shares_webhook,
                candidates: first.into_iter().chain(second).collect(),
                has_webhook,
                pods: ["a", "b"].into_iter().take(if needs_replicas { pods } else { 0 }).map(pod).collect(),
                elapsed: timers.into_iter().map(|timer| (timer, Duration::from_secs(seconds))).collect(),
            }
        },
    )
}

/// Applies a decision as the operator does, lets the replicas obey it, and lets its timers end.
fn apply(observed: &mut Observed) {
    let decision = decide(observed);
    observed.elapsed = decision.timers.iter().map(|timer| (timer.clone(), timer.limit())).collect();
    match (decision.commit, decision.change) {
        (Some(CommitStep::Complete), _) => observed.is_deleted = true,
        (Some(CommitStep::Abort), _) => observed.commit = None,
        (None, Some(Change::Start)) => {
            let started = session(true, observed.generation);
            observed.session = Some(Session { start: "11:00".to_owned(), was_loaded: false, ..started });
        }
        (None, Some(Change::Suspend(_))) => {
            let before = observed.session.take().unwrap();
            observed.session = Some(Session { is_active: false, stop_reason: StopReason::Lasting, ..before });
        }
        (None, None) => {
            observed.has_webhook = decision.webhook;
            for candidate in observed.candidates.iter_mut().filter(|it| decision.disable.contains(&it.name)) {
                (candidate.is_enabled, candidate.stopped) = (false, observed.pods.clone());
            }
            observed
                .candidates
                .retain(|it| !decision.delete.contains(&it.name) && !decision.delete_stopped.contains(&it.name));
            if let Some(DesiredCandidate { session, is_enabled }) = decision.create {
                let name = format!("c{}", session.generation);
                observed.candidates.push(Candidate { is_enabled, ..candidate(&name, session, &["a", "b"]) });
            }
        }
    }
}

proptest! {
    /// Repeated decisions reach a stable state, in which only an active preview has a candidate.
    #[test]
    fn decisions_converge(mut observed in observations()) {
        for _ in 0..12 {
            apply(&mut observed);
        }
        let end = decide(&observed);
        prop_assert!(end.commit.is_none() && end.change.is_none() && end.create.is_none(), "{:?}", end);
        prop_assert!(end.disable.is_empty() && end.delete.is_empty() && end.delete_stopped.is_empty(), "{:?}", end);
        let is_previewed = observed.active_session().is_some() && !observed.is_deleted;
        prop_assert_eq!(observed.candidates.len(), usize::from(is_previewed));
        prop_assert!(end.webhook == observed.has_webhook && (is_previewed || !end.webhook));
        prop_assert_eq!(end.is_cleaned_up, observed.is_deleted);
    }

    #[test]
    fn a_preview_that_was_loaded_is_not_suspended_because_of_its_replicas(observed in observations()) {
        let loaded = Observed {
            session: Some(session(true, observed.generation)), policy: Some(policy()), older: 0, is_refused: false, ..observed
        };
        prop_assert_eq!(decide(&loaded).change, None);
    }

    #[test]
    fn a_commit_is_completed_only_with_its_record_and_aborted_only_after_its_time_or_a_deletion(
        observed in observations()
    ) {
        let Decision { commit: step, is_cleaned_up, .. } = decide(&observed);
        let is_recorded = |it: &Commit| it.is_copied && it.generation == observed.generation;
        let is_late = |it: &Commit| observed.elapsed(&Timer::Commit(it.id.clone())) >= COMMIT_INTENT_TIMEOUT;
        let commit = observed.commit.as_ref();
        prop_assert!(step != Some(CommitStep::Complete) || commit.is_some_and(is_recorded));
        let may_abort = |it: &Commit| (is_late(it) || observed.is_deleted) && !is_recorded(it);
        prop_assert!(step != Some(CommitStep::Abort) || commit.is_some_and(may_abort));
        prop_assert!(!is_cleaned_up || step.is_none());
    }

    /// A candidate that replicas evaluate is deleted only if nobody reads its counts: the experiment is deleted, or another candidate
    /// replaces it.
    #[test]
    fn no_candidate_is_deleted_before_its_final_counts_are_written(observed in observations()) {
        let decision = decide(&observed);
        for candidate in &observed.candidates {
            let is_in = |names: &[String]| usize::from(names.contains(&candidate.name));
            let steps = is_in(&decision.disable) + is_in(&decision.delete) + is_in(&decision.delete_stopped);
            prop_assert!(steps <= 1, "{:?}", decision);
            if is_in(&decision.delete_stopped) == 1 {
                let is_late = observed.is_over(&Timer::Stop(candidate.name.clone()));
                prop_assert!(!candidate.is_enabled && (is_late || candidate.has_final_counts(&observed.pods)));
            }
            if is_in(&decision.delete) == 1 && candidate.session.as_ref().is_some_and(|it| !it.start.is_empty()) {
                let is_replaced = observed.active_session().is_some() || observed.commit.is_some();
                prop_assert!(observed.is_deleted || is_replaced, "{:?}", decision);
            }
        }
        prop_assert!(decision.requeue_after.is_none_or(|after| !after.is_zero()));
    }
}
