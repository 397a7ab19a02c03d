//! A host that does not answer: a policy that reads other objects denies at the deadline, and does not slow down other
//! evaluations.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proviso_core::{Review, Verdict};
use proviso_engines::host::{Host, HostCall, HostFuture, Objects};
use proviso_engines::rego::Program;
use proviso_engines::{Deadline, EvaluationError};
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{ample, compile, review};

/// A time limit that only a hanging evaluation reaches.
const AMPLE: Duration = Duration::from_mins(1);
/// More evaluations than a policy may run at once, and more than there are blocking threads.
const MANY: usize = 600;

const READS_INVENTORY: &str = r#"package p
violation[{"msg": name}] { data.inventory.cluster["v1"]["Namespace"][name] }
violation[{"msg": "own"}] { input.review.object.denied }"#;

/// A host that does not return its objects while `answers` is false.
#[derive(Debug, Default)]
struct Hanging {
    answers: AtomicBool,
    calls: AtomicUsize,
}

impl Host for Hanging {
    fn call<'a>(&'a self, _: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
        Box::pin(pending())
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.answers.load(Ordering::Relaxed) { Box::pin(ready(Ok(Arc::default()))) } else { Box::pin(pending()) }
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        Box::pin(pending())
    }
}

fn hanging() -> (Program, Arc<Hanging>) {
    let host = Arc::new(Hanging::default());
    let program = compile(READS_INVENTORY).unwrap().with_host(Arc::clone(&host) as Arc<dyn Host>);
    assert!(program.uses_inventory());
    (program, host)
}

fn empty_review() -> Review {
    review(&Map::new())
}

#[tokio::test]
async fn an_evaluation_with_a_hanging_host_ends_at_the_deadline() {
    let ((program, host), budget) = (hanging(), Duration::from_millis(200));
    let start = Instant::now();
    let result = timeout(AMPLE, program.evaluate(&empty_review(), Deadline::after(budget))).await;
    assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
    assert!(start.elapsed() >= budget, "{:?}", start.elapsed());
    host.answers.store(true, Ordering::Relaxed);
    let next = program.evaluate(&empty_review(), ample()).await;
    assert_eq!(next, Ok(Verdict::allow()), "the next evaluation succeeds");
    assert_eq!(host.calls.load(Ordering::Relaxed), 2);
}

/// All evaluations run concurrently on one thread: a waiting evaluation occupies no thread.
#[tokio::test]
async fn evaluations_that_wait_for_the_host_occupy_no_threads() {
    let (program, host) = hanging();
    // Long enough for all evaluations to wait at the same time.
    let deadline = Deadline::after(Duration::from_secs(5));
    let mut waiting = JoinSet::new();
    for _ in 0..MANY {
        let program = program.clone();
        waiting.spawn(async move { program.evaluate(&empty_review(), deadline).await });
    }
    while host.calls.load(Ordering::Relaxed) < MANY {
        assert!(!deadline.has_passed(), "the evaluations wait for each other");
        tokio::task::yield_now().await;
    }
    // Meanwhile the same policy succeeds with another host, and so does a policy that needs no host.
    let answering = Arc::new(Hanging { answers: true.into(), ..Hanging::default() });
    let answered = program.clone().with_host(answering).evaluate(&empty_review(), ample()).await;
    assert_eq!(answered, Ok(Verdict::allow()));
    let other = compile("package p\nviolation[{\"msg\": \"m\"}] { input.review.uid }").unwrap();
    assert_eq!(other.evaluate(&empty_review(), ample()).await, Ok(Verdict::deny("m")));
    for result in timeout(AMPLE, waiting.join_all()).await.expect("all evaluations end") {
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
    }
    host.answers.store(true, Ordering::Relaxed);
    assert_eq!(program.evaluate(&empty_review(), ample()).await, Ok(Verdict::allow()));
}
