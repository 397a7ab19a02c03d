//! Context-aware policies in a cluster: a policy goes live when the objects that it reads have arrived, and its status gives the
//! reason until then. The verdicts of policies of each engine follow the current objects of a real API server.

use anyhow::{Result, ensure};
use hyper::StatusCode;
use proviso_e2e::{Cluster, Kubectl, Registry, until};
use serde_json::{Value, json};

use crate::support::cluster::{POD, TestEnv, ask, condition, revision, until_answered};
use crate::support::wapc::HostCall;
use crate::support::{Server, WAIT_TIMEOUT, cel, forbid, modules, wapc, with};

const THINGS: &str = "example.com/v1";
/// The policy `reading/policy.rego`, compiled by OPA: Pods need a ConfigMap `switch` with `on: yes`.
const READING: &[u8] = include_bytes!("reading/reading.wasm");
/// The same policy for the Rego interpreter.
const LOOKS: &str = r#"package looks
violation[{"msg": "off"}] { not is_on }
is_on { data.inventory.namespace[input.review.namespace].v1.ConfigMap["switch"].data.on == "yes" }"#;
/// A policy that denies a Pod if a Service selects it.
const UNIQUE: &str = r#"package unique
violation[{"msg": msg}] {
    service := data.inventory.namespace[namespace][_].Service[name]
    service.spec.selector.app == input.review.object.metadata.labels.app
    msg := sprintf("taken by %v/%v", [namespace, name])
}"#;
/// A policy that denies a Pod unless its namespace has the label `team: a`.
const OWNED: &str = r#"package owned
violation[{"msg": "off"}] { not data.inventory.cluster.v1.Namespace[input.review.namespace].metadata.labels.team == "a" }"#;

fn reads(kinds: &[(&str, &str)]) -> Value {
    let kinds: Vec<_> = kinds.iter().map(|(version, kind)| json!({"apiVersion": version, "kind": kind})).collect();
    with(forbid("true", "read"), &json!({"contextAwareResources": kinds}))
}

#[tokio::test]
async fn a_policy_goes_live_when_the_kinds_that_it_reads_are_served() -> Result<()> {
    let env = TestEnv::start_dedicated("what-it-reads-is-there").await?;
    let server = env.replica("pod-1").await?;
    env.create(&revision("maps", 1, &reads(&[("v1", "ConfigMap"), ("v1", "Pod")]))).await?;
    until_answered(&server, "/validate/cluster.maps/1", "read").await?;

    // A member of a group reads a kind that the API server does not serve yet.
    let member = json!({"program": {"cel": {"validations": []}}, "contextAwareResources": [{"apiVersion": THINGS, "kind": "Thing"}]});
    let group = json!({"group": {"members": {"m": member}, "expression": "m() && false", "message": "grouped"}});
    env.create(&revision("things", 1, &json!({"program": group}))).await?;
    let status = env.until_reported("cluster.things-1", "pod-1", "False", "ContextNotServed").await?;
    let initialized = condition(&status, "Initialized")?;
    let message = initialized["message"].as_str().unwrap();
    let wanted = "spec.program.group.members.m.contextAwareResources[0]: Thing of example.com/v1: ";
    ensure!(initialized["reason"] == "ContextNotServed" && message.starts_with(wanted), "{initialized}");
    until_answered(&server, "/validate/cluster.maps/1", "read").await?;

    // When the CRD is created, the policy goes live without further action.
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    let definition = Cluster::of(&env.plane).await?.apply(serde_json::from_value(definition)?).await?;
    until_answered(&server, "/validate/cluster.things/1", "grouped").await?;

    // When the CRD is removed, a new replica still loads the policy, because it has worked before.
    env.until_initialized("cluster.things-1").await?;
    drop(definition);
    let successor = env.replica_of("policy-server-default-1", "pod-2").await?;
    until_answered(&successor, "/validate/cluster.things/1", "grouped").await
}

fn gatekeeper(source: &str, kind: &str) -> Value {
    let rego = json!({"program": {"rego": {"dialect": "Gatekeeper", "source": source}}});
    with(rego, &json!({"contextAwareResources": [{"apiVersion": "v1", "kind": kind}]}))
}

