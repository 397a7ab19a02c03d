//! Experiments that misbehave: the live verdict is unchanged, and dropped previews are counted.

use serde_json::json;

use crate::{TOO_LONG, ask, assert_fine, server_with_fine_policies};

use crate::support::{Folder, experiment, wapc, wasm, with};

// An experiment traps, loops, floods its log, or answers nonsense.
#[tokio::test]
async fn a_failing_experiment_is_counted_and_does_not_change_the_live_verdict() {
    let folder = Folder::new();
    let flood = "(loop $again (call $log (i32.const 0) (i32.const 65536)) (br $again)) (i32.const 1)";
    // Modules that end by themselves have the longest timeout, so that they end before it on a busy machine.
    for (name, module, seconds) in [
        ("trap", wapc::executing("unreachable"), 30),
        ("loop", wapc::executing(wapc::ENDLESS), 3),
        ("flood", wapc::executing(flood), 3),
        ("noise", wapc::executing("(call $respond (i32.const 0) (i32.const 0x20000)) (i32.const 1)"), 30),
    ] {
        let spec = with(wasm(&format!("{name}.wasm")), &json!({"timeoutEvalSeconds": seconds}));
        folder.write(&format!("{name}.wasm"), module);
        folder.write(&format!("{name}.json"), experiment(name, "fine", &spec));
    }
    let server = server_with_fine_policies(folder, &[]).await;
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

// Many requests arrive while an experiment never ends.
#[tokio::test]
async fn previews_beyond_the_queue_are_dropped_and_counted() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("loop.json", experiment("loop", "fine", &endless));
    let server = server_with_fine_policies(folder, &["--preview-queue", "1"]).await;
    server.until_details("experiment cluster.loop generation 1 previews cluster.fine").await;
    for _ in 0..50 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    assert!(server.previews().is_empty(), "live answers waited for the experiment: 30 s for the first of them to end");
    server.until("drops", async || server.count("proviso_preview_dropped_total", &["cluster.loop"]).await >= 40).await;
    assert_fine(&server).await;
}
