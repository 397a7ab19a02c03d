//! Stops: replicas first write their final counts, then the candidate is deleted.

use super::*;

/// Returns an experiment whose candidate is disabled, with these reports and these pods that have stopped.
fn stopping(replicas: Vec<Replica>, stopped_pods: &[&str]) -> Observed {
    let mut observed = stopped();
    observed.candidates[0].is_enabled = false;
    observed.candidates[0].replicas = replicas;
    observed.candidates[0].stopped = stopped_pods.iter().map(|name| pod(name)).collect();
    observed
}

fn loaded(names: &[&str]) -> Vec<Replica> {
    names.iter().map(|name| replica(name, Some(Ok(())))).collect()
}

fn stop_timer(seconds: u64) -> Vec<(Timer, Duration)> {
    vec![(Timer::Stop("c".to_owned()), Duration::from_secs(seconds))]
}

#[test]
fn a_stop_disables_the_candidate_before_it_deletes_it() {
    let updated = Observed { generation: 2, session: Some(session(false, 1)), ..active() };
    let too_many = Observed { older: 10, ..stopped() };
    let no_policy = Observed { policy: None, ..stopped() };
    for observed in [stopped(), updated, too_many, no_policy] {
        let decision = decide(&observed);
        assert_eq!((decision.disable, decision.progress), (vec!["c".to_owned()], Progress::Stopping), "{observed:?}");
        assert!(decision.delete.is_empty() && decision.delete_stopped.is_empty() && decision.create.is_none());
        assert_eq!(decision.timers, [Timer::Stop("c".to_owned())]);
        assert_eq!((decision.initialization, decision.webhook), (Initialization::NotNeeded, false));
    }
}

#[test]
fn a_stop_waits_for_the_final_counts_of_each_ready_pod() {
    for (what, observed, is_done) in [
        ("nobody has stopped", stopping(loaded(&["a", "b"]), &[]), false),
        ("one has stopped", stopping(loaded(&["a", "b"]), &["a"]), false),
        ("both have stopped", stopping(loaded(&["a", "b"]), &["a", "b"]), true),
        ("an older version removes its report", stopping(loaded(&["b"]), &["b"]), true),
        ("no reports", stopping(Vec::new(), &[]), true),
        ("one loads it", stopping(vec![replica("a", None)], &[]), false),
        ("one could not load it", stopping(vec![replica("a", Some(Err(failure())))], &[]), true),
        ("no pod", Observed { pods: Vec::new(), ..stopping(loaded(&["a", "b"]), &[]) }, true),
        ("a lost pod", Observed { pods: vec![pod("b")], ..stopping(loaded(&["a", "b"]), &["b"]) }, true),
        ("in time", Observed { elapsed: stop_timer(14), ..stopping(loaded(&["a"]), &[]) }, false),
        ("too late", Observed { elapsed: stop_timer(15), ..stopping(loaded(&["a"]), &[]) }, true),
    ] {
        let decision = decide(&observed);
        assert_eq!(decision.delete_stopped, if is_done { vec!["c".to_owned()] } else { Vec::new() }, "{what}");
        // Until the candidate is deleted, the preview has not stopped.
        assert_eq!((decision.progress, decision.disable.len(), decision.delete.len()), (Progress::Stopping, 0, 0));
        assert_eq!(decision.timers.len(), usize::from(!is_done), "{what}");
    }
    // A pod that replaced another one under its name has counted nothing.
    let mut replaced = stopping(loaded(&["a", "b"]), &["b"]);
    replaced.pods[0].uid = "later".to_owned();
    assert_eq!(decide(&replaced).delete_stopped.len(), 1);
    // A candidate that was never prepared is loaded by nobody.
    for initialized in [None, Some(Err(failure()))] {
        let mut observed = stopping(loaded(&["a"]), &[]);
        observed.candidates[0].initialized = initialized;
        assert_eq!(decide(&observed).delete_stopped.len(), 1);
    }
    let mut done = stopped();
    done.candidates.clear();
    assert_eq!((decide(&done).progress, decide(&done).requeue_after), (Progress::Suspended, None));
}

#[test]
fn a_start_during_a_stop_replaces_the_candidate_at_once() {
    let mut observed = stopping(loaded(&["a", "b"]), &[]);
    observed.session = Some(Session { start: "10:01".to_owned(), ..session(true, 1) });
    let decision = decide(&observed);
    assert_eq!(decision.delete, ["c"]);
    assert_eq!(decision.create.map(|it| it.session.start), Some("10:01".to_owned()));
    assert_eq!(decision.progress, Progress::Initializing);
}