/// Waits until all of these policies deny with the message `denied`, or allow if it is `None`.
async fn until_decided(server: &Server, policies: &[&str], denied: Option<&str>) -> Result<()> {
    for policy in policies {
        until(&format!("{policy}: {denied:?}"), WAIT_TIMEOUT, async || {
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

fn cluster_id(name: &str) -> String {
    format!("cluster.{name}")
}

async fn run(kubectl: &Kubectl, command: &str) -> Result<()> {
    kubectl.run(&command.split(' ').collect::<Vec<_>>()).await.map(drop)
}

#[tokio::test]
async fn policies_of_every_engine_read_the_current_objects() -> Result<()> {
    let env = modules::RegistryEnv::start_dedicated("decide-by-an-object").await?;
    let kind = json!({"api_version": "v1", "kind": "ConfigMap"});
    let get = json!({"name": "switch", "namespace": "default"});
    let asking = |operation: &str, request: &Value| {
        let request = &with(kind.clone(), request);
        wapc::calling_host(&HostCall { namespace: "kubernetes", operation, request }, r#""on":"yes""#, "off")
    };
    let request = &with(kind.clone(), &get);
    let gets = HostCall { namespace: "kubernetes", operation: "get_resource", request };
    for (name, module) in [
        ("gets", &*asking("get_resource", &get)),
        ("gets-now", &*asking("get_resource", &with(get.clone(), &json!({"disable_cache": true})))),
        ("lists", &*asking("list_resources_by_namespace", &json!({"namespace": "default"}))),
        ("lists-all", &*asking("list_resources_all", &json!({"field_selector": "metadata.name=switch"}))),
        ("command", &wapc::command_calling_host(&gets, r#""on":"yes""#, "off")),
        ("reading", READING),
    ] {
        env.registry.push(name, "v1", Registry::MODULE, module).await?;
    }
    let wasm = |name: &str| json!({"program": {"wasm": {"module": env.module(&format!("{name}:v1"))}}});
    let in_mode = |mode: &str| {
        let module = env.module("reading:v1");
        json!({"program": {"wasm": {"module": module, "mode": mode}}})
    };
    let maps = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]});
    let may_call = json!({"hostCapabilities": ["kubernetes/*"]});
    // One member of the group may read ConfigMaps, the other may not.
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
        // One of the two permissions is not enough.
        ("no-call", with(wasm("gets"), &maps)),
        ("no-kind", with(wasm("gets"), &may_call)),
        ("command-no-call", with(wasm("command"), &maps)),
        ("command-no-kind", with(wasm("command"), &may_call)),
        ("no-member", group("may_not()")),
        ("opa-no-kind", in_mode("opa")),
        ("gatekeeper-no-kind", in_mode("gatekeeper")),
    ] {
        env.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = env.replica("default-0", &env.path("cache")).await?;
    let readers =
        ["gets", "gets-now", "lists", "lists-all", "command", "opa", "gatekeeper", "rego", "group"].map(cluster_id);
    let readers = readers.each_ref().map(String::as_str);
    let gated =
        ["no-call", "no-kind", "command-no-call", "command-no-kind", "no-member", "opa-no-kind", "gatekeeper-no-kind"]
            .map(cluster_id);
    let gated = gated.each_ref().map(String::as_str);
    until_decided(&server, &readers, Some("off")).await?;
    for (command, denied) in [
        ("create configmap switch --from-literal=on=yes", None),
        (r#"patch configmap switch -p {"data":{"on":"no"}}"#, Some("off")),
        (r#"patch configmap switch -p {"data":{"on":"yes"}}"#, None),
        ("delete configmap switch", Some("off")),
    ] {
        run(&env.cluster.kubectl, command).await?;
        until_decided(&server, &readers, denied).await?;
        until_decided(&server, &gated, Some("off")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn policies_read_only_objects_of_their_scope() -> Result<()> {
    let env = TestEnv::start_dedicated("decide-by-others").await?;
    env.create(&revision("unique", 1, &gatekeeper(UNIQUE, "Service"))).await?;
    env.create(&revision("owned", 1, &gatekeeper(OWNED, "Namespace"))).await?;
    let mut own = revision("unique", 1, &gatekeeper(UNIQUE, "Service"));
    own["metadata"]["name"] = json!("ns.default.unique-1");
    own["spec"]["policyRef"] =
        json!({"kind": "Policy", "namespace": "default", "name": "unique", "uid": "uid-own", "generation": 1});
    env.create(&own).await?;
    let folder = tempfile::tempdir()?;
    let permitted = folder.path().join("tenants.json");
    std::fs::write(&permitted, r#"{"namespacedCapabilities": ["kubernetes/list_resources_by_namespace"]}"#)?;
    let mut command = env.command(POD, "pod-1");
    command.arg("--tenants").arg(&permitted);
    let server = TestEnv::run(command).await?;
    let (all, own) = (["cluster.unique"], ["ns.default.unique"]);
    until_decided(&server, &[all[0], own[0]], None).await?;
    until_decided(&server, &["cluster.owned"], Some("off")).await?;

    // A Policy does not see a Service of another namespace.
    run(&env.kubectl, "create namespace other").await?;
    run(&env.kubectl, "-n other create service clusterip web --tcp=80").await?;
    until_decided(&server, &all, Some("taken by other/web")).await?;
    until_decided(&server, &own, None).await?;
    run(&env.kubectl, "-n other delete service web").await?;
    until_decided(&server, &all, None).await?;
    run(&env.kubectl, "create service clusterip web --tcp=80").await?;
    until_decided(&server, &[all[0], own[0]], Some("taken by default/web")).await?;
    run(&env.kubectl, "delete service web").await?;
    until_decided(&server, &[all[0], own[0]], None).await?;

    // A ClusterPolicy reads cluster-scoped objects.
    for (label, denied) in [("team=a", None), ("team-", Some("off"))] {
        run(&env.kubectl, &format!("label namespace default {label}")).await?;
        until_decided(&server, &["cluster.owned"], denied).await?;
    }
    Ok(())
}

#[tokio::test]
async fn policies_read_namespaces_and_permissions_of_users() -> Result<()> {
    let env = modules::RegistryEnv::start_dedicated("decide-by-rights").await?;
    let may_ask = json!({"hostCapabilities": ["kubernetes/can_i"]});
    let attributes = json!({"group": "", "resource": "secrets", "namespace": "default", "verb": "get"});
    let review = json!({"subject_access_review": {"user": "ann", "groups": null, "resource_attributes": attributes}});
    let can_i = HostCall { namespace: "kubernetes", operation: "can_i", request: &review };
    let asks = wapc::calling_host(&can_i, r#""allowed":true"#, "off");
    env.registry.push("asks", "v1", Registry::MODULE, &asks).await?;
    let asks = json!({"program": {"wasm": {"module": env.module("asks:v1")}}});
    let secrets = "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()";
    let pods = "group('').resource('pods').namespace('default').check('create').allowed()";
    let robots = format!("authorizer.serviceAccount('default', 'robot').{pods}");
    for (name, spec) in [
        ("namespace", cel("namespaceObject.metadata.?labels['team'].orValue('') == 'a'", "off")),
        ("user", with(cel(secrets, "off"), &may_ask)),
        ("wapc", with(asks, &may_ask)),
        ("account", with(cel(&robots, "off"), &may_ask)),
        // A policy without the host capability denies, although its expression negates the result of the check.
        ("no-call", cel(&format!("!{secrets}"), "off")),
    ] {
        env.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = env.replica("default-0", &env.path("cache")).await?;
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
            run(&env.cluster.kubectl, command).await?;
        }
        until_decided(&server, policies, None).await?;
        run(&env.cluster.kubectl, takes).await?;
        until_decided(&server, policies, Some("off")).await?;
    }
    let answer = ask(&server, "/validate/cluster.no-call/1").await;
    ensure!(answer.response()["status"]["code"] == 500, "{}", answer.text);
    ensure!(answer.message().contains("kubernetes/can_i"), "{}", answer.text);
    Ok(())
}

#[tokio::test]
async fn policies_read_the_digests_of_a_registry() -> Result<()> {
    let env = modules::RegistryEnv::start_dedicated("decide-by-a-registry").await?;
    let digest = env.registry.push("app", "v1", Registry::MODULE, b"an image").await?;
    let image = json!(format!("{}/app:v1", env.registry.address()));
    let call = HostCall { namespace: "oci", operation: "v1/manifest_digest", request: &image };
    env.registry.push("asks", "v1", Registry::MODULE, &wapc::calling_host(&call, &digest, "another")).await?;
    env.registry
        .push("command", "v1", Registry::MODULE, &wapc::command_calling_host(&call, &digest, "another"))
        .await?;
    let outdated = wapc::calling_host(&call, &digest.replace("sha256:", "sha256:0"), "another");
    env.registry.push("outdated", "v1", Registry::MODULE, &outdated).await?;
    let wasm = |name: &str| json!({"program": {"wasm": {"module": env.module(&format!("{name}:v1"))}}});
    let may_ask = json!({"hostCapabilities": ["oci/*"]});
    for (name, spec) in [
        ("asks", with(wasm("asks"), &may_ask)),
        ("command", with(wasm("command"), &may_ask)),
        ("outdated", with(wasm("outdated"), &may_ask)),
        ("no-call", wasm("asks")),
        ("command-no-call", wasm("command")),
    ] {
        env.cluster.create(&revision(name, 1, &spec)).await?;
    }
    let server = env.replica("default-0", &env.path("cache")).await?;
    until_decided(&server, &["cluster.asks", "cluster.command"], None).await?;
    until_decided(&server, &["cluster.outdated", "cluster.no-call", "cluster.command-no-call"], Some("another")).await
}
