//! Tests of the queue, of the counts of requests that are not previewed, and of the comparison with the live decision.

use proviso_crds::{PreviewReport, PreviewSettings};
use serde_json::{Value, json};

use super::*;
use crate::lifecycle::tests::revision_of;
use crate::metrics::Metrics;

/// More memory than the reviews of a test need, in KiB.
const AMPLE: u64 = 1024;

/// Returns the review of the creation of a Pod.
pub(super) fn review(uid: &str) -> Review {
    let request = json!({
        "uid": uid, "operation": "CREATE", "name": "web", "namespace": "team",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "ann"}, "object": {"metadata": {"name": "web"}},
    });
    Review::admission(json!({"request": request}).to_string().into()).unwrap()
}

/// Returns a job without experiments, while no generation is live.
pub(super) fn job(review: Review) -> Job {
    let (live, arrived_at) = (Live::NotAsked(None), Timestamp::UNIX_EPOCH);
    Job { live, experiments: Vec::new(), table: Arc::default(), review, arrived_at }
}

/// Returns an experiment that allows every request.
pub(super) fn experiment(name: &str) -> Arc<Experiment> {
    experiment_of(name, &allowing(), PreviewSettings::default())
}

/// Returns a spec that covers every request, with these validations and this mode.
fn spec(validations: &Value, mode: &str) -> Value {
    let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let program = json!({"cel": {"validations": validations}});
    json!({"program": program, "admission": {"rules": [rule], "mode": mode}})
}

fn allowing() -> Value {
    spec(&json!([]), "Protect")
}

fn denying(mode: &str) -> Value {
    spec(&json!([{"expression": "false", "message": "no"}]), mode)
}

/// Returns an experiment of this spec. Its counter counts requests while no generation is live.
fn experiment_of(name: &str, spec: &Value, settings: PreviewSettings) -> Arc<Experiment> {
    let id = crate::manifests::ExperimentId { namespace: None, name: name.to_owned() };
    let (revision, counter) = (revision_of(spec, true), DivergenceCounter::new(PreviewReport::new(now())));
    counter.follow(Versions { experiment: &revision.etag, live: None }, &now());
    Arc::new(Experiment {
        metrics: Metrics::new().experiment(&id),
        id,
        revision: Arc::new(revision),
        settings,
        counter: Some(Arc::new(counter)),
        failure: None,
    })
}

fn counter(experiment: &Experiment) -> &DivergenceCounter {
    experiment.counter.as_ref().unwrap()
}

/// Returns the numbers of evaluated and of dropped requests.
fn counted(experiment: &Experiment) -> (u64, u64) {
    let counts = counter(experiment).report().counts;
    assert_eq!(experiment.metrics.dropped.get(), counts.dropped);
    (counts.evaluated, counts.dropped)
}

/// Returns a queue with these limits, and its receiver.
fn queue(capacity: usize, kib: u64) -> (PreviewQueue, mpsc::UnboundedReceiver<Queued>) {
    let (jobs, receiver) = mpsc::unbounded_channel();
    (PreviewQueue { jobs, room: Room::with_memory(capacity, kib), drops: Arc::default() }, receiver)
}

fn offer(queue: &PreviewQueue, uid: &str, experiments: &[&Arc<Experiment>], concern: Concern) {
    let experiments = experiments.iter().map(|it| (Arc::clone(it), concern)).collect();
    queue.offer(Job { experiments, ..job(review(uid)) });
}

/// Returns the number of dropped requests in the log lines that are due.
fn logged(queue: &PreviewQueue) -> u64 {
    queue.drops.take().iter().map(|line| line.dropped).sum()
}

