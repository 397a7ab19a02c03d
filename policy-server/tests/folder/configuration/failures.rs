//! Bad input: each problem names its file or subscription, its field and the remedy, and harms nothing else.

use serde_json::{Value, json};

use super::{Components, folder, policy, policy_with, subscribe, subscription};
use crate::support::{Server, manifest, run_to_end};

#[tokio::test]
async fn a_broken_version_is_named_and_the_last_good_one_stays() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    subscribe(&folder, &json!([{"id": "cluster.memory"}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    let template = |template: Value| {
        let configuration = json!({"configName": "memory", "template": template});
        manifest("ClusterPolicy", "memory", &json!({ "configuration": configuration }))
    };
    let schema = |schema: Value| policy_with("memory", &json!({"mib": 1}), &json!({ "schema": schema }));
    for (text, wanted) in [
        (template(json!({"cel": "{'mib': }"})), "spec.configuration.template.cel"),
        (template(json!({"rego": "package p\ncontent := "})), "spec.configuration.template.rego"),
        (schema(json!({"type": 5})), "spec.configuration.schema"),
        (schema(json!({"properties": {"mib": {"type": "string"}}})), "spec.configuration.content"),
        (policy("memory", &json!({"text": "x".repeat(600 * 1024)})), "at most 524288 (512 KiB) are allowed"),
        (
            policy_with("memory", &json!({}), &json!({"confidential": true})),
            "spec.configuration.namespaces: is missing",
        ),
        (
            policy_with("memory", &json!({}), &json!({"configname": "x"})),
            "spec.configuration.configname: is not a known field",
        ),
        (policy_with("memory", &Value::Null, &json!({})), "needs exactly one of `content` and `template`"),
        ("{".to_owned(), "memory.json:"),
    ] {
        components.server.folder.write("memory.json", text);
        components.server.until_details(wanted).await;
        assert_eq!(components.config("cluster.memory"), json!({"mib": 256}), "{wanted}");
    }
    assert_eq!(components.messages().len(), 1);

    // A restart with the broken document changes nothing either.
    let components = Components::start(components.server.stop().await).await;
    components.server.until_details("memory.json:").await;
    components.server.folder.write("disk.json", policy("disk", &json!({})));
    components.server.until_details("[+] cluster.disk").await;
    assert_eq!(components.config("cluster.memory"), json!({"mib": 256}));
    components.server.folder.write("memory.json", policy("memory", &json!({"mib": 512})));
    components.server.until("the repair", async || components.config("cluster.memory") == json!({"mib": 512})).await;
}

#[tokio::test]
async fn each_error_of_a_subscription_names_its_file_and_field() {
    let folder = folder();
    let valid = subscription(&folder, &json!([{"id": "cluster.memory"}]));
    let server = Server::start(folder, &[]).await;
    let cases: [(&str, Value, &str); 9] = [
        ("/policies/0/id", json!("memory"), "spec.policies[0].id: is no policy id"),
        ("/policies", json!([]), "spec.policies: has 0 items"),
        (
            "/policies",
            json!([{"filter": {"nameRegex": "("}}]),
            "spec.policies[0]: `filter.nameRegex`: the regular expression",
        ),
        ("/policies", json!([{"filter": {"unique": true}}]), "spec.policies[0].filter: needs at least one of"),
        ("/polices", json!([]), "spec.polices: is not a known field"),
        ("/scn", Value::Null, "spec: needs exactly one of `component` and `scn`"),
        ("/delivery", json!({}), "spec.delivery"),
        ("/delivery/notify/timeoutSeconds", json!(3000), "spec.delivery.notify.timeoutSeconds: must be 1 to 300"),
        (
            "/delivery/notify/http",
            json!({"service": "a", "path": "/", "port": 1}),
            "needs exactly one of `exec` and `http`",
        ),
    ];
    for (pointer, value, wanted) in cases {
        let mut spec = valid.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            object => object[key] = value,
        }
        server.folder.write("broken.json", manifest("PolicySubscription", "meter", &spec));
        server
            .until(wanted, async || {
                server.details().await.lines().any(|line| line.contains("broken.json:") && line.contains(wanted))
            })
            .await;
    }
    assert!(server.count("proviso_manifest_problems", &[]).await > 0);
}

#[tokio::test]
async fn without_a_folder_for_components_no_command_runs() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({})));
    subscribe(&folder, &json!([{"id": "cluster.memory"}]));
    let server = Server::start(folder, &[]).await;
    server.until("the warning", async || server.event("the subscription is not delivered").is_some()).await;
    let warning = server.event("the subscription is not delivered").unwrap();
    assert_eq!(warning["level"], "WARN");
    assert!(warning.to_string().contains("--deliver-to"), "{warning}");
    server.folder.write("memory.json", policy("memory", &json!({"mib": 1})));
    server.until_details("[+] cluster.memory generation 2 live").await;
    let path = "/api/v1alpha1/subscriptions/default/meter:resend";
    let answer = server.post(path, "").await;
    assert!(!answer.status.is_success() && answer.text.contains("--deliver-to"), "{}", answer.text);
    assert!(!server.folder.root().join("messages").exists());
}

