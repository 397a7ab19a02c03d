//! Policies that read the cluster go live once what they read is there, and say what stands in the way until then. What
//! they answer, each engine's as it asks, follows from the objects that a real API server has now.

use anyhow::{Result, ensure};
use hyper::StatusCode;
use proviso_e2e::{Cluster, Kubectl, Registry, until};
use serde_json::{Value, json};

use crate::support::stage::{Stage, ask, condition, revision, until_answered};
use crate::support::wapc::Question;
use crate::support::{PATIENCE, Server, cel, forbid, modules, wapc, with};

const THINGS: &str = "example.com/v1";
/// Rego compiled by OPA, as `reading/policy.rego` says: Pods need a ConfigMap `switch` that says yes.
const READING: &[u8] = include_bytes!("reading/reading.wasm");
/// The same, to be interpreted.
const LOOKS: &str = r#"package looks
violation[{"msg": "off"}] { not is_on }
is_on { data.inventory.namespace[input.review.namespace].v1.ConfigMap["switch"].data.on == "yes" }"#;
/// No Service selects the Pod.
const UNIQUE: &str = r#"package unique
violation[{"msg": msg}] {
    service := data.inventory.namespace[namespace][_].Service[name]
    service.spec.selector.app == input.review.object.metadata.labels.app
    msg := sprintf("taken by %v/%v", [namespace, name])
}"#;
/// The Pod's namespace is of a team.
const OWNED: &str = r#"package owned
violation[{"msg": "off"}] { not data.inventory.cluster.v1.Namespace[input.review.namespace].metadata.labels.team == "a" }"#;

fn reads(kinds: &[(&str, &str)]) -> Value {
    let kinds: Vec<_> = kinds.iter().map(|(version, kind)| json!({"apiVersion": version, "kind": kind})).collect();
    with(forbid("true", "read"), &json!({"contextAwareResources": kinds}))
}

