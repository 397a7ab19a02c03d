//! Request policies that decide about Kubernetes objects, with the service catalogue of the examples.

use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::support::{Answer, Folder, Server, cel, example, experiment, policy, with};

const POLICY: &str = "/validate/cluster.service-requests";

/// Returns a folder with the policies of the service catalogue.
fn catalogue() -> Folder {
    let folder = Folder::new();
    for file in std::fs::read_dir(example("service-catalog/policies")).unwrap() {
        let file = file.unwrap();
        folder.write(file.file_name().to_str().unwrap(), std::fs::read_to_string(file.path()).unwrap());
    }
    folder
}

/// Returns the spec of a policy that covers all requests and whose program is `requests`.
fn binding() -> Value {
    let rule =
        json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    json!({"program": {"requests": {}}, "admission": {"rules": [rule], "mutating": true}})
}

/// Returns the manifest of a request policy with this result in Rego.
fn request_policy(name: &str, result: &str) -> String {
    let program =
        json!({"rego": {"dialect": "Request", "source": format!("package p\nimport rego.v1\nresult := {result}")}});
    let spec = json!({"request": {"priority": 900}, "program": program});
    json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn object(namespace: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "catalog.example.com/v1", "kind": "ServiceRequest",
        "metadata": {"name": "web", "namespace": namespace}, "spec": spec,
    })
}

fn vm(fields: Value) -> Value {
    let mut spec = json!({"serviceType": "vm", "image": "debian-13"});
    let Value::Object(fields) = fields else { panic!("no object: {fields}") };
    spec.as_object_mut().unwrap().extend(fields);
    spec
}

fn review(user: &str, object: &Value, old: Option<&Value>) -> Value {
    let version = |key: &str, value: &str| json!({"group": "catalog.example.com", "version": "v1", key: value});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": if old.is_some() { "UPDATE" } else { "CREATE" }, "userInfo": {"username": user},
        "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"],
        "kind": version("kind", "ServiceRequest"), "resource": version("resource", "servicerequests"),
        "object": object, "oldObject": old, "dryRun": false,
    }})
}

async fn create(server: &Server, user: &str, object: &Value) -> Answer {
    server.post(POLICY, review(user, object, None).to_string()).await
}

/// Creates an object. Returns its payload after the patch of the answer.
async fn admitted(server: &Server, user: &str, object: &Value) -> Value {
    spec_after(&create(server, user, object).await, object)
}

fn spec_after(answer: &Answer, object: &Value) -> Value {
    let response = answer.response();
    assert_eq!(response["allowed"], true, "{response}");
    let mut object = object.clone();
    if let Some(patch) = response["patch"].as_str() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&bytes).unwrap()).unwrap();
    }
    object["spec"].clone()
}

#[tokio::test]
async fn the_chain_decides_about_an_object_and_patches_it() {
    let server = Server::start(catalogue(), &[]).await;
    let web = object("team-blue", &vm(json!({})));
    let answer = create(&server, "ben", &web).await;
    let expected = vm(json!({"cpu": 2, "memoryGib": 8, "costCenter": "cc-100", "providerName": "east-1"}));
    assert_eq!(spec_after(&answer, &web), expected);
    let trail = answer.response()["auditAnnotations"]["request-policies"].as_str().unwrap().to_owned();
    let policies: Vec<_> = trail.split("; ").map(|entry| entry.split(' ').next().unwrap()).collect();
    assert_eq!(policies, ["cluster.cost-centers", "cluster.vm-limits", "ns.team-blue.vm-defaults"], "{trail}");
    assert!(trail.contains("patched spec.costCenter") && !trail.contains("cc-100"), "{trail}");
    // The decision about the result of the chain changes nothing.
    let again = create(&server, "ben", &object("team-blue", &expected)).await.response();
    assert_eq!((&again["allowed"], again.get("patch")), (&json!(true), None), "{again}");
    assert_eq!(server.count("proviso_evaluations_total", &["service-requests", "requests", "mutated"]).await, 1);
    assert_eq!(server.count("proviso_evaluations_total", &["service-requests", "requests", "\"allowed\""]).await, 1);
    assert_eq!(server.count("proviso_evaluations_total", &["ns.team-blue.vm-defaults", "rego"]).await, 2);
}

