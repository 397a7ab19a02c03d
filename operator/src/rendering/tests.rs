use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, json};
use tokio::sync::Notify;

use super::*;

const FATAL: &str = "fatal";
const SLOW: &str = "slow";

/// Runs jobs in this process. A job whose input has the word `fatal` dies as if a policy had taken all memory, and
/// one with the word `slow` as if the machine were slow.
#[derive(Debug, Default)]
struct InProcess {
    /// The number of policies of each job.
    jobs: Mutex<Vec<usize>>,
    running: AtomicUsize,
    /// The jobs wait for this, if a test sets it.
    gate: Option<Arc<Notify>>,
}

impl RunJob for InProcess {
    async fn run(&self, command: &'static str, limits: Limits, input: &[u8]) -> Result<Vec<u8>, JobError> {
        assert_eq!(command, RENDER);
        self.running.fetch_add(1, Ordering::Relaxed);
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        let policies = serde_json::from_slice::<Value>(input).unwrap()["policies"].as_array().unwrap().len();
        self.jobs.lock().unwrap().push(policies);
        if String::from_utf8_lossy(input).contains(FATAL) {
            return Err(JobError::Memory(limits.memory_mib));
        }
        if String::from_utf8_lossy(input).contains(SLOW) {
            return Err(JobError::Timeout(limits.time));
        }
        let mut results = job::render(input).unwrap();
        // The child process returns a part of a batch if the policies are slow.
        if policies == 5 {
            results.truncate(2);
        }
        Ok(serde_json::to_vec(&results).unwrap())
    }
}

type Wanted = (Arc<ConfigurationPolicy>, Arc<RevisedConfiguration>);

fn policy(name: &str, fields: &Value) -> Wanted {
    let mut configuration = json!({"configName": "memory"});
    configuration.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let configuration: proviso_crds::Configuration = serde_json::from_value(configuration).unwrap();
    let facts = configuration.facts(PolicyId::cluster(name).unwrap(), Version::of(1));
    (Arc::new(facts), Arc::new(RevisedConfiguration { configuration, settings: Map::new() }))
}

fn template(name: &str, expression: &str) -> Wanted {
    policy(name, &json!({"template": {"cel": expression}}))
}

fn component(namespace: &str, size: &str) -> ComponentFacts {
    let labels = BTreeMap::from([("size".to_owned(), size.to_owned())]);
    ComponentFacts { namespace: namespace.into(), name: "web".into(), kind: None, labels }
}

fn content(item: &Result<Item, RenderError>) -> Value {
    serde_json::from_str::<Value>(item.as_ref().unwrap().body()).unwrap()["config"].clone()
}

#[tokio::test]
async fn a_policy_that_ends_the_process_harms_no_other_policy() {
    let renderings = Renderings::new(InProcess::default());
    let wanted = [
        template("a", "{'size': component.labels.size}"),
        template("b", &format!("{{'{FATAL}': 1}}")),
        template("c", "{'wrong': component.labels.missing}"),
        policy("d", &json!({"content": {"fixed": true}})),
        policy(
            "e",
            &json!({"template": {"cel": "{'min': 'x'}"}, "schema": {"properties": {"min": {"type": "integer"}}}}),
        ),
        template("f", "{"),
        template("g", "{'last': component.namespace}"),
    ];
    let items = renderings.items(&wanted, &component("team", "4")).await;
    assert_eq!(items.len(), wanted.len());
    assert_eq!(content(&items[0]), json!({"size": "4"}));
    let limit = "evaluating it takes more than 64 MiB of memory: make it smaller";
    assert_eq!(items[1], Err(RenderError::Template(limit.to_owned())));
    assert!(matches!(&items[2], Err(RenderError::Template(_))), "{:?}", items[2]);
    assert_eq!(content(&items[3]), json!({"fixed": true}));
    assert!(matches!(&items[4], Err(RenderError::Schema(_))), "{:?}", items[4]);
    assert!(matches!(&items[5], Err(RenderError::Compile(_))), "{:?}", items[5]);
    assert_eq!(content(&items[6]), json!({"last": "team"}));
    assert_eq!(*renderings.runner.jobs.lock().unwrap(), [6, 1, 1, 1, 1, 1, 1], "the batch, and then each policy alone");
}

