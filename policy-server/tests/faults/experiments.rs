//! Experiments that misbehave (row 37).
use serde_json::json;

use crate::{TOO_LONG, ask, assert_fine, server_beside_fine_policies};

use crate::support::{Folder, experiment, wapc, wasm, with};

// FAULTS 37: experiments that misbehave.
#[tokio::test]
async fn a_failing_experiment_leaves_the_live_verdict_alone_and_is_counted() {
    let folder = Folder::new();
    let flood = "(loop $again (call $log (i32.const 0) (i32.const 65536)) (br $again)) (i32.const 1)";
    // Those that end by themselves have all the time that there is.
    for (name, module, seconds) in [
        ("trap", wapc::doing("unreachable"), 30),
        ("loop", wapc::doing(wapc::ENDLESS), 1),
        ("flood", wapc::doing(flood), 1),
        ("noise", wapc::doing("(call $respond (i32.const 0) (i32.const 0x20000)) (i32.const 1)"), 30),
    ] {
        let spec = with(wasm(&format!("{name}.wasm")), &json!({"timeoutEvalSeconds": seconds}));
        folder.write(&format!("{name}.wasm"), module);
        folder.write(&format!("{name}.json"), experiment(name, "fine", &spec));
    }
    let server = server_beside_fine_policies(folder, &[]).await;
    server.until_details("experiment cluster.noise generation 1 previews cluster.fine").await;
    for _ in 0..3 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    let lines = server.until_previews(12).await;
    for (name, error, words) in [
        ("trap", "Failed", "the policy trapped"),
        ("loop", "DeadlineExceeded", TOO_LONG),
        ("flood", "DeadlineExceeded", TOO_LONG),
        ("noise", "InvalidAnswer", "is not valid"),
    ] {
        let id = format!("cluster.{name}");
        let own: Vec<_> = lines.iter().filter(|line| line["experiment"] == id.as_str()).collect();
        assert_eq!(own.len(), 3, "{name}");
        for line in own {
            assert_eq!(line["divergence"], "ExperimentError", "{line}");
            assert_eq!((&line["preview"]["allowed"], &line["preview"]["code"]), (&json!(false), &json!(500)), "{line}");
            assert_eq!(line["preview"]["error"], error, "{line}");
            assert!(line["preview"]["message"].as_str().unwrap().contains(words), "{line}");
            assert_eq!((&line["live"]["allowed"], &line["live"]["message"]), (&json!(false), &json!("fine")), "{line}");
        }
        let labels = [id.as_str(), "ExperimentError"];
        assert_eq!(server.count("proviso_preview_evaluations_total", &labels).await, 3);
    }
    assert_fine(&server).await;
}

// FAULTS 37: a flood of requests while an experiment never ends.
#[tokio::test]
async fn previews_that_find_no_place_are_dropped_and_counted_and_the_live_answers_come() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("loop.json", experiment("loop", "fine", &endless));
    let server = server_beside_fine_policies(folder, &["--preview-queue", "1"]).await;
    server.until_details("experiment cluster.loop generation 1 previews cluster.fine").await;
    for _ in 0..50 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    assert!(server.previews().is_empty(), "live answers waited for the experiment: 30 s for the first of them to end");
    server.until("drops", async || server.count("proviso_preview_dropped_total", &["cluster.loop"]).await >= 40).await;
    assert_fine(&server).await;
}
