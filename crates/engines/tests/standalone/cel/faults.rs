//! A host that hangs (row 7 of the faults that Proviso withstands): who asks it is denied at the deadline, and everything is
//! given back.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::{Review, Verdict};
use proviso_engines::cel::Program;
use proviso_engines::{Deadline, EvaluationError};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::policies::{AMPLE, compile, review_of, validation};
use super::world::World;
use crate::deadline::ended_at;

/// Long enough to begin to ask, also on a busy machine.
const BUDGET: Duration = Duration::from_secs(1);
/// More than a program has places.
const MANY: usize = 200;
const ASKING: [&str; 2] = ["authorizer.requestResource.check('get').allowed()", "namespaceObject == null || true"];

fn review() -> Review {
    review_of("Pod", "default")
}

fn program(expression: &str) -> Program {
    compile(&[], vec![validation(expression)]).unwrap()
}

fn hanging() -> Arc<World> {
    Arc::new(World { hangs: true, ..World::default() })
}

fn answering() -> Arc<World> {
    Arc::new(World::with_namespace("default", json!({"metadata": {"name": "default"}})))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_hangs_ends_with_the_policys_deadline() {
    for expression in ASKING {
        let (program, world, review) = (program(expression), hanging(), review());
        let asking = program.clone().with_host(Arc::clone(&world) as Arc<_>);
        let deadline = Deadline::after(BUDGET);
        let result = ended_at(deadline, asking.evaluate(&review, deadline)).await;
        assert_eq!(result, Err(EvaluationError::DeadlineExceeded), "{expression}");
        assert_eq!(world.asked().len(), 1, "{expression}");
        let next = program.with_host(answering()).evaluate(&review, Deadline::after(AMPLE)).await;
        assert_eq!(next, Ok(Verdict::allow()), "{expression}");
    }
}

/// An authorizer is asked on a thread, in a place of the program: who finds none waits no longer either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_for_a_host_give_everything_back() {
    for expression in ASKING {
        let (program, other) = (program(expression), program(expression));
        let mut waiting = JoinSet::new();
        for _ in 0..MANY {
            let program = program.clone().with_host(hanging());
            waiting.spawn(async move { program.evaluate(&review(), Deadline::after(BUDGET)).await });
        }
        let answered = other.with_host(answering()).evaluate(&review(), Deadline::after(AMPLE)).await;
        assert_eq!(answered, Ok(Verdict::allow()), "another program has its own places: {expression}");
        for result in timeout(AMPLE, waiting.join_all()).await.expect("all end") {
            let is_late = matches!(result, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded));
            assert!(is_late, "{expression}: {result:?}");
        }
        let next = program.with_host(answering()).evaluate(&review(), Deadline::after(AMPLE)).await;
        assert_eq!(next, Ok(Verdict::allow()), "{expression}");
    }
}
