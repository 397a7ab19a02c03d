//! The policies of a component over their life: install, update, removal, filters, templates, restarts and experiments.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{Components, changes, folder, policy, policy_with, subscribe, subscription};
use crate::support::{Folder, manifest, policy as admission_policy};

#[tokio::test]
async fn install_update_removal_and_readding_reach_the_component() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    folder.write("disk.json", policy("disk", &json!({"gib": 1})));
    folder.write("other.json", policy("other", &json!({})));
    subscribe(&folder, &json!([{"id": "cluster.memory"}, {"id": "cluster.disk"}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.items(), ["cluster.disk", "cluster.memory"]);
    assert_eq!(components.config("cluster.memory"), json!({"mib": 256}));
    let event: serde_json::Value = serde_json::from_str(&components.read("meter/event").unwrap()).unwrap();
    assert_eq!((&event["action"], &event["policies_count"]), (&json!("gathered"), &json!(2)));
    assert_eq!(event["update_id"], components.status("meter")["lastUpdate"]["id"]);
    assert_eq!(components.last_changes(), changes(&["disk", "memory"], &[]));
    assert_eq!(components.messages()[0]["policies"].as_array().unwrap().len(), 2);

    let manifests = &components.server.folder;
    manifests.write("memory.json", policy("memory", &json!({"mib": 512})));
    components.server.until("the update", async || components.config("cluster.memory") == json!({"mib": 512})).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.last_changes(), changes(&["memory"], &[]));
    assert_eq!(components.status("meter")["policies"][1]["version"], "2");

    manifests.remove("disk.json");
    components.until_acknowledged(1).await;
    assert_eq!(
        (components.items(), components.last_changes()),
        (vec!["cluster.memory".to_owned()], changes(&[], &["disk"]))
    );
    assert_eq!(components.messages().pop().unwrap()["removed_policies"][0]["config"], json!({"gib": 1}));

    // The new policy begins with generation 1 again, and is an update.
    manifests.write("disk.json", policy("disk", &json!({"gib": 2})));
    components.until_acknowledged(2).await;
    assert_eq!(components.last_changes(), changes(&["disk"], &[]));

    // A disabled policy is removed, and its generations stay.
    let mut disabled: serde_json::Value = serde_json::from_str(&policy("disk", &json!({"gib": 2}))).unwrap();
    disabled["spec"]["enabled"] = json!(false);
    manifests.write("disk.json", disabled.to_string());
    components.until_acknowledged(1).await;
    assert_eq!(components.last_changes(), changes(&[], &["disk"]));
}

