//! Differences in the details of verdicts, the mode Monitor, and requests that are not previewed.

use serde_json::{Value, json};

use super::{NEVER, create, divergences, expected};
use crate::support::{Folder, Server, cel, experiment, forbid, policy, rego, wapc, wasm, with};

#[tokio::test]
async fn verdicts_that_differ_in_details_are_not_the_same() {
    let folder = Folder::new();
    let warning =
        |text: &str| rego(&format!("package test\nwarn contains {text:?} if true\ndeny contains \"x\" if false"));
    folder.write("live.json", policy("live", &warning("soon")));
    folder.write("denying.json", policy("denying", &forbid("true", "no")));
    for (name, live, spec) in [
        ("equal", "live", warning("soon")),
        ("silent", "live", forbid(NEVER, "")),
        ("louder", "live", warning("now")),
        // A denial by CEL has a code and a reason.
        ("coded", "denying", cel("false", "no")),
    ] {
        folder.write(&format!("{name}.json"), experiment(name, live, &spec));
    }
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    assert_eq!(server.post("/validate/cluster.denying", create("x")).await.message(), "no");
    let lines = server.until_previews(4).await;
    let wanted =
        [("equal", "Same"), ("silent", "DetailsDiffer"), ("louder", "DetailsDiffer"), ("coded", "DetailsDiffer")];
    assert_eq!(divergences(&lines), expected(&wanted));
    for line in lines {
        let wanted = match line["experiment"].as_str().unwrap() {
            "cluster.equal" => Value::Null,
            "cluster.coded" => json!(["code", "reason"]),
            _ => json!(["warnings"]),
        };
        assert_eq!(line["differs"], wanted, "{line}");
    }
    assert_eq!(server.count("proviso_preview_evaluations_total", &["DetailsDiffer"]).await, 3);
}

#[tokio::test]
async fn versions_in_the_mode_monitor_are_compared_by_what_they_would_enforce() {
    let folder = Folder::new();
    let monitor = json!({"admission": {"mode": "Monitor"}});
    folder.write("live.json", policy("live", &with(forbid(r#"input.request.name == "bad""#, "bad"), &monitor)));
    folder.write("trap.wasm", wapc::executing("unreachable"));
    for (name, spec) in [
        ("equal", forbid(r#"input.request.name == "bad""#, "bad")),
        ("strict", forbid("true", "bad")),
        ("lax", forbid(NEVER, "")),
        ("trap", wasm("trap.wasm")),
    ] {
        folder.write(&format!("{name}.json"), experiment(name, "live", &with(spec, &monitor)));
    }
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.live", create("good")).await.is_allowed());
    let good = server.until_previews(4).await;
    let wanted = [("equal", "Same"), ("strict", "NewlyDenied"), ("lax", "Same"), ("trap", "NewlyDenied")];
    assert_eq!(divergences(&good), expected(&wanted));
    assert!(server.post("/validate/cluster.live", create("bad")).await.is_allowed());
    let lines = server.until_previews(8).await;
    let wanted = [("equal", "Same"), ("strict", "Same"), ("lax", "NewlyAllowed"), ("trap", "ExperimentError")];
    assert_eq!(divergences(&lines[4..]), expected(&wanted));
    assert!(lines.iter().all(|line| line["monitored"] == true), "{lines:#?}");
    assert!(lines[4..].iter().all(|line| line["live"]["allowed"] == false), "{lines:#?}");
    assert_eq!(server.count("proviso_preview_errors_total", &["cluster.trap"]).await, 2);
}

#[tokio::test]
async fn a_server_that_shuts_down_logs_the_requests_that_it_does_not_preview() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(NEVER, "")));
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    // Longer than the shutdown takes.
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("loop.json", experiment("loop", "live", &endless));
    let mut server = Server::start(folder, &[]).await;
    for _ in 0..10 {
        assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    }
    server.signal(rustix::process::Signal::INT);
    assert_eq!(server.exit_code().await, Some(0), "{:#?}", server.stderr.all());
    let dropped = || server.drops().iter().filter_map(|line| line["dropped"].as_u64()).sum::<u64>();
    server.until("the lines about dropped requests", async || dropped() == 10).await;
    assert!(server.previews().is_empty(), "{:#?}", server.previews());
    let line = server.drops().remove(0);
    assert_eq!((&line["experiment"], &line["policy"]), (&json!("cluster.loop"), &json!("cluster.live")));
    assert!(line["experimentEtag"].is_string() && line["liveEtag"].is_string() && line["time"].is_string(), "{line}");
}
