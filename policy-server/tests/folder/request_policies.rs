//! The management of request policies over a folder, in both forms, and its effect on the evaluation of requests.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Folder, Server, ask};

const ADR: &str = "/api/v1/policies";
const PUBLISHED: &str = "/api/v1alpha1/policies";

struct Api(Server);

impl Api {
    async fn start(folder: Folder) -> Self {
        Self(Server::start(folder, &[]).await)
    }

    /// Calls a method. Returns the status and the body, which has the content type of its status.
    async fn call(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = ask(&self.0.listen, method, path, body.into()).await.unwrap();
        if answer.status == StatusCode::NO_CONTENT {
            assert_eq!(answer.text, "");
            return (204, Value::Null);
        }
        let expected = if answer.status.is_success() { "application/json" } else { "application/problem+json" };
        assert_eq!(answer.headers["content-type"], expected, "{}", answer.text);
        (answer.status.as_u16(), serde_json::from_str(&answer.text).unwrap())
    }

    /// Calls a method that is answered with this status.
    async fn expect(&self, status: u16, method: Method, path: &str, body: &Value) -> Value {
        let (answered, answer) = self.call(method.clone(), path, body).await;
        assert_eq!(answered, status, "{method} {path}: {answer}");
        answer
    }

    async fn get(&self, path: &str) -> Value {
        self.expect(200, Method::GET, path, &Value::Null).await
    }

    async fn delete(&self, path: &str) {
        self.expect(204, Method::DELETE, path, &Value::Null).await;
    }

    /// Evaluates a request by the published form. Returns the status, and the field `region` of the answer.
    async fn region(&self, spec: &Value) -> (u16, Value) {
        let body = json!({"service_instance": {"spec": spec}});
        let path = "/api/v1alpha1/policies:evaluateRequest";
        let (status, answer) = self.call(Method::POST, path, &body).await;
        (status, answer["evaluated_service_instance"]["spec"]["region"].clone())
    }

    /// Evaluates a request of this tenant and user by the form of the ADR. Returns the names of the policies that cover it.
    async fn covering(&self, tenant: &str, user: &str) -> Vec<String> {
        let body = json!({"payload": {"service_type": "vm"}, "tenant": tenant, "user": user});
        let answer = self.expect(200, Method::POST, "/api/v1/engine/evaluate", &body).await;
        let trail = answer["trail"].as_array().unwrap();
        trail.iter().map(|entry| entry["policy"].as_str().unwrap().to_owned()).collect()
    }
}

fn published(name: &str, priority: u32, rego: &str) -> Value {
    json!({"display_name": name, "policy_type": "GLOBAL", "priority": priority, "rego_code": rego})
}

fn setting_region(region: &str) -> String {
    format!("package p\nmain := {{\"patch\": {{\"region\": \"{region}\"}}}}")
}

/// Returns the number of files in the folder.
fn files(folder: &Folder) -> usize {
    std::fs::read_dir(folder.manifests()).unwrap().count()
}

