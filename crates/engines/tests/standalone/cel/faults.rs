//! A host that does not answer: a policy that calls the host denies at the deadline, and releases all of its resources.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::{Review, Verdict};
use proviso_engines::cel::Program;
use proviso_engines::{Deadline, EvaluationError};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::host::TestHost;
use super::policies::{AMPLE, compile, review_of, validation};
use crate::deadline::ended_at;
use crate::places::Places;

/// Long enough to reach the call of the host on a busy machine.
const BUDGET: Duration = Duration::from_secs(1);
/// More evaluations than a policy has places.
const MANY: usize = 200;
const HOST_CALLS: [&str; 2] = ["authorizer.requestResource.check('get').allowed()", "namespaceObject == null || true"];

fn review() -> Review {
    review_of("Pod", "default")
}

fn program(expression: &str) -> Program {
    compile(&[], vec![validation(expression)]).unwrap()
}

fn hanging() -> Arc<TestHost> {
    Arc::new(TestHost { hangs: true, ..TestHost::default() })
}

fn answering() -> Arc<TestHost> {
    Arc::new(TestHost::with_namespace("default", json!({"metadata": {"name": "default"}})))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluation_with_a_hanging_host_ends_at_the_deadline() {
    for expression in HOST_CALLS {
        let (program, host, review) = (program(expression), hanging(), review());
        let waiting = program.clone().with_host(Arc::clone(&host) as Arc<_>);
        let deadline = Deadline::after(BUDGET);
        let result = ended_at(deadline, waiting.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{expression}");
        assert_eq!(host.calls().len(), 1, "{expression}");
        let next = program.with_host(answering()).evaluate(&review, Deadline::after(AMPLE)).await;
        assert_eq!(next, Ok(Verdict::allow()), "{expression}");
    }
}

/// A call of the authorizer occupies a thread and a place of the policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluations_that_wait_for_the_host_release_their_places() {
    for expression in HOST_CALLS {
        let (program, other) = (program(expression), program(expression));
        let (mut waiting, places) = (JoinSet::new(), Places::new());
        for _ in 0..MANY {
            let (program, places) = (program.clone().with_host(hanging()), places.clone());
            let deadline = Deadline::after(BUDGET);
            waiting.spawn(async move { places.run(deadline, program.evaluate(&review(), deadline)).await });
        }
        let (ample, review_of_other) = (Deadline::after(AMPLE), review());
        let other = other.with_host(answering());
        let answered = Places::new().run(ample, other.evaluate(&review_of_other, ample)).await;
        assert_eq!(answered, Ok(Verdict::allow()), "another policy has its own places: {expression}");
        for result in timeout(AMPLE, waiting.join_all()).await.expect("all evaluations end") {
            let is_late = matches!(result, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_)));
            assert!(is_late, "{expression}: {result:?}");
        }
        let (ample, program, review) = (Deadline::after(AMPLE), program.with_host(answering()), review());
        let next = places.run(ample, program.evaluate(&review, ample)).await;
        assert_eq!(next, Ok(Verdict::allow()), "{expression}");
    }
}
