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

/// Long enough to reach the call of the host on a busy machine.
const BUDGET: Duration = Duration::from_secs(1);
/// More evaluations than a program may run at once.
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

/// A call of the authorizer occupies a thread and a slot of the program. An evaluation without a slot ends at the deadline too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluations_that_wait_for_the_host_release_their_slots() {
    for expression in HOST_CALLS {
        let (program, other) = (program(expression), program(expression));
        let mut waiting = JoinSet::new();
        for _ in 0..MANY {
            let program = program.clone().with_host(hanging());
            waiting.spawn(async move { program.evaluate(&review(), Deadline::after(BUDGET)).await });
        }
        let answered = other.with_host(answering()).evaluate(&review(), Deadline::after(AMPLE)).await;
        assert_eq!(answered, Ok(Verdict::allow()), "another program has its own slots: {expression}");
        for result in timeout(AMPLE, waiting.join_all()).await.expect("all evaluations end") {
            let is_late = matches!(result, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded));
            assert!(is_late, "{expression}: {result:?}");
        }
        let next = program.with_host(answering()).evaluate(&review(), Deadline::after(AMPLE)).await;
        assert_eq!(next, Ok(Verdict::allow()), "{expression}");
    }
}