#[tokio::test]
async fn a_policy_goes_live_when_what_it_reads_is_there() -> Result<()> {
    let stage = Stage::alone("what-it-reads-is-there").await?;
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

fn gatekeeper(source: &str, kind: &str) -> Value {
    let rego = json!({"program": {"rego": {"dialect": "Gatekeeper", "source": source}}});
    with(rego, &json!({"contextAwareResources": [{"apiVersion": "v1", "kind": kind}]}))
}

/// Waits until all of these policies deny with this message, or allow if there is none.
async fn until_decided(server: &Server, policies: &[&str], denied: Option<&str>) -> Result<()> {
    for policy in policies {
        until(&format!("{policy}: {denied:?}"), PATIENCE, async || {
            let answer = ask(server, &format!("/validate/{policy}/1")).await;
            ensure!(answer.status == StatusCode::OK, "{}", answer.text);
            let decided = (!answer.is_allowed()).then(|| answer.message());
            ensure!(decided.as_deref() == denied, "{}", answer.text);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn of_cluster(name: &str) -> String {
    format!("cluster.{name}")
}

async fn run(kubectl: &Kubectl, command: &str) -> Result<()> {
    kubectl.run(&command.split(' ').collect::<Vec<_>>()).await.map(drop)
}

#[tokio::test]
async fn policies_of_every_engine_decide_by_an_object_as_it_is_now() -> Result<()> {
    let stage = modules::Stage::alone("decide-by-an-object").await?;
    let kind = json!({"api_version": "v1", "kind": "ConfigMap"});
    let get = json!({"name": "switch", "namespace": "default"});
    let asking = |operation: &str, request: &Value| {
        let request = &with(kind.clone(), request);
        wapc::asking(&Question { namespace: "kubernetes", operation, request }, r#""on":"yes""#, "off")
    };
    let request = &with(kind.clone(), &get);
    let gets = Question { namespace: "kubernetes", operation: "get_resource", request };
    for (name, module) in [
        ("gets", &*asking("get_resource", &get)),
        ("gets-now", &*asking("get_resource", &with(get.clone(), &json!({"disable_cache": true})))),
        ("lists", &*asking("list_resources_by_namespace", &json!({"namespace": "default"}))),
        ("lists-all", &*asking("list_resources_all", &json!({"field_selector": "metadata.name=switch"}))),
        ("command", &wapc::command_asking(&gets, r#""on":"yes""#, "off")),
        ("reading", READING),
    ] {
        stage.registry.push(name, "v1", Registry::MODULE, module).await?;
    }
    let wasm = |name: &str| json!({"program": {"wasm": {"module": stage.module(&format!("{name}:v1"))}}});
    let in_mode = |mode: &str| {
        let module = stage.module("reading:v1");
        json!({"program": {"wasm": {"module": module, "mode": mode}}})
    };
    let maps = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]});
    let may_call = json!({"hostCapabilities": ["kubernetes/*"]});
    // What one member may read, another may not.
    let group = |expression: &str| {
        let members = json!({"may": with(wasm("gets"), &maps), "may_not": wasm("gets")});
        let group = json!({"members": members, "expression": expression, "message": "off"});
        with(json!({"program": {"group": group}}), &may_call)
    };
    for (name, spec) in [
        ("gets", with(with(wasm("gets"), &maps), &may_call)),
        ("gets-now", with(with(wasm("gets-now"), &maps), &may_call)),
        ("lists", with(with(wasm("lists"), &maps), &may_call)),
        ("lists-all", with(with(wasm("lists-all"), &maps), &may_call)),
        ("command", with(with(wasm("command"), &maps), &may_call)),
        ("opa", with(in_mode("opa"), &maps)),
        ("gatekeeper", with(in_mode("gatekeeper"), &maps)),
        ("rego", gatekeeper(LOOKS, "ConfigMap")),
        ("group", group("may() && !may_not()")),
        // One gate is not enough.
        ("no-call", with(wasm("gets"), &maps)),
        ("no-kind", with(wasm("gets"), &may_call)),
        ("command-no-call", with(wasm("command"), &maps)),
        ("command-no-kind", with(wasm("command"), &may_call)),
        ("no-member", group("may_not()")),
        ("opa-no-kind", in_mode("opa")),
        ("gatekeeper-no-kind", in_mode("gatekeeper")),
    ] {
        stage.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = stage.replica("default-0", &stage.path("cache")).await?;
    let readers =
        ["gets", "gets-now", "lists", "lists-all", "command", "opa", "gatekeeper", "rego", "group"].map(of_cluster);
    let readers = readers.each_ref().map(String::as_str);
    let gated =
        ["no-call", "no-kind", "command-no-call", "command-no-kind", "no-member", "opa-no-kind", "gatekeeper-no-kind"]
            .map(of_cluster);
    let gated = gated.each_ref().map(String::as_str);
    until_decided(&server, &readers, Some("off")).await?;
    for (command, denied) in [
        ("create configmap switch --from-literal=on=yes", None),
        (r#"patch configmap switch -p {"data":{"on":"no"}}"#, Some("off")),
        (r#"patch configmap switch -p {"data":{"on":"yes"}}"#, None),
        ("delete configmap switch", Some("off")),
    ] {
        run(&stage.cluster.kubectl, command).await?;
        until_decided(&server, &readers, denied).await?;
        until_decided(&server, &gated, Some("off")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn policies_decide_by_other_objects_of_their_scope() -> Result<()> {
    let stage = Stage::alone("decide-by-others").await?;
    stage.create(&revision("unique", 1, &gatekeeper(UNIQUE, "Service"))).await?;
    stage.create(&revision("owned", 1, &gatekeeper(OWNED, "Namespace"))).await?;
    let mut own = revision("unique", 1, &gatekeeper(UNIQUE, "Service"));
    own["metadata"]["name"] = json!("ns.default.unique-1");
    own["spec"]["policyRef"] =
        json!({"kind": "Policy", "namespace": "default", "name": "unique", "uid": "uid-own", "generation": 1});
    stage.create(&own).await?;
    let server = stage.replica("pod-1").await?;
    let (all, own) = (["cluster.unique"], ["ns.default.unique"]);
    until_decided(&server, &[all[0], own[0]], None).await?;
    until_decided(&server, &["cluster.owned"], Some("off")).await?;

    // A Service of another namespace is nothing that a Policy sees.
    run(&stage.kubectl, "create namespace other").await?;
    run(&stage.kubectl, "-n other create service clusterip web --tcp=80").await?;
    until_decided(&server, &all, Some("taken by other/web")).await?;
    until_decided(&server, &own, None).await?;
    run(&stage.kubectl, "-n other delete service web").await?;
    until_decided(&server, &all, None).await?;
    run(&stage.kubectl, "create service clusterip web --tcp=80").await?;
    until_decided(&server, &[all[0], own[0]], Some("taken by default/web")).await?;
    run(&stage.kubectl, "delete service web").await?;
    until_decided(&server, &[all[0], own[0]], None).await?;

    // What belongs to no namespace.
    for (label, denied) in [("team=a", None), ("team-", Some("off"))] {
        run(&stage.kubectl, &format!("label namespace default {label}")).await?;
        until_decided(&server, &["cluster.owned"], denied).await?;
    }
    Ok(())
}

#[tokio::test]
async fn policies_decide_by_the_namespace_and_by_who_may_do_what() -> Result<()> {
    let stage = modules::Stage::alone("decide-by-rights").await?;
    let may_ask = json!({"hostCapabilities": ["kubernetes/can_i"]});
    let attributes = json!({"group": "", "resource": "secrets", "namespace": "default", "verb": "get"});
    let review = json!({"subject_access_review": {"user": "ann", "groups": null, "resource_attributes": attributes}});
    let can_i = Question { namespace: "kubernetes", operation: "can_i", request: &review };
    let asks = wapc::asking(&can_i, r#""allowed":true"#, "off");
    stage.registry.push("asks", "v1", Registry::MODULE, &asks).await?;
    let asks = json!({"program": {"wasm": {"module": stage.module("asks:v1")}}});
    let secrets = "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()";
    let pods = "group('').resource('pods').namespace('default').check('create').allowed()";
    let robots = format!("authorizer.serviceAccount('default', 'robot').{pods}");
    for (name, spec) in [
        ("namespace", cel("namespaceObject.metadata.?labels['team'].orValue('') == 'a'", "off")),
        ("user", with(cel(secrets, "off"), &may_ask)),
        ("wapc", with(asks, &may_ask)),
        ("account", with(cel(&robots, "off"), &may_ask)),
        // One that may not ask lets nobody in, whatever it makes of the answer.
        ("no-call", cel(&format!("!{secrets}"), "off")),
    ] {
        stage.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = stage.replica("default-0", &stage.path("cache")).await?;
    for (policies, grants, takes) in [
        (
            &["cluster.namespace"][..],
            &["label namespace default team=a"][..],
            "label namespace default team=b --overwrite",
        ),
        (
            &["cluster.user", "cluster.wapc"],
            &["create role reads --verb=get --resource=secrets", "create rolebinding reads --role=reads --user=ann"],
            "delete rolebinding reads",
        ),
        (
            &["cluster.account"],
            &[
                "create role makes --verb=create --resource=pods",
                "create rolebinding makes --role=makes --serviceaccount=default:robot",
            ],
            "delete rolebinding makes",
        ),
    ] {
        until_decided(&server, policies, Some("off")).await?;
        for command in grants {
            run(&stage.cluster.kubectl, command).await?;
        }
        until_decided(&server, policies, None).await?;
        run(&stage.cluster.kubectl, takes).await?;
        until_decided(&server, policies, Some("off")).await?;
    }
    let answer = ask(&server, "/validate/cluster.no-call/1").await;
    ensure!(answer.response()["status"]["code"] == 500, "{}", answer.text);
    ensure!(answer.message().contains("kubernetes/can_i"), "{}", answer.text);
    Ok(())
}

#[tokio::test]
async fn policies_decide_by_what_a_registry_has() -> Result<()> {
    let stage = modules::Stage::alone("decide-by-a-registry").await?;
    let digest = stage.registry.push("app", "v1", Registry::MODULE, b"an image").await?;
    let image = json!(format!("{}/app:v1", stage.registry.address()));
    let question = Question { namespace: "oci", operation: "v1/manifest_digest", request: &image };
    stage.registry.push("asks", "v1", Registry::MODULE, &wapc::asking(&question, &digest, "another")).await?;
    stage
        .registry
        .push("command", "v1", Registry::MODULE, &wapc::command_asking(&question, &digest, "another"))
        .await?;
    let outdated = wapc::asking(&question, &digest.replace("sha256:", "sha256:0"), "another");
    stage.registry.push("outdated", "v1", Registry::MODULE, &outdated).await?;
    let wasm = |name: &str| json!({"program": {"wasm": {"module": stage.module(&format!("{name}:v1"))}}});
    let may_ask = json!({"hostCapabilities": ["oci/*"]});
    for (name, spec) in [
        ("asks", with(wasm("asks"), &may_ask)),
        ("command", with(wasm("command"), &may_ask)),
        ("outdated", with(wasm("outdated"), &may_ask)),
        ("no-call", wasm("asks")),
        ("command-no-call", wasm("command")),
    ] {
        stage.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = stage.replica("default-0", &stage.path("cache")).await?;
    until_decided(&server, &["cluster.asks", "cluster.command"], None).await?;
    until_decided(&server, &["cluster.outdated", "cluster.no-call", "cluster.command-no-call"], Some("another")).await
}
