//! Policies that read the cluster go live once what they read is there, and say what stands in the way until then.

use anyhow::{Result, ensure};
use proviso_e2e::Cluster;
use serde_json::{Value, json};

use crate::support::stage::{Stage, condition, revision, until_answered};
use crate::support::{forbid, with};

const THINGS: &str = "example.com/v1";

fn reads(kinds: &[(&str, &str)]) -> Value {
    let kinds: Vec<_> = kinds.iter().map(|(version, kind)| json!({"apiVersion": version, "kind": kind})).collect();
    with(forbid("true", "read"), &json!({"contextAwareResources": kinds}))
}

#[tokio::test]
async fn a_policy_goes_live_when_what_it_reads_is_there() -> Result<()> {
    let stage = Stage::start("what-it-reads-is-there").await?;
    let server = stage.replica("pod-1").await?;
    stage.create(&revision("maps", 1, &reads(&[("v1", "ConfigMap"), ("v1", "Pod")]))).await?;
    until_answered(&server, "/validate/cluster.maps/1", "read").await?;

    // A kind that is not there yet, in a member of a group.
    let member = json!({"program": {"cel": {"validations": []}}, "contextAwareResources": [{"apiVersion": THINGS, "kind": "Thing"}]});
    let group = json!({"group": {"members": {"m": member}, "expression": "m() && false", "message": "grouped"}});
    stage.create(&revision("things", 1, &json!({"program": group}))).await?;
    let status = stage.until_reported("cluster.things-1", "pod-1", "False", "ContextNotServed").await?;
    let initialized = condition(&status, "Initialized")?;
    let said = initialized["message"].as_str().unwrap();
    let wanted = "spec.program.group.members.m.contextAwareResources[0]: Thing of example.com/v1: ";
    ensure!(initialized["reason"] == "ContextNotServed" && said.starts_with(wanted), "{initialized}");
    until_answered(&server, "/validate/cluster.maps/1", "read").await?;

    // It comes, and nobody has to do more.
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    let definition = Cluster::of(&stage.plane).await?.apply(serde_json::from_value(definition)?).await?;
    until_answered(&server, "/validate/cluster.things/1", "grouped").await?;

    // It goes: what worked once keeps no new replica from being ready for all the others.
    stage.until_initialized("cluster.things-1").await?;
    drop(definition);
    let successor = stage.replica_of("policy-server-default-1", "pod-2").await?;
    until_answered(&successor, "/validate/cluster.things/1", "grouped").await
}