#[test]
fn a_request_that_finds_no_place_is_dropped_for_each_experiment() {
    let (one, two) = (experiment("one"), experiment("two"));
    for concern in [Concern::Always, Concern::IfExcluded, Concern::UnlessExcluded] {
        let (before, (queue, receiver)) = (counted(&one).1, queue(1, AMPLE));
        offer(&queue, "queued", &[&one, &two], concern);
        assert_eq!(counted(&one), (0, before), "{concern:?}: it is in the queue");
        offer(&queue, "dropped", &[&one, &two], concern);
        assert_eq!((counted(&one), counted(&two)), ((0, before + 1), (0, before + 1)), "{concern:?}");
        // The worker ends.
        drop(receiver);
        let both = before + 2;
        assert_eq!((counted(&one), counted(&two)), ((0, both), (0, both)), "{concern:?}");
        offer(&queue, "late", &[&one], Concern::Always);
        offer(&queue, "late", &[&two], Concern::Always);
        assert_eq!(counted(&one), (0, both + 1), "{concern:?}");
        assert_eq!(logged(&queue), 6, "{concern:?}");
    }
}

// Each replica knows only what it has dropped itself. One that counted nothing would hide that a request has no result.
#[test]
fn a_request_that_is_dropped_at_both_webhooks_counts_at_both() {
    // Without memory, each request is dropped.
    let (one, (queue, _receiver)) = (experiment("one"), queue(10, 1));
    let _memory = queue.room.take(&one.revision.policy, 0);
    offer(&queue, "same", &[&one], Concern::IfExcluded);
    offer(&queue, "same", &[&one], Concern::UnlessExcluded);
    assert_eq!((counted(&one), logged(&queue)), ((0, 2), 2));
}

#[test]
fn a_request_without_memory_is_dropped() {
    let (one, (queue, _receiver)) = (experiment("one"), queue(10, 1));
    offer(&queue, "first", &[&one], Concern::Always);
    assert_eq!(counted(&one), (0, 0));
    offer(&queue, "second", &[&one], Concern::Always);
    queue.count_dropped(&one, None);
    assert_eq!((counted(&one), logged(&queue)), ((0, 2), 2));
    // A request of another live generation is logged, and is no part of these counts.
    queue.count_dropped(&one, Some("other"));
    assert_eq!((counter(&one).report().counts.dropped, logged(&queue)), (2, 1));
}

#[test]
fn a_stopped_preview_is_drained_and_drops_nothing() {
    let (one, (queue, mut receiver)) = (experiment("one"), queue(1, AMPLE));
    offer(&queue, "queued", &[&one], Concern::Always);
    counter(&one).stop();
    offer(&queue, "late", &[&one], Concern::Always);
    queue.count_dropped(&one, None);
    assert!(!counter(&one).is_drained(), "a request is in the queue");
    for evaluation in receiver.try_recv().unwrap().evaluations {
        evaluation.cancel();
    }
    assert!(counter(&one).is_drained());
    assert_eq!((counted(&one), logged(&queue)), ((0, 0), 0));
}

#[test]
fn only_requests_of_the_sample_are_previewed() {
    let settings = PreviewSettings { sample_rate: 0.5, ..PreviewSettings::default() };
    let (all, half) = (experiment("all"), experiment_of("half", &allowing(), settings));
    // Without memory, each request counts as dropped.
    let (queue, _receiver) = queue(1, 1);
    let _memory = queue.room.take(&all.revision.policy, 0);
    let uids: Vec<String> = (0..200).map(|number| format!("7f0c-{number}")).collect();
    for uid in &uids {
        offer(&queue, uid, &[&all, &half], Concern::Always);
    }
    let expected = uids.iter().filter(|uid| is_sampled(uid, 0.5)).count();
    assert_eq!((counted(&all), counted(&half)), ((0, 200), (0, expected.try_into().unwrap())));
    assert!((50..150).contains(&expected), "{expected}");
}

/// Runs the worker until it has evaluated these jobs.
async fn run(jobs: Vec<Job>) {
    // One policy gets a quarter.
    let (queue, receiver) = queue(4 * jobs.len(), AMPLE);
    for job in jobs {
        queue.offer(job);
    }
    drop(queue);
    run_worker(receiver, 2).await;
}