#[tokio::test]
async fn a_denial_names_the_policy_and_the_field_of_the_object() {
    let server = Server::start(catalogue(), &[]).await;
    for (spec, words, field) in [
        (
            vm(json!({"cpu": 12})),
            "ns.team-blue.vm-defaults (generation 1): 12 is greater than the maximum of 8",
            json!("spec.cpu"),
        ),
        (vm(json!({"costCenter": "mine"})), "cluster.cost-centers", json!("spec.costCenter")),
        (vm(json!({"providerName": "north-1"})), "cluster.vm-limits", json!("spec.providerName")),
        (json!({"serviceType": "vm"}), "a virtual machine needs an image", Value::Null),
        (json!({"serviceType": "pizza"}), "the catalogue has no service pizza", Value::Null),
    ] {
        let answer = create(&server, "ben", &object("team-blue", &spec)).await;
        let status = answer.response()["status"].clone();
        let message = answer.message();
        assert!(message.contains(words), "{words}: {message}");
        assert_eq!((status["code"].as_u64(), status["reason"].as_str()), (Some(403), Some("Forbidden")), "{message}");
        assert_eq!(status["details"]["causes"][0]["field"], field, "{message}");
        assert!(field.is_null() || message.contains(field.as_str().unwrap()), "{message}");
    }
}

#[tokio::test]
async fn the_user_is_the_one_who_sends_the_object_and_the_tenant_that_of_its_namespace() {
    let server = Server::start(catalogue(), &[]).await;
    let mut small = object("team-blue", &vm(json!({"cpu": 4, "user": "ana", "tenant": "green"})));
    small["metadata"]["labels"] = json!({"stage": "test"});
    // The policy of `ana` makes her test machines small.
    assert_eq!(admitted(&server, "ana", &small).await["cpu"], 1);
    assert_eq!(admitted(&server, "ben", &small).await["cpu"], 4);
    small["metadata"]["labels"] = json!({"stage": "live"});
    assert_eq!(admitted(&server, "ana", &small).await["cpu"], 4);
    // The policies of a tenant bind the objects in its own namespaces only.
    let green = object("team-green", &vm(json!({"cpu": 12, "providerName": "west-1", "tenant": "blue"})));
    let admitted = admitted(&server, "ana", &green).await;
    assert_eq!(
        (&admitted["cpu"], &admitted["providerName"], &admitted["costCenter"]),
        (&json!(12), &json!("west-1"), &json!("cc-100"))
    );
    let large = create(&server, "ana", &object("team-green", &vm(json!({"cpu": 32})))).await;
    assert!(!large.is_allowed() && large.message().contains("cluster.vm-limits"), "{}", large.text);
}

#[tokio::test]
async fn an_update_is_decided_if_it_changes_the_payload() {
    let server = Server::start(catalogue(), &[]).await;
    let old =
        object("team-blue", &vm(json!({"cpu": 2, "memoryGib": 8, "costCenter": "cc-100", "providerName": "west-1"})));
    let update = async |change: fn(&mut Value), old: &Value| {
        let mut object = old.clone();
        change(&mut object);
        (server.post(POLICY, review("ben", &object, Some(old)).to_string()).await, object)
    };
    // A service keeps its provider, because the policy of the tenant sees it.
    let (answer, object) = update(|it| it["spec"]["cpu"] = json!(4), &old).await;
    assert_eq!(spec_after(&answer, &object)["providerName"], "west-1");
    let (answer, _) = update(|it| it["spec"]["costCenter"] = json!("cc-200"), &old).await;
    assert!(!answer.is_allowed() && answer.message().contains("`spec.costCenter`"), "{}", answer.text);
    // An object that violates a newer policy can be maintained and deleted, and not changed otherwise.
    let mut violating = old;
    violating["spec"]["cpu"] = json!(64);
    let (answer, _) = update(|it| it["metadata"]["finalizers"] = json!([]), &violating).await;
    assert!(answer.is_allowed(), "{}", answer.text);
    for change in [
        |it: &mut Value| it["spec"]["memoryGib"] = json!(4),
        |it: &mut Value| it["metadata"]["labels"] = json!({"a": "b"}),
    ] {
        let (answer, _) = update(change, &violating).await;
        assert!(answer.message().contains("`spec.cpu`"), "{}", answer.text);
    }
}