#[tokio::test]
async fn each_change_of_a_published_policy_is_evaluated_at_once() {
    let api = Api::start(Folder::new()).await;
    let vm = json!({"service_type": "vm"});
    assert_eq!(api.region(&vm).await, (200, Value::Null));

    let body = published("Region", 100, &setting_region("east"));
    let created = ask(&api.0.listen, Method::POST, "/api/v1alpha1/policies?id=region", body.to_string().into()).await;
    let created = created.unwrap();
    assert_eq!(
        (created.status, &created.headers["location"]),
        (StatusCode::CREATED, &"/api/v1alpha1/policies/region".parse().unwrap())
    );
    assert_eq!(api.region(&vm).await, (200, json!("east")));
    let read = api.get(&format!("{PUBLISHED}/region")).await;
    assert_eq!(read, serde_json::from_str::<Value>(&created.text).unwrap());
    assert_eq!((&read["path"], &read["enabled"]), (&json!("policies/region"), &json!(true)));

    let path = format!("{PUBLISHED}/region");
    let change = json!({"rego_code": setting_region("west"), "label_selector": {"stage": "test"}, "id": "region", "update_time": read["update_time"]});
    let patched = api.expect(200, Method::PATCH, &path, &change).await;
    assert_eq!(patched["label_selector"], json!({"stage": "test"}));
    assert_eq!(api.region(&vm).await, (200, Value::Null), "the labels do not match");
    let test_vm = json!({"service_type": "vm", "metadata": {"labels": {"stage": "test"}}});
    assert_eq!(api.region(&test_vm).await, (200, json!("west")));

    api.expect(200, Method::PATCH, &path, &json!({"enabled": false})).await;
    assert_eq!(api.region(&test_vm).await, (200, Value::Null));
    api.expect(200, Method::PATCH, &path, &json!({"enabled": true, "label_selector": null})).await;
    assert_eq!(api.region(&vm).await, (200, json!("west")));

    // Rego that does not compile is refused: nothing is stored, and the old code stays.
    for (method, path) in [(Method::PATCH, path.as_str()), (Method::POST, PUBLISHED)] {
        let files_before = files(&api.0.folder);
        let problem = api.expect(400, method, path, &published("Other", 7, "this is not valid rego syntax!!!")).await;
        assert_eq!(problem["type"], "INVALID_ARGUMENT");
        assert!(problem["detail"].as_str().unwrap().starts_with("rego_code: does not compile"), "{problem}");
        assert_eq!(files(&api.0.folder), files_before);
    }
    assert_eq!(api.region(&vm).await, (200, json!("west")));

    api.delete(&path).await;
    assert_eq!(api.region(&vm).await, (200, Value::Null));
    for method in [Method::GET, Method::PATCH, Method::DELETE] {
        let problem = api.expect(404, method, &path, &json!({})).await;
        assert_eq!((&problem["type"], &problem["instance"]), (&json!("NOT_FOUND"), &json!(path)));
    }
    assert_eq!(files(&api.0.folder), 0);
}

#[tokio::test]
async fn a_published_policy_without_a_rule_main_is_stored_and_skipped() {
    let api = Api::start(Folder::new()).await;
    for (index, rego) in [
        "package test\nallow = true",
        "package authz\n\ndefault allow = false\n\n# 政策\nallow if {\n\tinput.user == \"admin\"\n}",
    ]
    .iter()
    .enumerate()
    {
        let body = published(&format!("政策 {index} 🔒"), u32::try_from(index).unwrap() + 1, rego);
        let created = api.expect(201, Method::POST, PUBLISHED, &body).await;
        assert_eq!((&created["rego_code"], &created["display_name"]), (&body["rego_code"], &body["display_name"]));
        let id = created["id"].as_str().unwrap();
        assert_eq!((id.len(), id.matches('-').count()), (36, 4), "{id}");
        assert_eq!(api.get(&format!("{PUBLISHED}/{id}")).await, created);
    }
    assert_eq!(api.region(&json!({"service_type": "vm", "region": "x"})).await, (200, json!("x")));
    // The ADR has no such rule: a policy without a result is a mistake.
    let body = json!({"name": "n", "type": "Global", "rego": "package test\nallow = true"});
    let problem = api.expect(400, Method::POST, ADR, &body).await;
    assert!(problem["detail"].as_str().unwrap().starts_with("rego: does not compile"), "{problem}");
}

