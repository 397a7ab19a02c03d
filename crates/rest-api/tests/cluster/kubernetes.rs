//! The API over a real API server: what it stores, what it refuses, and commits that meet others or break off. No
//! operator runs: what it would do is not the API's.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use proviso_crds::names::{COMMIT_INTENT, COMMITTED_EXPERIMENT};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment};
use proviso_e2e::{ControlPlane, Kubectl, manifests};
use proviso_rest_api::kubernetes::commit::Commit;
use proviso_rest_api::kubernetes::{Access, Authorizer, Everyone, Kubernetes};
use proviso_rest_api::{Caller, Code, Committing, Error, ExperimentName, PolicyStore, router};
use serde_json::{Value, json};

struct Stage {
    client: Client,
    store: Arc<Kubernetes<Everyone>>,
    router: TowerToHyperService<axum::Router>,
    kubectl: Kubectl,
    _plane: ControlPlane,
}

fn spec(message: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": "false", "message": message}]}},
        "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    })
}

impl Stage {
    async fn start(name: &str) -> Self {
        let plane = ControlPlane::start(name).await.unwrap();
        let kubectl = Kubectl::new(plane.kubeconfig()).unwrap();
        let client = plane.client().await.unwrap();
        let crds = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds"));
        manifests::apply_crds(&client, crds).await.unwrap();
        let store = Arc::new(Kubernetes::new(client.clone(), Everyone));
        let router = TowerToHyperService::new(router(Arc::clone(&store)));
        Self { client, store, router, kubectl, _plane: plane }
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let response = self.router.call(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn ok(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, Value::Null).await
    }

    fn policies(&self) -> Api<ClusterPolicy> {
        Api::all(self.client.clone())
    }

    fn experiments(&self) -> Api<ClusterPolicyExperiment> {
        Api::all(self.client.clone())
    }

    /// A policy and an experiment of it; the experiment's name and what commits it.
    async fn pair(&self, name: &str) -> (ExperimentName, Committing) {
        self.ok(Method::POST, &format!("/v1/policies?policyId=cluster.{name}"), json!({"spec": spec("old")})).await;
        let path = format!("/v1/policies/cluster.{name}/experiments");
        let body = json!({"policy": {"spec": spec("new")}});
        self.ok(Method::POST, &format!("{path}?experimentId={name}"), body).await;
        let name = ExperimentName { policy: format!("cluster.{name}").parse().unwrap(), name: name.to_owned() };
        let etag = self.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
        (name, Committing { etag, parent_etag: None })
    }

    async fn message(&self, name: &ExperimentName) -> String {
        let policy = self.get(&format!("/v1/policies/{}", name.policy)).await;
        policy.pointer("/spec/program/cel/validations/0/message").unwrap().as_str().unwrap().to_owned()
    }

    async fn edit(&self, name: &ExperimentName, message: &str) {
        let patch = json!({"spec": {"policy": {"program": {"cel": {"validations": [{"expression": "false", "message": message}]}}}}});
        self.experiments().patch(&name.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

#[tokio::test]
async fn policies_and_experiments_are_objects_of_the_cluster() {
    let stage = Stage::start("api-objects").await;
    let (name, _) = stage.pair("a").await;
    let path = format!("/v1/{name}");
    let made = stage.get(&path).await;
    assert_eq!((&made["policy"]["name"], made.get("previewMetadata")), (&json!("policies/cluster.a"), None));
    assert!(made["createTime"].is_string() && made["updateTime"].is_string(), "{made}");
    // Of another policy there is no such experiment.
    stage.ok(Method::POST, "/v1/policies?policyId=cluster.b", json!({"spec": spec("b")})).await;
    assert_eq!(stage.call(Method::GET, "/v1/policies/cluster.b/experiments/a", Value::Null).await.0, 404);

    // startPreview and stopPreview are written where the operator reads them.
    let started = stage.ok(Method::POST, &format!("{path}:startPreview"), Value::Null).await;
    assert_eq!(started["done"], false, "nobody has loaded it: {started}");
    let object = stage.experiments().get("a").await.unwrap();
    let preview = object.status.unwrap().preview_metadata.unwrap();
    assert_eq!(Some(preview.generation), object.metadata.generation);
    let active = "/v1/policies/cluster.a/experiments?filter=preview_metadata.state=ACTIVE";
    assert_eq!(stage.get(active).await["experiments"].as_array().unwrap().len(), 1);

    // An update suspends, before anybody has written so; annotations of ours and of kubectl stay and are not shown.
    let theirs = json!({"metadata": {"annotations": {"proviso.dev/x": "1", "kubectl.kubernetes.io/y": "2", "a": "b"}}});
    stage.experiments().patch("a", &PatchParams::default(), &Patch::Merge(theirs)).await.unwrap();
    let body = json!({"policy": {"spec": {"program": spec("newer")["program"]}}, "annotations": {"c": "d"}});
    let mask = format!("{path}?updateMask=policy.spec.program,annotations");
    let updated = stage.ok(Method::PATCH, &mask, body).await;
    assert_eq!(updated["response"]["previewMetadata"]["state"], "SUSPENDED", "{updated}");
    assert_eq!(updated["response"]["annotations"], json!({"c": "d"}));
    let object = stage.experiments().get("a").await.unwrap();
    let keys: Vec<_> = object.annotations().keys().map(String::as_str).collect();
    assert_eq!(keys, ["c", "kubectl.kubernetes.io/y", "proviso.dev/x"]);
    assert_eq!(stage.get(active).await["experiments"], json!([]));
    let stopped = stage.ok(Method::POST, &format!("{path}:stopPreview"), Value::Null).await;
    assert_eq!(stopped["done"], true, "{stopped}");

    // Namespaced ones, and what the cluster does not take.
    stage.kubectl.run(&["create", "namespace", "pay"]).await.unwrap();
    stage.ok(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await;
    stage
        .ok(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=q", json!({"policy": {"spec": spec("q")}}))
        .await;
    let file = json!({"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}});
    let (status, refused) = stage.call(Method::POST, "/v1/policies?policyId=ns.pay.f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!((status, &violation["field"]), (400, &json!("spec.program.wasm.module")), "{refused}");
    let file = json!({"policy": {"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}}});
    let (_, refused) = stage.call(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "policy.spec.program.wasm.module", "{refused}");
    assert_eq!(stage.call(Method::POST, "/v1/policies?policyId=ns.nowhere.p", json!({"spec": spec("p")})).await.0, 404);
    assert_eq!(stage.call(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await.0, 409);

    // The policy goes, and with it its experiments, and no others.
    let other = stage.call(Method::DELETE, "/v1/policies/ns.pay.p?etag=%22x%22", Value::Null).await;
    assert_eq!(other.0, 409);
    let deleted = stage.ok(Method::DELETE, "/v1/policies/ns.pay.p", Value::Null).await;
    assert_eq!(deleted["done"], true, "{deleted}");
    let left = stage.get("/v1/policies/-/experiments").await;
    assert_eq!(left["experiments"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(stage.get("/v1/policies?pageSize=1").await["policies"][0]["name"], "policies/cluster.a");
}

#[tokio::test]
async fn a_commit_happens_as_a_whole_or_not_at_all() {
    let stage = Stage::start("api-commits").await;
    let store = &*stage.store;

    // A stale etag, a stale parentEtag: nothing changes.
    let (name, right) = stage.pair("stale").await;
    let wrong = Committing { etag: "\"0\"".into(), parent_etag: None };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    let wrong = Committing { parent_etag: Some("\"0\"".into()), ..right.clone() };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    let object = stage.experiments().get("stale").await.unwrap();
    assert!(!object.annotations().contains_key(COMMIT_INTENT) && stage.message(&name).await == "old");

    // The right ones: the policy says where it comes from. A second call is 404.
    let parent = stage.get("/v1/policies/cluster.stale").await["etag"].as_str().unwrap().to_owned();
    let right = Committing { parent_etag: Some(parent), ..right };
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(stage.message(&name).await, "new");
    let policy = stage.policies().get("stale").await.unwrap();
    let committed: Value = serde_json::from_str(&policy.annotations()[COMMITTED_EXPERIMENT]).unwrap();
    assert_eq!(committed, json!({"name": "stale", "uid": object.uid(), "generation": 1, "etag": right.etag}),);
    assert!(stage.experiments().get_opt("stale").await.unwrap().is_none());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);

    // An edit before the mark: it is another version. One after it came too late.
    let (name, right) = stage.pair("edited").await;
    stage.edit(&name, "edited").await;
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "ETAG_MISMATCH");
    let etag = stage.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
    let right = Committing { etag, ..right };
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    stage.edit(&name, "too late").await;
    commit.copy(&marked).await.unwrap();
    commit.delete(&marked).await.unwrap();
    assert_eq!(stage.message(&name).await, "edited");
    assert!(stage.experiments().get_opt("edited").await.unwrap().is_none());

    // The policy changes at the same time: without a parentEtag the commit wins, with one it undoes its mark.
    let (name, right) = stage.pair("parent").await;
    let parent = stage.get("/v1/policies/cluster.parent").await["etag"].as_str().unwrap().to_owned();
    let strict = Committing { parent_etag: Some(parent), ..right.clone() };
    let commit = Commit::new(store, &name, &strict);
    let marked = commit.mark().await.unwrap();
    let other = stage.call(Method::PATCH, "/v1/policies/cluster.parent", json!({"spec": spec("other")})).await;
    assert_eq!(other.0, 200);
    assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert_eq!(stage.message(&name).await, "other");
    assert_eq!(Commit::new(store, &name, &right).mark().await.unwrap_err().reason(), "COMMIT_UNDER_WAY");
}

#[tokio::test]
async fn two_commits_at_once_have_one_winner() {
    let stage = Stage::start("api-commits-at-once").await;
    for round in 0..5 {
        let (name, right) = stage.pair(&format!("r{round}")).await;
        let (one, two) = tokio::join!(stage.store.commit(None, &name, &right), stage.store.commit(None, &name, &right));
        let (won, lost): (Vec<_>, Vec<_>) = [one, two].into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 1), "{won:?} {lost:?}");
        let code = lost.into_iter().next().unwrap().unwrap_err().code;
        assert!([Code::NotFound, Code::Aborted].contains(&code), "{code:?}");
        assert_eq!(stage.message(&name).await, "new");
        assert!(stage.experiments().get_opt(&name.name).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_commit_that_breaks_off_after_any_step_can_be_finished() {
    let stage = Stage::start("api-commits-broken-off").await;
    let store = &*stage.store;

    // After (a): nothing has changed, and when its time is over another call commits.
    let (name, right) = stage.pair("marked").await;
    Commit::new(store, &name, &right).mark().await.unwrap();
    assert_eq!(stage.message(&name).await, "old");
    assert_eq!(stage.get(&format!("/v1/{name}")).await["etag"], right.etag, "a mark is no new version");
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "COMMIT_UNDER_WAY");
    let long_ago = (Timestamp::now() - SignedDuration::from_mins(1)).to_string();
    let patch = json!({"metadata": {"annotations": {COMMIT_INTENT: long_ago}}});
    stage.experiments().patch("marked", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(stage.message(&name).await, "new");

    // After (b): it is committed; another call deletes what is left, and is told that there is nothing to commit.
    let (name, right) = stage.pair("copied").await;
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    assert!(stage.experiments().get_opt("copied").await.unwrap().is_some());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert!(stage.experiments().get_opt("copied").await.unwrap().is_none());
    assert_eq!(stage.message(&name).await, "new");

    // After (b), the experiment gone and another one of its name there: that one stays.
    let (name, right) = stage.pair("renewed").await;
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    stage.ok(Method::DELETE, &format!("/v1/{name}"), Value::Null).await;
    let again = format!("/v1/policies/{}/experiments?experimentId=renewed", name.policy);
    stage.ok(Method::POST, &again, json!({"policy": {"spec": spec("next")}})).await;
    commit.delete(&marked).await.unwrap();
    assert!(stage.experiments().get_opt("renewed").await.unwrap().is_some());

    // (b) is refused: the mark is undone.
    let (name, right) = stage.pair("refused").await;
    stage.policies().delete("refused", &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert!(!stage.experiments().get("refused").await.unwrap().annotations().contains_key(COMMIT_INTENT));
}

/// Lets everything pass but one access.
#[derive(Clone)]
struct But(&'static str, &'static str, Option<&'static str>);

impl Authorizer for But {
    async fn authorize(&self, caller: Option<&Caller>, access: &Access) -> Result<(), Error> {
        assert_eq!(caller.map(|caller| caller.user.as_str()), Some("ann"));
        if (access.verb, access.resource, access.subresource) == (self.0, self.1, self.2) {
            return Err(Error::new(Code::PermissionDenied, "FORBIDDEN", "no"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_commit_needs_each_of_its_rights_before_anything_is_done() {
    let stage = Stage::start("api-authorization").await;
    let (name, right) = stage.pair("a").await;
    let ann = Caller { user: "ann".into(), ..Caller::default() };
    for but in [
        But("create", "clusterpolicyexperiments", Some("commit")),
        But("delete", "clusterpolicyexperiments", None),
        But("update", "clusterpolicies", None),
    ] {
        let store = Kubernetes::new(stage.client.clone(), but);
        assert_eq!(store.commit(Some(&ann), &name, &right).await.unwrap_err().code, Code::PermissionDenied);
    }
    let object = stage.experiments().get("a").await.unwrap();
    assert!(!object.annotations().contains_key(COMMIT_INTENT) && stage.message(&name).await == "old");
    let store = Kubernetes::new(stage.client.clone(), But("delete", "clusterpolicyexperiments", None));
    let denied = store.delete_policy(Some(&ann), &name.policy, None).await.unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied);
    assert!(stage.policies().get_opt("a").await.unwrap().is_some(), "the policy stays where its experiments must");
}