// The evaluations of the binding must not hold all places while the policies of the chain wait for one.
#[tokio::test(flavor = "multi_thread")]
async fn two_places_are_enough_for_many_chains_and_their_bindings() {
    let folder = catalogue();
    let condition =
        json!({"admission": {"matchConditions": [{"name": "a", "expression": "object.spec.serviceType != 'none'"}]}});
    folder.write("conditional.json", policy("conditional", &with(binding(), &condition)));
    let server = Server::start(folder, &["--concurrency", "2"]).await;
    let web = object("team-blue", &vm(json!({})));
    for path in [POLICY, "/validate/cluster.conditional"] {
        let answer = server.post(path, review("ben", &web, None).to_string()).await;
        assert!(answer.is_allowed(), "{}", answer.text);
        // Many at the same time: each one is decided, or refused for lack of a place.
        let mut begun = Vec::new();
        for _ in 0..20 {
            begun.push(server.begin(path, review("ben", &web, None).to_string()).await);
        }
        for answer in begun {
            let answer = answer.await.unwrap();
            match answer.status.as_u16() {
                // A denial, and no HTTP error, which would let the object pass under `failurePolicy: Ignore`.
                200 => assert!(answer.is_allowed() || answer.message().contains("overloaded"), "{}", answer.text),
                status => assert!(status == 503 && answer.text.contains("overloaded"), "{}", answer.text),
            }
        }
        server.until("free places", async || server.count("proviso_evaluation_places_in_use", &[]).await == 0).await;
        let answer = server.post(path, review("ben", &web, None).to_string()).await;
        assert!(answer.is_allowed(), "every place is free again: {}", answer.text);
    }
}

