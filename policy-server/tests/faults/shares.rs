//! Policies and tenants that take as much as they can get: places, memory, compilers, previews. Other policies get their shares.

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Answer, Folder, Server, experiment, forbid, pod, policy, wapc, wasm, with};
use crate::{TOO_LONG, ask, assert_failed, assert_fine, server_with_fine_policies};

/// Returns the manifest of a Policy in a namespace that covers all requests of the namespace.
fn namespaced(namespace: &str, name: &str, spec: &Value) -> String {
    let mut manifest: Value = serde_json::from_str(&policy(name, spec)).unwrap();
    manifest["kind"] = "Policy".into();
    manifest["metadata"]["namespace"] = namespace.into();
    manifest.to_string()
}

fn review_in(namespace: &str) -> String {
    let mut review = pod("u", "x");
    review["request"]["namespace"] = namespace.into();
    review.to_string()
}

async fn begin(server: &Server, policy: &str, review: &str, times: usize) -> Vec<JoinHandle<Answer>> {
    let mut begun = Vec::new();
    for _ in 0..times {
        begun.push(server.begin(&format!("/validate/{policy}"), review.to_owned()).await);
    }
    begun
}

async fn places_in_use(server: &Server) -> u64 {
    server.count("proviso_evaluation_places_in_use", &[]).await
}

/// Waits until this number of places is in use and nobody waits for one.
async fn until_places(server: &Server, wanted: u64) {
    server
        .until("places in use", async || {
            places_in_use(server).await == wanted && server.count("proviso_evaluations_waiting", &[]).await == 0
        })
        .await;
}

fn assert_overloaded(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
    assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
    assert!(answer.text.contains("overloaded") && !answer.text.contains("allowed"), "{}", answer.text);
}

/// Asserts that all requests but the first `running` were refused, and were not answered by a denial.
async fn assert_surplus_is_refused(asked: Vec<JoinHandle<Answer>>, running: usize) -> Vec<JoinHandle<Answer>> {
    let (ended, still): (Vec<_>, Vec<_>) = asked.into_iter().partition(JoinHandle::is_finished);
    assert_eq!(still.len(), running);
    for answer in ended {
        assert_overloaded(&answer.await.unwrap());
    }
    still
}

// 64 requests arrive for a policy that loops, of each engine that can.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_requests_to_a_looping_policy_take_no_more_than_a_quarter_of_the_places() {
    let folder = Folder::new();
    let seconds = json!({"timeoutEvalSeconds": 30});
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("wasm.json", policy("wasm", &with(wasm("loop.wasm"), &seconds)));
    // The condition on the name keeps the trial run fast: before a policy is accepted, it is tried on another request.
    let endless = "input.request.name == \"x\"; \
        count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1e9]) > 0";
    folder.write("rego.json", policy("rego", &with(forbid(endless, "found"), &seconds)));
    let server = server_with_fine_policies(folder, &["--concurrency", "16"]).await;
    let mut running = Vec::new();
    for (index, name) in ["cluster.wasm", "cluster.rego"].into_iter().enumerate() {
        let asked = begin(&server, name, &review_in("default"), 64).await;
        // Meanwhile, the other policies answer.
        for _ in 0..5 {
            assert_fine(&server).await;
        }
        let refused = async || server.count("proviso_evaluations_refused_total", &[name, "policy"]).await;
        server.until("refusals", async || refused().await == 60).await;
        until_places(&server, 4 * (index as u64 + 1)).await;
        server.until("answers", async || asked.iter().filter(|it| it.is_finished()).count() == 60).await;
        running.extend(assert_surplus_is_refused(asked, 4).await);
    }
    for _ in 0..5 {
        assert_fine(&server).await;
    }
    assert!(!running.iter().any(JoinHandle::is_finished), "the others waited for the loops: 30 s");
    running.iter().for_each(JoinHandle::abort);
}

// A tenant has many policies, and each of them loops.
#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_cannot_take_all_places() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    let names = ["a", "b", "c", "d"];
    for name in names {
        let spec = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
        folder.write(&format!("{name}.json"), namespaced("tenant", name, &spec));
    }
    folder.write("other.json", namespaced("other", "other", &forbid("true", "other")));
    let server = server_with_fine_policies(folder, &["--concurrency", "8", "--namespaced-timeout", "30s"]).await;
    let mut asked = Vec::new();
    for name in names {
        asked.extend(begin(&server, &format!("ns.tenant.{name}"), &review_in("tenant"), 4).await);
    }
    server.until("answers", async || asked.iter().filter(|it| it.is_finished()).count() == 12).await;
    until_places(&server, 4).await;
    let running = assert_surplus_is_refused(asked, 4).await;
    assert!(server.count("proviso_evaluations_refused_total", &["tenant", "namespace"]).await > 0);
    for _ in 0..5 {
        assert_eq!(server.post("/validate/ns.other.other", review_in("other")).await.message(), "other");
        assert_fine(&server).await;
    }
    assert!(!running.iter().any(JoinHandle::is_finished), "the others waited for the loops: 30 s");
    running.iter().for_each(JoinHandle::abort);
}