#[tokio::test]
async fn the_worker_counts_each_request_once() {
    let settings = PreviewSettings { logging: PreviewLogging::Divergences, ..PreviewSettings::default() };
    let excluding = |condition: &str| {
        let mut spec = allowing();
        spec["admission"]["matchConditions"] = json!([{"name": "a", "expression": condition}]);
        experiment_of("one", &spec, settings)
    };
    for (condition, concern, evaluated) in [
        ("true", Concern::IfExcluded, 0),
        ("true", Concern::UnlessExcluded, 1),
        ("false", Concern::IfExcluded, 1),
        ("false", Concern::UnlessExcluded, 0),
    ] {
        let one = excluding(condition);
        run(vec![Job { experiments: vec![(Arc::clone(&one), concern)], ..job(review("u")) }]).await;
        assert_eq!(counted(&one), (evaluated, 0), "{condition} {concern:?}");
        counter(&one).stop();
        assert!(counter(&one).is_drained(), "{condition} {concern:?}");
    }
}

#[tokio::test]
async fn two_versions_in_the_mode_monitor_are_compared_by_what_they_would_enforce() {
    let (allow, deny) = (Verdict::allow(), Verdict::deny("no"));
    let no = Verdict { code: Some(422), reason: Some("Invalid".to_owned()), ..deny.clone() };
    let annotated = Verdict { audit_annotations: [("not-asked".to_owned(), "why".to_owned())].into(), ..allow.clone() };
    let decision = |verdict: &Verdict, unenforced: Option<&Verdict>, was_asked: bool| Decision {
        verdict: verdict.clone(),
        unenforced: unenforced.cloned().map(Box::new),
        was_asked,
    };
    for (live, experiment, decision, wanted) in [
        ("Monitor", denying("Monitor"), decision(&allow, Some(&no), true), Divergence::Same),
        (
            "Monitor",
            denying("Monitor"),
            decision(&allow, Some(&Verdict::deny("why")), true),
            Divergence::MessageDiffers,
        ),
        ("Monitor", denying("Monitor"), decision(&allow, Some(&allow), true), Divergence::NewlyDenied),
        ("Monitor", allowing(), decision(&allow, Some(&no), true), Divergence::Same),
        ("Monitor", denying("Protect"), decision(&allow, Some(&no), true), Divergence::NewlyDenied),
        ("Protect", denying("Monitor"), decision(&no, None, true), Divergence::NewlyAllowed),
        ("Protect", denying("Monitor"), decision(&allow, None, true), Divergence::Same),
        ("Protect", denying("Protect"), decision(&no, None, true), Divergence::Same),
        // The annotation of a policy that was not asked is no difference.
        ("Protect", allowing(), decision(&annotated, None, false), Divergence::Same),
        ("Monitor", denying("Monitor"), decision(&annotated, None, false), Divergence::NewlyDenied),
    ] {
        let revision = Arc::new(revision_of(&spec(&json!([]), live), true));
        let one = experiment_of("one", &experiment, PreviewSettings::default());
        let versions = one.versions(Some(&revision.etag));
        counter(&one).follow(versions, &now());
        let (live, experiments) = (Live::Answered { revision, decision }, vec![(Arc::clone(&one), Concern::Always)]);
        let description = format!("{live:?} {experiment}");
        run(vec![Job { live, experiments, ..job(review("u")) }]).await;
        let counts = counter(&one).report().counts;
        assert_eq!((counts.of(wanted), counts.evaluated), (1, 1), "{description}");
    }
}

#[tokio::test]
async fn an_aborted_worker_counts_the_rest_as_dropped() {
    let one = experiment("one");
    let (queue, worker) = PreviewQueue::start(10, 4, PreviewPriority::Normal).unwrap();
    // The queue is still open, so the worker does not end by itself.
    assert!(!worker.end(Duration::from_millis(1)).await);
    offer(&queue, "late", &[&one], Concern::Always);
    assert_eq!(counted(&one), (0, 1));

    let (queue, worker) = PreviewQueue::start(10, 4, PreviewPriority::Normal).unwrap();
    drop(queue);
    assert!(worker.end(Duration::from_mins(1)).await, "the queue is closed and empty");
}