#[tokio::test]
async fn names_of_components_stay_in_the_folder_and_belong_to_one_subscription() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    let named = |scn: &str| json!({"scn": scn, "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "c"}});
    folder.write("a.json", manifest("PolicySubscription", "a", &named("meter")));
    folder.write("b.json", manifest("PolicySubscription", "b", &named("meter")));
    folder.write("c.json", manifest("PolicySubscription", "c", &named("../outside")));
    folder.write("d.json", manifest("PolicySubscription", "d", &named(".hidden")));
    folder.write("e.json", manifest("PolicySubscription", "e", &named(&"ä".repeat(200))));
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    let warnings = || components.server.events("the subscription is not delivered");
    components.server.until("the warnings", async || warnings().len() == 4).await;
    for (subscription, wanted) in [
        ("ns.default.b", "ns.default.a has the service component name meter too"),
        ("ns.default.c", "is no name of a folder"),
        ("ns.default.d", "is no name of a folder"),
        ("ns.default.e", "at most 255"),
    ] {
        let warning = warnings().into_iter().find(|line| line["subscription"] == subscription).unwrap();
        assert!(warning["error"].as_str().unwrap().contains(wanted), "{warning}");
    }
    assert!(!components.server.folder.root().join("outside").exists());
    assert!(components.read("meter/record.json").unwrap().contains(r#""name": "a""#));

    // The other subscription takes the component over.
    components.server.folder.remove("a.json");
    let has_moved = async || components.read("meter/record.json").unwrap_or_default().contains(r#""name": "b""#);
    components.server.until("the other subscription", has_moved).await;
    components.until_acknowledged(1).await;
}

#[tokio::test]
async fn the_folder_of_a_removed_subscription_is_removed_and_no_other_one() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({})));
    subscribe(&folder, &json!([{"id": "cluster.memory"}]));
    let other = json!({"scn": "probe", "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "probe"}});
    folder.write("probe.json", manifest("PolicySubscription", "probe", &other));
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    components.server.until("probe", async || components.condition("probe", "Delivered")[0] == "True").await;
    std::fs::create_dir(components.path("of-nobody")).unwrap();
    std::fs::write(components.path("of-nobody/event"), "kept").unwrap();

    // A document that cannot be read may still have its subscription.
    components.server.folder.write("meter.json", "{");
    components.server.until_details("meter.json:").await;
    components.server.folder.remove("probe.json");
    components.server.until("the removal", async || !components.path("probe").exists()).await;
    assert_eq!(components.items(), ["cluster.memory"]);

    // Also after a restart.
    let folder = components.server.stop().await;
    let components = Components::start(folder).await;
    components.server.folder.write("probe.json", manifest("PolicySubscription", "probe", &other));
    components.server.until("probe", async || components.condition("probe", "Delivered")[0] == "True").await;
    assert_eq!(components.items(), ["cluster.memory"]);

    // A subscription that was removed while the server was down.
    let folder = components.server.stop().await;
    folder.remove("meter.json");
    let components = Components::start(folder).await;
    components.server.until("the removal", async || !components.path("meter").exists()).await;
    assert_eq!(components.read("of-nobody/event").as_deref(), Some("kept"));
    assert!(components.path("probe/event").exists());
}

#[tokio::test]
async fn two_servers_cannot_deliver_to_one_folder() {
    let components = Components::start(folder()).await;
    let (root, other) = (components.server.folder.root(), tempfile::tempdir().unwrap());
    let paths = [other.path().to_str().unwrap(), root.join("components").to_str().unwrap()].map(ToOwned::to_owned);
    let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let arguments = [&["--manifests", &paths[0], "--deliver-to", &paths[1]], &listen[..]].concat();
    let ended = run_to_end(&arguments, &[]).await;
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("is in use by another policy server"), "{}", ended.stderr);
}