#[tokio::test]
async fn names_and_priorities_are_unique_over_both_forms_and_manifests() {
    let folder = Folder::new();
    let manifest = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "from-a-file"},
        "spec": {
            "request": {"displayName": "Sizes", "priority": 1},
            "program": {"rego": {"dialect": "Request", "source": "package p\nresult := {}"}},
        },
    });
    folder.write("sizes.json", manifest.to_string());
    let api = Api::start(folder).await;
    let rego = "package p\nmain := {}";
    let adr = |name: &str, priority: u32| json!({"name": name, "type": "Global", "priority": priority, "rego": "package p\nresult := {}"});
    for (path, body, words) in [
        (PUBLISHED, published("Sizes", 2, rego), ["display_name: ", "display name", "policy type"]),
        (PUBLISHED, published("Other", 1, rego), ["priority: ", "cluster.from-a-file", "policy type"]),
        (ADR, adr("Sizes", 2), ["name: ", "is in use by policy cluster.from-a-file", "Global policies"]),
        (ADR, adr("Other", 1), ["priority: 1", "is in use by policy cluster.from-a-file", "choose another number"]),
        ("/v1/policies?policyId=cluster.a", json!({"spec": manifest["spec"]}), ["", "", ""]),
    ] {
        if path.starts_with("/v1") {
            let answer = ask(&api.0.listen, Method::POST, path, body.to_string().into()).await.unwrap();
            assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
            continue;
        }
        let problem = api.expect(409, Method::POST, path, &body).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
        assert_eq!(problem["type"], "ALREADY_EXISTS");
    }
    // The same name and priority of another type.
    let user = json!({"display_name": "Sizes", "policy_type": "USER", "priority": 1, "rego_code": rego});
    let user = api.expect(201, Method::POST, PUBLISHED, &user).await;
    // An update keeps its own name and priority, and cannot take those of another policy.
    let other = api.expect(201, Method::POST, &format!("{PUBLISHED}?id=other"), &published("Other", 2, rego)).await;
    let path = format!("{PUBLISHED}/other");
    api.expect(200, Method::PATCH, &path, &json!({"display_name": "Other", "priority": 2, "description": "d"})).await;
    for change in [json!({"display_name": "Sizes"}), json!({"priority": 1})] {
        assert_eq!(api.expect(409, Method::PATCH, &path, &change).await["type"], "ALREADY_EXISTS");
    }
    let duplicate = api.expect(409, Method::POST, &format!("{PUBLISHED}?id=other"), &published("New", 77, rego)).await;
    assert_eq!(
        (&duplicate["type"], &duplicate["detail"]),
        (&json!("ALREADY_EXISTS"), &json!("policies/other already exists"))
    );
    // The policy of the file is shown by its name.
    let list = api.get(&format!("{PUBLISHED}?max_page_size=2")).await;
    let ids = |list: &Value| {
        list["policies"].as_array().unwrap().iter().map(|policy| policy["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&list), [json!("from-a-file"), other["id"].clone()]);
    let next = list["next_page_token"].as_str().unwrap();
    let list = api.get(&format!("{PUBLISHED}?page_token={next}")).await;
    assert_eq!((ids(&list), list.get("next_page_token")), (vec![user["id"].clone()], None));
}

#[tokio::test]
async fn one_of_the_concurrent_creations_with_one_priority_wins() {
    let api = Api::start(Folder::new()).await;
    let calls = (0..20).map(|index| {
        let body = published(&format!("n{index}"), 5, "package p\nmain := {}").to_string();
        let listen = api.0.listen.clone();
        tokio::spawn(async move { ask(&listen, Method::POST, PUBLISHED, body.into()).await.unwrap().status.as_u16() })
    });
    let calls: Vec<_> = calls.collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!((statuses[0], &statuses[1..]), (201, &[409; 19][..]));
    assert_eq!(api.get(PUBLISHED).await["policies"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn concurrent_patches_are_all_applied() {
    let api = Api::start(Folder::new()).await;
    let path = format!("{PUBLISHED}/a");
    api.expect(201, Method::POST, &format!("{PUBLISHED}?id=a"), &published("A", 5, "package p\nmain := {}")).await;
    let calls: Vec<_> = (0..4)
        .map(|index| {
            let (listen, path) = (api.0.listen.clone(), path.clone());
            let change = json!({"label_selector": {format!("l{index}"): "x"}}).to_string();
            tokio::spawn(async move { ask(&listen, Method::PATCH, &path, change.into()).await.unwrap() })
        })
        .collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
    assert_eq!(api.get(&path).await["label_selector"], json!({"l0": "x", "l1": "x", "l2": "x", "l3": "x"}));
}

#[tokio::test]
async fn policies_of_the_adr_have_levels_and_ids_of_the_server() {
    let folder = Folder::new();
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": {"proviso.dev/tenant": "blue"}},
    });
    folder.write("namespace.json", namespace.to_string());
    let api = Api::start(folder).await;
    let new = |name: &str, policy_type: &str, owners: Value| {
        let mut body = json!({"name": name, "type": policy_type, "priority": 10, "serviceType": "vm", "rego": "package dcm.policy.p\nresult := {}"});
        body.as_object_mut().unwrap().extend(owners.as_object().unwrap().clone());
        body
    };
    let global = api.expect(201, Method::POST, ADR, &new("Cost center", "Global", json!({}))).await;
    let tenant = api.expect(201, Method::POST, ADR, &new("Cost center", "Tenant", json!({"tenant": "blue"}))).await;
    let user =
        api.expect(201, Method::POST, ADR, &new("Cost center", "User", json!({"user": "ana", "tenant": "blue"}))).await;
    let green = api.expect(201, Method::POST, ADR, &new("Cost center", "Tenant", json!({"tenant": "green"}))).await;
    // The namespace team-a belongs to the tenant blue, so no namespace belongs to a tenant of this name.
    let problem = api.expect(400, Method::POST, ADR, &new("x", "Tenant", json!({"tenant": "team-a"}))).await;
    assert!(problem["detail"].as_str().unwrap().starts_with("tenant: no namespace belongs"), "{problem}");

    assert_eq!(api.covering("blue", "ana").await[..2], ["cluster.cost-center", "ns.team-a.cost-center"]);
    assert_eq!(api.covering("blue", "ana").await.len(), 3);
    assert_eq!(api.covering("green", "bob").await, ["cluster.cost-center", "ns.green.cost-center"]);
    let list = api.get(ADR).await;
    let ids: Vec<_> = list["policies"].as_array().unwrap().iter().map(|policy| &policy["id"]).collect();
    assert_eq!(ids, [&global["id"], &tenant["id"], &green["id"], &user["id"]]);
    for (filter, expected) in [
        ("type=Tenant", 2),
        ("tenant=blue", 2),
        ("tenant=blue&type=User", 1),
        ("user=ana", 1),
        ("serviceType=vm", 4),
        ("serviceType=db", 0),
        ("name=Cost%20center", 4),
        ("name=cost-center", 0),
    ] {
        let list = api.get(&format!("{ADR}?{filter}")).await;
        assert_eq!(list["policies"].as_array().unwrap().len(), expected, "{filter}: {list}");
    }
    let first = api.get(&format!("{ADR}?pageSize=3")).await;
    let token = first["nextPageToken"].as_str().unwrap();
    let rest = api.get(&format!("{ADR}?pageSize=3&pageToken={token}")).await;
    assert_eq!(rest["policies"].as_array().unwrap().len(), 1);

    // A replacement has all criteria: the service type is gone.
    let path = format!("{ADR}/{}", tenant["id"].as_str().unwrap());
    let body = json!({"priority": 11, "rego": "package dcm.policy.p\nresult := {\"reject\": true, \"reason\": \"closed\"}", "name": "Cost center"});
    let replaced = api.expect(200, Method::PUT, &path, &body).await;
    assert_eq!(
        (&replaced["id"], &replaced["serviceTypes"], &replaced["priority"]),
        (&tenant["id"], &json!([]), &json!(11))
    );
    let evaluated = json!({"payload": {"service_type": "db"}, "tenant": "blue"});
    let problem = api.expect(403, Method::POST, "/api/v1/engine/evaluate", &evaluated).await;
    assert!(problem["detail"].as_str().unwrap().contains("closed"), "{problem}");
    for (field, value) in [("name", "Other"), ("type", "Global"), ("tenant", "green")] {
        let mut changed = body.clone();
        changed[field] = json!(value);
        let problem = api.expect(400, Method::PUT, &path, &changed).await;
        assert!(problem["detail"].as_str().unwrap().starts_with(&format!("{field}: is immutable")), "{problem}");
    }
    api.delete(&path).await;
    assert_eq!(api.expect(404, Method::GET, &path, &Value::Null).await["type"], "NOT_FOUND");
    assert_eq!(api.covering("blue", "bob").await, ["cluster.cost-center"]);
}

#[tokio::test]
async fn the_apis_need_the_token_except_for_the_health_check() {
    let folder = Folder::new();
    let token = folder.state().join("token");
    std::fs::create_dir_all(folder.state()).unwrap();
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    let api = Api(Server::start(folder, &["--api-token-file", token.to_str().unwrap()]).await);
    for path in [PUBLISHED, ADR, "/api/v1alpha1/other", "/api/v1/engine/evaluate"] {
        let problem = api.expect(401, Method::GET, path, &Value::Null).await;
        assert_eq!((&problem["type"], &problem["status"]), (&json!("UNAUTHENTICATED"), &json!(401)), "{path}");
    }
    let health = api.get("/api/v1alpha1/health").await;
    assert_eq!(health, json!({"status": "ok", "path": "health"}));
    assert_eq!(api.call(Method::POST, "/api/v1alpha1/health", &Value::Null).await.0, 405);
}
