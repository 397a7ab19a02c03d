//! A host that hangs (row 7 of the faults that Proviso withstands): who looks at other objects is denied at the deadline, and
//! takes nothing from anybody.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proviso_core::{Review, Verdict};
use proviso_engines::host::{Asked, Host, HostCall, Objects};
use proviso_engines::rego::Program;
use proviso_engines::{Deadline, EvaluationError};
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{ample, compile, review};

/// What nothing takes that ends at all.
const AMPLE: Duration = Duration::from_mins(1);
/// More than there are places, or threads to wait on.
const MANY: usize = 600;

const LOOKS: &str = r#"package p
violation[{"msg": name}] { data.inventory.cluster["v1"]["Namespace"][name] }
violation[{"msg": "own"}] { input.review.object.denied }"#;

/// A host that does not tell its objects while it hangs.
#[derive(Debug, Default)]
struct Hanging {
    answers: AtomicBool,
    asked: AtomicUsize,
}

impl Host for Hanging {
    fn call<'a>(&'a self, _: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
        Box::pin(pending())
    }

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.answers.load(Ordering::Relaxed) { Box::pin(ready(Ok(Arc::default()))) } else { Box::pin(pending()) }
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        Box::pin(pending())
    }
}

fn hanging() -> (Program, Arc<Hanging>) {
    let host = Arc::new(Hanging::default());
    let program = compile(LOOKS).unwrap().with_host(Arc::clone(&host) as Arc<dyn Host>);
    assert!(program.uses_inventory());
    (program, host)
}

fn any() -> Review {
    review(&Map::new())
}

#[tokio::test]
async fn a_host_that_hangs_ends_with_the_policys_deadline() {
    let ((program, host), budget) = (hanging(), Duration::from_millis(200));
    let start = Instant::now();
    let result = timeout(AMPLE, program.evaluate(&any(), Deadline::after(budget))).await;
    assert_eq!(result, Ok(Err(EvaluationError::DeadlineExceeded)));
    assert!(start.elapsed() >= budget, "{:?}", start.elapsed());
    host.answers.store(true, Ordering::Relaxed);
    assert_eq!(program.evaluate(&any(), ample()).await, Ok(Verdict::allow()), "the next one is answered");
    assert_eq!(host.asked.load(Ordering::Relaxed), 2);
}

/// All at once, on one thread: none of them holds a place or a thread while it waits.
#[tokio::test]
async fn many_that_wait_for_a_host_exhaust_nothing() {
    let (program, host) = hanging();
    // So that all of them wait at the same time.
    let deadline = Deadline::after(Duration::from_secs(5));
    let mut waiting = JoinSet::new();
    for _ in 0..MANY {
        let program = program.clone();
        waiting.spawn(async move { program.evaluate(&any(), deadline).await });
    }
    while host.asked.load(Ordering::Relaxed) < MANY {
        assert!(!deadline.is_over(), "they wait for each other");
        tokio::task::yield_now().await;
    }
    // The same policy, when another host answers it, and one that asks nobody.
    let answering = Arc::new(Hanging { answers: true.into(), ..Hanging::default() });
    let answered = program.clone().with_host(answering).evaluate(&any(), ample()).await;
    assert_eq!(answered, Ok(Verdict::allow()));
    let other = compile("package p\nviolation[{\"msg\": \"m\"}] { input.review.uid }").unwrap();
    assert_eq!(other.evaluate(&any(), ample()).await, Ok(Verdict::deny("m")));
    for result in timeout(AMPLE, waiting.join_all()).await.expect("all end") {
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded));
    }
    host.answers.store(true, Ordering::Relaxed);
    assert_eq!(program.evaluate(&any(), ample()).await, Ok(Verdict::allow()));
}