#[tokio::test]
async fn a_part_of_a_batch_is_followed_by_the_rest() {
    let renderings = Renderings::new(InProcess::default());
    let wanted: Vec<_> = (0..5).map(|n| template(&format!("p{n}"), &format!("{{'n': {n}}}"))).collect();
    let items = renderings.items(&wanted, &component("team", "1")).await;
    let found: Vec<_> = items.iter().map(content).collect();
    assert_eq!(found, (0..5).map(|n| json!({"n": n})).collect::<Vec<_>>());
    assert_eq!(*renderings.runner.jobs.lock().unwrap(), [5, 3]);
    let many: Vec<_> = (0..40).map(|n| template(&format!("m{n}"), "{}")).collect();
    assert!(renderings.items(&many, &component("team", "1")).await.iter().all(Result::is_ok));
    assert_eq!(*renderings.runner.jobs.lock().unwrap(), [5, 3, 16, 16, 8]);
}

#[tokio::test]
async fn a_body_is_computed_once_for_the_same_component_and_revision() {
    let renderings = Renderings::new(InProcess::default());
    let first = [template("a", "{'size': component.labels.size}"), policy("b", &json!({"content": {"n": 1}}))];
    let jobs = || renderings.runner.jobs.lock().unwrap().len();
    for _ in 0..3 {
        assert_eq!(content(&renderings.items(&first, &component("team", "4")).await[0]), json!({"size": "4"}));
    }
    assert_eq!(jobs(), 1);
    assert_eq!(content(&renderings.items(&first, &component("team", "8")).await[0]), json!({"size": "8"}));
    assert_eq!(content(&renderings.items(&first, &component("other", "8")).await[0]), json!({"size": "8"}));
    assert_eq!(jobs(), 3, "other components have bodies of their own");
    // The policies were deleted and created again: their ids and generations are the same.
    let again = [template("a", "{'other': true}"), policy("b", &json!({"content": {"n": 2}}))];
    let items = renderings.items(&again, &component("team", "4")).await;
    assert_eq!((content(&items[0]), content(&items[1])), (json!({"other": true}), json!({"n": 2})));
}

#[tokio::test]
async fn a_slow_machine_is_no_error_of_the_policy() {
    let renderings = Renderings::new(InProcess::default());
    let wanted = [template("a", &format!("{{'{SLOW}': 1}}")), template("b", "{}")];
    let items = renderings.items(&wanted, &component("team", "1")).await;
    let error = items[0].as_ref().unwrap_err();
    assert!(matches!(error, RenderError::Unavailable(_)) && error.is_transient(), "{error}");
    assert_eq!(error.to_string(), "the template was not evaluated: it took longer than 10s");
    assert_eq!(content(&items[1]), json!({}));
}

#[tokio::test]
async fn the_cache_keeps_no_content_of_a_revision_that_is_gone() {
    let renderings = Renderings::new(InProcess::default());
    let wanted = [template("a", "{'n': 1}"), policy("b", &json!({"content": {"n": 1}}))];
    let revisions: Vec<_> = wanted.iter().map(|(_, revised)| Arc::downgrade(revised)).collect();
    assert!(renderings.items(&wanted, &component("team", "1")).await.iter().all(Result::is_ok));
    renderings.items.run_pending_tasks().await;
    assert_eq!(renderings.items.entry_count(), 2);
    drop(wanted);
    assert!(revisions.iter().all(|revised| revised.upgrade().is_none()));
}

#[tokio::test]
async fn one_namespace_gets_half_of_the_processes() {
    let gate = Arc::new(Notify::new());
    let renderings = Arc::new(Renderings::new(InProcess { gate: Some(Arc::clone(&gate)), ..InProcess::default() }));
    let render = |namespace: &'static str, name: &str| {
        let (renderings, wanted) = (Arc::clone(&renderings), [template(name, "{}")]);
        tokio::spawn(async move { renderings.items(&wanted, &component(namespace, "1")).await })
    };
    let hostile: Vec<_> = (0..5).map(|n| render("hostile", &format!("h{n}"))).collect();
    while renderings.runner.running.load(Ordering::Relaxed) < 1 {
        tokio::task::yield_now().await;
    }
    let other = render("other", "o");
    while renderings.runner.running.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
        assert_eq!(renderings.runner.running.load(Ordering::Relaxed), 2, "the other tasks of the namespace wait");
    }
    while !(other.is_finished() && hostile.iter().all(tokio::task::JoinHandle::is_finished)) {
        gate.notify_one();
        tokio::task::yield_now().await;
    }
    assert_eq!(renderings.runner.jobs.lock().unwrap().len(), 6);
}