#[tokio::test]
async fn the_time_limit_of_the_binding_bounds_the_chain() {
    let folder = catalogue();
    let endless = "{\"patch\": {}} if { input.payload.slow; \
        count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1e9]) > 0 }";
    let mut slow: Value = serde_json::from_str(&request_policy("slow", endless)).unwrap();
    slow["spec"]["timeoutEvalSeconds"] = json!(30);
    folder.write("slow.json", slow.to_string());
    folder.write("quick.json", policy("quick", &with(binding(), &json!({"timeoutEvalSeconds": 5}))));
    let server = Server::start(folder, &[]).await;
    let object = object("team-blue", &vm(json!({"slow": true})));
    let started = Instant::now();
    let answer = server.post("/validate/cluster.quick", review("ben", &object, None).to_string()).await;
    assert_eq!((answer.is_allowed(), answer.response()["status"]["code"].as_u64()), (false, Some(500)));
    let message = answer.message();
    assert!(message.contains("exceeded the allowed execution time"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(20), "the time limit of the slow policy, 30 s, bounded the chain");
}

#[tokio::test]
async fn a_policy_that_fails_or_has_no_generation_that_works_denies_the_objects_that_it_covers() {
    let folder = catalogue();
    folder.write("fails.json", request_policy("fails", "{\"patch\": 1} if input.payload.wrong"));
    let mut broken: Value = serde_json::from_str(&request_policy("broken", "{")).unwrap();
    broken["spec"]["request"]["serviceTypes"] = json!(["database"]);
    broken["spec"]["request"]["priority"] = json!(901);
    folder.write("broken.json", broken.to_string());
    let server = Server::start(folder, &[]).await;
    for (spec, policy) in
        [(vm(json!({"wrong": true})), "cluster.fails"), (json!({"serviceType": "database"}), "cluster.broken")]
    {
        let answer = create(&server, "ben", &object("team-blue", &spec)).await;
        assert_eq!((answer.is_allowed(), answer.response()["status"]["code"].as_u64()), (false, Some(500)));
        assert!(answer.message().contains(policy), "{}", answer.text);
    }
    assert_eq!(server.count("proviso_evaluations_total", &["service-requests", "failed"]).await, 2);
    assert!(create(&server, "ben", &object("team-blue", &vm(json!({})))).await.is_allowed());
}

#[tokio::test]
async fn a_binding_that_may_not_change_objects_checks_them_only() {
    let folder = catalogue();
    folder.write("check.json", policy("check", &with(binding(), &json!({"admission": {"mutating": false}}))));
    folder.write("monitor.json", policy("monitor", &with(binding(), &json!({"admission": {"mode": "Monitor"}}))));
    let server = Server::start(folder, &[]).await;
    let (new, large) = (object("team-green", &vm(json!({}))), object("team-green", &vm(json!({"cpu": 32}))));
    let complete = object("team-green", &vm(json!({"costCenter": "cc-100"})));
    for (name, object, is_allowed, words) in [
        ("check", &complete, true, ""),
        ("check", &new, false, "spec.admission.mutating is false"),
        ("check", &large, false, "`spec.cpu`"),
        ("monitor", &new, true, ""),
        ("monitor", &large, true, ""),
    ] {
        let answer = server.post(&format!("/validate/cluster.{name}"), review("ben", object, None).to_string()).await;
        let response = answer.response();
        assert_eq!(
            (response["allowed"].as_bool(), response.get("patch")),
            (Some(is_allowed), None),
            "{name} {response}"
        );
        assert!(answer.message().contains(words), "{name} {response}");
    }
}

#[tokio::test]
async fn a_raw_request_and_an_object_without_payload_are_denied() {
    let server = Server::start(catalogue(), &[]).await;
    let raw = server.post("/validate_raw/cluster.service-requests", json!({"request": {"spec": {}}}).to_string()).await;
    assert!(raw.text.contains("Kubernetes objects only"), "{}", raw.text);
    let mut empty = object("team-blue", &json!({}));
    empty.as_object_mut().unwrap().remove("spec");
    let answer = create(&server, "ben", &empty).await;
    assert!(!answer.is_allowed() && answer.message().contains("spec: is missing"), "{}", answer.text);
}

#[tokio::test]
async fn a_changed_request_policy_decides_about_the_next_object() {
    let server = Server::start(catalogue(), &[]).await;
    let web = object("team-blue", &vm(json!({})));
    assert!(create(&server, "ben", &web).await.is_allowed());
    server.folder.write("closed.json", request_policy("closed", "{\"reject\": true, \"reason\": \"closed today\"}"));
    server
        .until("the new policy", async || create(&server, "ben", &web).await.message().contains("closed today"))
        .await;
    server.folder.remove("closed.json");
    server.until("the old policies", async || create(&server, "ben", &web).await.is_allowed()).await;
}

#[tokio::test]
async fn an_experiment_previews_a_binding_without_counts_of_the_request_policies() {
    let folder = catalogue();
    folder.remove("service-requests.yaml");
    folder.write("live.json", policy("live", &cel("true", "")));
    folder.write("bind.json", experiment("bind", "live", &binding()));
    let server = Server::start(folder, &[]).await;
    for (spec, divergence) in [(vm(json!({})), "MutationDiffers"), (vm(json!({"cpu": 12})), "NewlyDenied")] {
        let seen = server.previews().len();
        let object = object("team-blue", &spec);
        assert!(server.post("/validate/cluster.live", review("ben", &object, None).to_string()).await.is_allowed());
        let lines = server.until_previews(seen + 1).await;
        assert_eq!(lines[seen]["divergence"], divergence, "{}", lines[seen]);
    }
    let counted = server.count("proviso_evaluations_total", &["ns.team-blue.vm-defaults"]).await;
    assert_eq!(counted, 0, "a preview is no evaluation of the request policies");
    let line = server.previews()[1].to_string();
    assert!(line.contains("ns.team-blue.vm-defaults") && line.contains("`spec.cpu`"), "{line}");
}

#[tokio::test]
async fn a_binding_that_cannot_work_is_refused_with_its_field() {
    let folder = catalogue();
    let group = json!({"program": {"group": {"members": {"a": {"program": {"requests": {}}}}, "expression": "a()", "message": "m"}}});
    folder.write("group.json", policy("group", &group));
    folder.write("delete.json", policy("delete", &json!({"program": {"requests": {}}})));
    let server = Server::start(folder, &[]).await;
    server.until_details("spec.program.group.members.a.program: is `requests`").await;
    server.until_details("spec.admission.rules[0].operations: has \"*\"").await;
}
