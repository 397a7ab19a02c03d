//! Replicas and `CustomResourceDefinition`s of different versions: the schema of the installed kind has fields that the replica does not
//! know, or the API server returns a live revision in a form that the replica cannot read.

use anyhow::{Result, ensure};
use hyper::StatusCode;
use kube::api::{Patch, PatchParams};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::support::cluster::{POD, TestEnv, ask, revision, until_answered, until_not_ready, until_unloaded};
use crate::support::{Folder, Server, WAIT_TIMEOUT, forbid};

const PATH: &str = "/validate/cluster.a/1";
/// The path of the schema of `spec` in the `CustomResourceDefinition`.
const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";

/// Changes the installed schema of the spec of revisions, and restarts the API server. Each change is an operation, a path below the schema, and a schema.
async fn change_schema(env: &mut TestEnv, changes: &[(&str, &str, Value)]) -> Result<()> {
    let change = |(operation, path, schema): &(&str, &str, Value)| json!({"op": operation, "path": format!("{SCHEMA}{path}"), "value": schema});
    let patch: Value = changes.iter().map(change).collect();
    let patch = patch.to_string();
    env.kubectl.run(&["patch", "crd", "policyrevisions.proviso.dev", "--type=json", "-p", &patch]).await?;
    // Watches that are open at this time deliver the older form for up to two minutes. They end with the API server.
    let api_server = env.plane.own().api_server(0);
    api_server.process().kill();
    api_server.process().restart()?;
    api_server.until_ready().await
}

/// Merges a change into the spec of `cluster.a-1`, when the API server has the schema that accepts the change.
async fn change_spec(env: &TestEnv, field: &str, change: &Value) -> Result<()> {
    until(&format!("the change {change}"), WAIT_TIMEOUT, async || {
        let patch = Patch::Merge(json!({"spec": {"data": {field: change}}}));
        let changed = env.revisions.patch("cluster.a-1", &PatchParams::default(), &patch).await?;
        ensure!(changed.data["spec"]["data"][field] == *change, "the API server has dropped the field");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn newer_fields_with_their_defaults_change_nothing() -> Result<()> {
    let mut env = TestEnv::start_dedicated("newer-fields").await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let server = env.replica("pod-1").await?;
    env.until_reported("cluster.a-1", "pod-1", "True", "Loaded").await?;

    // A newer schema has a field, an object of defaults, and a field in the items of a list.
    let depth = json!({"type": "object", "default": {}, "properties": {"depth": {"type": "integer", "default": 5}}});
    let rules = "/properties/data/properties/admission/properties/rules/items/properties/newer";
    let changes = [
        ("add", "/properties/data/properties/newer", json!({"type": "string", "default": "as before"})),
        ("add", "/properties/data/properties/limits", depth),
        ("add", rules, json!({"type": "boolean", "default": false})),
    ];
    change_schema(&mut env, &changes).await?;
    until("the defaults of the newer fields", WAIT_TIMEOUT, async || {
        let data = env.revisions.get("cluster.a-1").await?.data["spec"]["data"].clone();
        let newer = json!([data["newer"], data["limits"]["depth"], data["admission"]["rules"][0]["newer"]]);
        ensure!(newer == json!(["as before", 5, false]), "{data:#}");
        Ok(())
    })
    .await?;
    // The change sends the revision to the replica in its newer form.
    env.set_condition("cluster.a-1", "Live", "True").await?;
    env.create(&revision("a", 2, &forbid("true", "two"))).await?;
    until_answered(&server, "/validate/cluster.a/2", "two").await?;
    until_answered(&server, PATH, "one").await?;
    for name in ["cluster.a-1", "cluster.a-2"] {
        env.until_reported(name, "pod-1", "True", "Loaded").await?;
    }
    let details = server.details().await;
    ensure!(server.get("/readyz").await.status == StatusCode::OK && !details.contains("[-]"), "{details}");

    // A new process of the older version has both revisions as soon as it is ready.
    let restarted = env.replica_of("policy-server-default-1", "pod-2").await?;
    for (path, message) in [(PATH, "one"), ("/validate/cluster.a/2", "two")] {
        let answer = ask(&restarted, path).await;
        ensure!(answer.message() == message, "{}", answer.text);
    }
    env.until_reported("cluster.a-1", "pod-2", "True", "Loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_loaded_revision_goes_on_answering_when_it_cannot_be_read_any_more() -> Result<()> {
    let mut env = TestEnv::start_dedicated("unreadable-revisions").await?;
    let uid = env.ready_pod(POD).await?;
    env.create(&revision("a", 1, &forbid("true", "one"))).await?;
    let server = env.replica(&uid).await?;
    env.until_reported("cluster.a-1", &uid, "True", "Loaded").await?;
    env.set_condition("cluster.a-1", "Live", "True").await?;

    // The schema of another version accepts any spec, and does not declare the field.
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    change_schema(&mut env, &[("replace", "", any.clone())]).await?;
    change_spec(&env, "newer", &json!(1)).await?;
    let status = env.until_reported("cluster.a-1", &uid, "True", "LoadedBefore").await?;
    let items = status["replicas"].as_array().into_iter().flatten();
    let messages: Vec<_> = items.filter_map(|item| item["message"].as_str()).collect();
    let wanted = "a restart of this replica would not load it: Invalid: spec.data.newer: is not known to this version";
    ensure!(messages.iter().any(|message| message.contains(wanted)), "{messages:?}");
    until_answered(&server, PATH, "one").await?;
    let details = server.details().await;
    ensure!(server.get("/readyz").await.status == StatusCode::OK, "{details}");
    ensure!(details.contains("[-] cluster.a-1: the loaded revision goes on answering"), "{details}");

    // A new replica cannot load the revision: it denies the requests, and leaves the endpoints to the replica that serves them.
    let new = "policy-server-default-1";
    let new_uid = env.ready_pod(new).await?;
    let new = Server::run(env.command(new, &new_uid), Folder::new()).await;
    env.until_reported("cluster.a-1", &new_uid, "False", "Invalid").await?;
    until_not_ready(&new, "cluster.a-1 is live, and not served here: Invalid: spec.data.newer").await?;
    let denied = ask(&new, PATH).await;
    ensure!(!denied.is_allowed() && denied.response()["status"]["code"] == 500, "{}", denied.text);
    let wanted = "generation 1 of cluster.a does not work here: Invalid: spec.data.newer: is not known";
    ensure!(denied.message().contains(wanted), "{}", denied.text);

    // A later schema declares the field with this default: both replicas can read the revision.
    let mut declared = any.clone();
    declared["properties"] = json!({"data": any});
    declared["properties"]["data"]["properties"] = json!({"newer": {"type": "integer", "default": 1}});
    change_schema(&mut env, &[("replace", "", declared)]).await?;
    until_answered(&new, PATH, "one").await?;
    new.until_ready().await?;
    for uid in [&uid, &new_uid] {
        env.until_reported("cluster.a-1", uid, "True", "Loaded").await?;
    }

    // A known field has another type. `enabled` still applies.
    change_spec(&env, "program", &json!(1)).await?;
    for uid in [&uid, &new_uid] {
        env.until_reported("cluster.a-1", uid, "True", "LoadedBefore").await?;
    }
    env.enable("cluster.a-1", false).await?;
    until_unloaded(&server, PATH).await?;
    env.enable("cluster.a-1", true).await?;
    until_answered(&server, PATH, "one").await
}