#[tokio::test]
async fn a_filter_also_selects_later_policies_and_a_policy_that_it_loses_is_removed() {
    let folder = folder();
    let site = |name: &str, site: &str| policy_with(name, &json!({}), &json!({"attributes": {"site": site}}));
    folder.write("a.json", site("a", "north"));
    folder.write("b.json", site("b", "south"));
    let filter = json!({"owner": "DCAE", "attributes": {"site": "north"}, "nameRegex": "cluster\\.[a-c]"});
    subscribe(&folder, &json!([{"filter": filter}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    assert_eq!(components.items(), ["cluster.a"]);
    components.server.folder.write("c.json", site("c", "north"));
    components.server.folder.write("d.json", site("d", "north"));
    components.until_acknowledged(2).await;
    assert_eq!(
        (components.items(), components.last_changes()),
        (vec!["cluster.a".to_owned(), "cluster.c".to_owned()], changes(&["c"], &[]))
    );
    components.server.folder.write("a.json", site("a", "south"));
    components.until_acknowledged(1).await;
    assert_eq!(components.last_changes(), changes(&[], &["a"]));
}

#[tokio::test]
async fn changes_while_the_server_was_down_are_delivered_at_its_start() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    folder.write("disk.json", policy("disk", &json!({"gib": 1})));
    folder.write("same.json", policy("same", &json!({})));
    subscribe(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(3).await;
    let folder = components.server.stop().await;
    folder.write("memory.json", policy("memory", &json!({"mib": 512})));
    folder.remove("disk.json");
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.last_changes(), changes(&["memory"], &["disk"]));
    assert_eq!(components.config("cluster.memory"), json!({"mib": 512}));
    assert_eq!(components.messages().len(), 2);

    // A restart without changes tells the component nothing.
    let folder = components.server.stop().await;
    let components = Components::start(folder).await;
    components
        .server
        .until("the deliveries", async || components.server.metric("proviso_subscriptions", &["true"]).await > 0.5)
        .await;
    assert_eq!(components.messages().len(), 2);
    assert_eq!(components.server.count("proviso_deliveries_total", &[]).await, 0);
}

#[tokio::test]
async fn a_killed_server_sends_an_update_without_a_known_result_again() {
    let folder = folder();
    std::fs::write(folder.root().join("hang"), "").unwrap();
    folder.write("memory.json", policy("memory", &json!({"name": "hang-me"})));
    subscribe(&folder, &json!([{"id": "cluster.memory"}]));
    let mut components = Components::start(folder).await;
    components.server.until("the command", async || components.messages().len() == 1).await;
    components.server.kill().await;
    let folder = std::mem::replace(&mut components.server.folder, Folder::new());
    std::fs::remove_file(folder.root().join("hang")).unwrap();
    let again = Components::start(folder).await;
    again.until_acknowledged(1).await;
    assert_eq!(again.messages().len(), 2);
    assert_eq!(again.last_changes(), changes(&["memory"], &[]));
}

#[tokio::test]
async fn a_confidential_body_is_readable_by_the_server_only_and_is_in_no_message() {
    let folder = folder();
    let secret = json!({"confidential": true, "namespaces": ["default"]});
    folder.write("password.json", policy_with("password", &json!({"password": "hunter2"}), &secret));
    folder.write("memory.json", policy("memory", &json!({})));
    subscribe(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.config("cluster.password"), json!({"password": "hunter2"}));
    let mode = |name: &str| {
        let metadata = std::fs::metadata(components.path(&format!("meter/items/{name}"))).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!([mode("cluster.password"), mode("cluster.memory")], [0o600, 0o644]);
    let message = components.messages().pop().unwrap();
    assert!(!message.to_string().contains("hunter2"), "{message}");
    assert_eq!(message["updated_policies"][1]["configOmitted"], true);
    assert!(!components.read("meter/record.json").unwrap().contains("hunter2"));
    assert!(!components.server.stderr.all().join("\n").contains("hunter2"));
}

#[tokio::test]
async fn a_template_computes_a_body_for_each_component_and_the_schema_checks_it() {
    let folder = folder();
    let schema = json!({"type": "object", "properties": {"mib": {"type": "integer", "maximum": 1000}}});
    let template = json!({"cel": "{'mib': params.sizes[component.labels.size], 'for': component.name}"});
    let policy = |sizes: serde_json::Value| {
        let configuration = json!({"configName": "memory", "template": template, "schema": schema});
        manifest("ClusterPolicy", "memory", &json!({"configuration": configuration, "settings": {"sizes": sizes}}))
    };
    folder.write("memory.json", policy(json!({"small": 100, "large": 500})));
    for (name, size) in [("meter", "small"), ("probe", "large")] {
        let mut spec = subscription(&folder, &json!([{"id": "cluster.memory"}]));
        spec["scn"] = json!(name);
        let mut object: serde_json::Value = serde_json::from_str(&manifest("PolicySubscription", name, &spec)).unwrap();
        object["metadata"]["labels"] = json!({"size": size});
        folder.write(&format!("{name}.json"), object.to_string());
    }
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    components.server.until("probe", async || components.condition("probe", "Delivered")[0] == "True").await;
    assert_eq!(components.config("cluster.memory"), json!({"mib": 100, "for": "meter"}));
    assert!(components.read("probe/items/cluster.memory").unwrap().contains(r#""config":{"for":"probe","mib":500}"#));

    // The body of one component does not match: it keeps the last one, and the other component gets the new one.
    components.server.folder.write("memory.json", policy(json!({"small": 200, "large": 5000})));
    components.server.until("meter", async || components.config("cluster.memory")["mib"] == json!(200)).await;
    components.server.until("probe", async || components.condition("probe", "Resolved")[0] == "False").await;
    let [_, reason, message] = components.condition("probe", "Resolved");
    assert_eq!(reason, "SchemaViolation");
    assert!(message.contains("cluster.memory") && message.contains("mib"), "{message}");
    assert!(components.read("probe/items/cluster.memory").unwrap().contains(r#""mib":500"#));
}

#[tokio::test]
async fn an_experiment_delivers_its_candidate_to_the_canary_only() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    let mut spec = subscription(&folder, &json!([{"id": "cluster.memory"}]));
    let mut other = spec.clone();
    other["scn"] = json!("probe");
    other["delivery"] = json!({"configMap": "probe"});
    folder.write("probe.json", manifest("PolicySubscription", "probe", &other));
    spec["canaryFor"] = json!([{"policy": "cluster.memory", "experiment": "more"}]);
    folder.write("meter.json", manifest("PolicySubscription", "meter", &spec));
    let components = Components::start(folder).await;
    components.until_acknowledged(1).await;
    assert_eq!(components.config("cluster.memory"), json!({"mib": 256}));
    components.server.until("probe", async || components.condition("probe", "Delivered")[0] == "True").await;

    let candidate = json!({"configName": "memory", "owner": "DCAE", "content": {"mib": 1024}});
    let experiment = json!({
        "policyRef": {"name": "memory"}, "policy": {"configuration": candidate}, "autoStart": true,
    });
    components.server.folder.write("more.json", manifest("ClusterPolicyExperiment", "more", &experiment));
    let has = |mib: u32| components.config("cluster.memory") == json!({ "mib": mib });
    components.server.until("the candidate", async || has(1024)).await;
    components.until_acknowledged(1).await;
    assert_eq!(components.status("meter")["policies"][0]["version"], "1/more/1");
    assert!(components.read("probe/items/cluster.memory").unwrap().contains("256"));

    // The end of the experiment is an update back to the live body.
    components.server.folder.remove("more.json");
    components.server.until("the live body", async || has(256)).await;
    components.until_acknowledged(1).await;
    assert_eq!(components.status("meter")["policies"][0]["version"], "1");

    // A commit makes the candidate the next generation, for every component.
    components.server.folder.write("more.json", manifest("ClusterPolicyExperiment", "more", &experiment));
    components.server.until("the candidate", async || has(1024)).await;
    components.until_acknowledged(1).await;
    let path = "/v1/policies/cluster.memory/experiments/more";
    let read = async || {
        let read = crate::support::ask(&components.server.listen, hyper::Method::GET, path, bytes::Bytes::new()).await;
        serde_json::from_str::<serde_json::Value>(&read.unwrap().text).unwrap()
    };
    let canary = json!({"namespace": "default", "name": "meter", "version": "1/more/1", "result": "Delivered"});
    components.server.until("the canary", async || read().await["canaries"] == json!([canary])).await;
    let etag = read().await["etag"].clone();
    let committed = components.server.post(&format!("{path}:commit"), "").await;
    assert_ne!(committed.status, hyper::StatusCode::OK, "a commit needs the etag");
    let committed = components.server.post(&format!("{path}:commit"), json!({"etag": etag}).to_string()).await;
    assert_eq!(committed.status, hyper::StatusCode::OK, "{}", committed.text);
    let probe = || components.read("probe/items/cluster.memory").unwrap_or_default();
    components.server.until("the commit", async || probe().contains("1024")).await;
    components.server.until("the version", async || components.status("meter")["policies"][0]["version"] == "2").await;
}

#[tokio::test]
async fn a_policy_of_a_component_decides_about_no_reviews() {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({})));
    folder.write("all.json", admission_policy("all", &json!({})));
    let components = Components::start(folder).await;
    let review = crate::support::pod("u", "a").to_string();
    let answer = components.server.post("/validate/cluster.memory", review.clone()).await;
    assert_eq!(answer.status, hyper::StatusCode::NOT_FOUND);
    assert!(answer.text.contains("configures components"), "{}", answer.text);
    assert!(components.server.post("/validate/cluster.all", review).await.is_allowed());
    components.server.until_details("[+] cluster.memory generation 1 live").await;
}