// A tenant sets a long time limit, to hold its places for long.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_of_a_policy_in_a_namespace_is_shortened() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    let spec = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("a.json", namespaced("tenant", "a", &spec));
    folder.write("b.json", policy("b", &spec));
    let server = server_with_fine_policies(folder, &["--evaluation-timeout", "1s"]).await;
    let long = begin(&server, "cluster.b", &review_in("tenant"), 1).await;
    assert_failed(&server.post("/validate/ns.tenant.a", review_in("tenant")).await, TOO_LONG);
    assert!(!long[0].is_finished(), "a cluster policy has its own time limit");
    long[0].abort();
}

// A second request waits for the only place of its policy while the first one loops.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_begins_with_the_place() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &wasm("loop.wasm")));
    let server = server_with_fine_policies(folder, &["--concurrency", "2", "--evaluation-timeout", "100ms"]).await;
    // On a busy machine, the first evaluation may hold the place for longer than the second request waits.
    server
        .until("two evaluations, of which one has waited", async || {
            let mut statuses = Vec::new();
            for answer in begin(&server, "cluster.loop", &review_in("default"), 2).await {
                let answer = answer.await.unwrap();
                match answer.status {
                    StatusCode::OK => assert_failed(&answer, TOO_LONG),
                    _ => assert_overloaded(&answer),
                }
                statuses.push(answer.status);
            }
            let has_waited = server.count("proviso_evaluation_wait_seconds_count", &[]).await > 0;
            statuses == [StatusCode::OK; 2] && has_waited
        })
        .await;
    // Each evaluation has had its whole time.
    let failed = server.metric("proviso_evaluations_total", &["cluster.loop", "failed"]).await;
    let seconds = server.metric("proviso_evaluation_duration_seconds_sum", &["cluster.loop"]).await;
    assert!(seconds >= 0.1 * failed, "{failed} evaluations took {seconds} s together");
}

/// The bytes of [`slow_module`] that differ from module to module.
const SEED: &[u8] = b"seed0000";

/// Returns a module that accepts its settings and takes a second to compile.
fn slow_module() -> Vec<u8> {
    let function = format!("(func (param i32) {})", "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(250));
    wat::parse_str(format!(
        r#"(module (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (memory (export "memory") 1) (data (i32.const 0) "{{\"valid\":true}}") (data (i32.const 64) "{seed}")
            (func (export "__guest_call") (param i32 i32) (result i32)
                (call $respond (i32.const 0) (i32.const 14)) (i32.const 1))
            {functions})"#,
        seed = String::from_utf8_lossy(SEED),
        functions = function.repeat(500)
    ))
    .unwrap()
}

// A tenant applies fifty policies whose modules take long to compile.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_slow_modules_of_one_namespace_do_not_delay_the_policy_of_another_one() {
    let folder = Folder::new();
    let mut module = slow_module();
    let seed = module.windows(SEED.len()).position(|bytes| bytes == SEED).unwrap();
    for index in 0..50 {
        module[seed..seed + SEED.len()].copy_from_slice(format!("seed{index:04}").as_bytes());
        folder.write(&format!("m{index}.wasm"), &module);
        folder.write(
            &format!("p{index}.json"),
            namespaced("tenant", &format!("p{index}"), &wasm(&format!("m{index}.wasm"))),
        );
    }
    let server = Server::spawn(folder, &[]).await;
    server.until_details("ns.tenant.p49 is being loaded").await;
    server.folder.write("small.wasm", wapc::answering(&json!({"accepted": false, "message": "small"})));
    server.folder.write("wasm.json", namespaced("other", "wasm", &wasm("small.wasm")));
    server.folder.write("rego.json", namespaced("other", "rego", &forbid("true", "rego")));
    for name in ["wasm", "rego"] {
        server.until_details(&format!("[+] ns.other.{name} generation 1 live")).await;
    }
    let waiting = server.details().await.matches(" is being loaded").count();
    assert!(
        waiting >= 25,
        "only {waiting} of the 50 policies still wait: the other namespace waited for the first half"
    );
    assert_eq!(server.post("/validate/ns.other.wasm", review_in("other")).await.message(), "small");
}

// The experiment of a policy never ends.
#[tokio::test(flavor = "multi_thread")]
async fn an_experiment_that_loops_leaves_previews_to_other_policies() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("loop.json", experiment("loop", "fine", &endless));
    folder.write("same.json", experiment("same", "fine-rego", &forbid("true", "different")));
    let server = server_with_fine_policies(folder, &["--preview-queue", "16"]).await;
    server.until_details("experiment cluster.loop generation 1 previews cluster.fine").await;
    server.until_details("experiment cluster.same generation 1 previews cluster.fine-rego").await;
    for _ in 0..50 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    let dropped = async |name: &str| server.count("proviso_preview_dropped_total", &[name]).await;
    server.until("drops", async || dropped("cluster.loop").await >= 40).await;
    for done in 1..=5 {
        assert_eq!(ask(&server, "fine-rego").await.message(), "fine");
        let lines = server.until_previews(done).await;
        assert!(lines.iter().all(|line| line["experiment"] == "cluster.same"), "the loops ended: the others waited");
    }
    assert_eq!(dropped("cluster.same").await, 0);
}
