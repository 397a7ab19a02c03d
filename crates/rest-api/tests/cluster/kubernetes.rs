//! Tests of the REST API over a real API server: the objects that it stores and refuses, and concurrent and interrupted
//! commits. No operator runs in these tests.

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
use proviso_rest_api::kubernetes::{Access, AllowAll, Authorizer, Kubernetes};
use proviso_rest_api::{Caller, Code, CommitPreconditions, Error, ExperimentName, PolicyStore, router};
use serde_json::{Value, json};

/// The REST API over the API server of a control plane.
struct TestApi {
    client: Client,
    store: Arc<Kubernetes<AllowAll>>,
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

impl TestApi {
    async fn start(name: &str) -> Self {
        let plane = ControlPlane::start(name).await.unwrap();
        let kubectl = Kubectl::new(plane.kubeconfig()).unwrap();
        let client = plane.client().await.unwrap();
        let crds = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds"));
        manifests::apply_crds(&client, crds).await.unwrap();
        let store = Arc::new(Kubernetes::new(client.clone(), AllowAll));
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

    /// Creates a policy and an experiment of it. Returns the name of the experiment and the preconditions that commit it.
    async fn create_pair(&self, name: &str) -> (ExperimentName, CommitPreconditions) {
        self.ok(Method::POST, &format!("/v1/policies?policyId=cluster.{name}"), json!({"spec": spec("old")})).await;
        let path = format!("/v1/policies/cluster.{name}/experiments");
        let body = json!({"policy": {"spec": spec("new")}});
        self.ok(Method::POST, &format!("{path}?experimentId={name}"), body).await;
        let name = ExperimentName { policy: format!("cluster.{name}").parse().unwrap(), name: name.to_owned() };
        let etag = self.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
        (name, CommitPreconditions { etag, parent_etag: None })
    }

    /// Returns the denial message of the policy of the experiment.
    async fn message(&self, name: &ExperimentName) -> String {
        let policy = self.get(&format!("/v1/policies/{}", name.policy)).await;
        policy.pointer("/spec/program/cel/validations/0/message").unwrap().as_str().unwrap().to_owned()
    }

    /// Changes the denial message of the experiment, past the REST API.
    async fn edit(&self, name: &ExperimentName, message: &str) {
        let patch = json!({"spec": {"policy": {"program": {"cel": {"validations": [{"expression": "false", "message": message}]}}}}});
        self.experiments().patch(&name.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

#[tokio::test]
async fn policies_and_experiments_are_stored_as_kubernetes_objects() {
    let api = TestApi::start("api-objects").await;
    let (name, _) = api.create_pair("a").await;
    let path = format!("/v1/{name}");
    let made = api.get(&path).await;
    assert_eq!((&made["policy"]["name"], made.get("previewMetadata")), (&json!("policies/cluster.a"), None));
    assert!(made["createTime"].is_string() && made["updateTime"].is_string(), "{made}");
    // The experiment does not exist under another policy.
    api.ok(Method::POST, "/v1/policies?policyId=cluster.b", json!({"spec": spec("b")})).await;
    assert_eq!(api.call(Method::GET, "/v1/policies/cluster.b/experiments/a", Value::Null).await.0, 404);

    // startPreview and stopPreview write the status that the operator reads.
    let started = api.ok(Method::POST, &format!("{path}:startPreview"), Value::Null).await;
    assert_eq!(started["done"], false, "no replica has loaded the experiment: {started}");
    let object = api.experiments().get("a").await.unwrap();
    let preview = object.status.unwrap().preview_metadata.unwrap();
    assert_eq!(Some(preview.generation), object.metadata.generation);
    let active = "/v1/policies/cluster.a/experiments?filter=preview_metadata.state=ACTIVE";
    assert_eq!(api.get(active).await["experiments"].as_array().unwrap().len(), 1);

    // An update suspends the preview, before the operator has written the new state. The reserved annotations of Proviso
    // and kubectl stay, and the API does not show them.
    let annotations =
        json!({"metadata": {"annotations": {"proviso.dev/x": "1", "kubectl.kubernetes.io/y": "2", "a": "b"}}});
    api.experiments().patch("a", &PatchParams::default(), &Patch::Merge(annotations)).await.unwrap();
    let body = json!({"policy": {"spec": {"program": spec("newer")["program"]}}, "annotations": {"c": "d"}});
    let mask = format!("{path}?updateMask=policy.spec.program,annotations");
    let updated = api.ok(Method::PATCH, &mask, body).await;
    assert_eq!(updated["response"]["previewMetadata"]["state"], "SUSPENDED", "{updated}");
    assert_eq!(updated["response"]["annotations"], json!({"c": "d"}));
    let object = api.experiments().get("a").await.unwrap();
    let keys: Vec<_> = object.annotations().keys().map(String::as_str).collect();
    assert_eq!(keys, ["c", "kubectl.kubernetes.io/y", "proviso.dev/x"]);
    assert_eq!(api.get(active).await["experiments"], json!([]));
    let stopped = api.ok(Method::POST, &format!("{path}:stopPreview"), Value::Null).await;
    assert_eq!(stopped["done"], true, "{stopped}");

    // A namespaced policy with its experiment, and objects that the API server refuses.
    api.kubectl.run(&["create", "namespace", "pay"]).await.unwrap();
    api.ok(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await;
    api.ok(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=q", json!({"policy": {"spec": spec("q")}}))
        .await;
    let file = json!({"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}});
    let (status, refused) = api.call(Method::POST, "/v1/policies?policyId=ns.pay.f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!((status, &violation["field"]), (400, &json!("spec.program.wasm.module")), "{refused}");
    let file = json!({"policy": {"spec": {"program": {"wasm": {"module": "file://m.wasm"}}, "admission": spec("")["admission"]}}});
    let (_, refused) = api.call(Method::POST, "/v1/policies/ns.pay.p/experiments?experimentId=f", file).await;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "policy.spec.program.wasm.module", "{refused}");
    assert_eq!(api.call(Method::POST, "/v1/policies?policyId=ns.nowhere.p", json!({"spec": spec("p")})).await.0, 404);
    assert_eq!(api.call(Method::POST, "/v1/policies?policyId=ns.pay.p", json!({"spec": spec("p")})).await.0, 409);

    // Deleting a policy deletes its experiments, and no others.
    let other = api.call(Method::DELETE, "/v1/policies/ns.pay.p?etag=%22x%22", Value::Null).await;
    assert_eq!(other.0, 409);
    let deleted = api.ok(Method::DELETE, "/v1/policies/ns.pay.p", Value::Null).await;
    assert_eq!(deleted["done"], true, "{deleted}");
    let left = api.get("/v1/policies/-/experiments").await;
    assert_eq!(left["experiments"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(api.get("/v1/policies?pageSize=1").await["policies"][0]["name"], "policies/cluster.a");
}

#[tokio::test]
async fn a_commit_succeeds_completely_or_changes_nothing() {
    let api = TestApi::start("api-commits").await;
    let store = &*api.store;

    // A commit with a stale etag or a stale parentEtag changes nothing.
    let (name, right) = api.create_pair("stale").await;
    let wrong = CommitPreconditions { etag: "\"0\"".into(), parent_etag: None };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    let wrong = CommitPreconditions { parent_etag: Some("\"0\"".into()), ..right.clone() };
    assert_eq!(store.commit(None, &name, &wrong).await.unwrap_err().code, Code::Aborted);
    let object = api.experiments().get("stale").await.unwrap();
    assert!(!object.annotations().contains_key(COMMIT_INTENT) && api.message(&name).await == "old");

    // A commit with the current etags records the experiment in the policy. A second commit fails with NOT_FOUND.
    let parent = api.get("/v1/policies/cluster.stale").await["etag"].as_str().unwrap().to_owned();
    let right = CommitPreconditions { parent_etag: Some(parent), ..right };
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(api.message(&name).await, "new");
    let policy = api.policies().get("stale").await.unwrap();
    let committed: Value = serde_json::from_str(&policy.annotations()[COMMITTED_EXPERIMENT]).unwrap();
    assert_eq!(committed, json!({"name": "stale", "uid": object.uid(), "generation": 1, "etag": right.etag}),);
    assert!(api.experiments().get_opt("stale").await.unwrap().is_none());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);

    // An edit before the mark makes another version, and the commit is refused. An edit after the mark has no effect.
    let (name, right) = api.create_pair("edited").await;
    api.edit(&name, "edited").await;
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "ETAG_MISMATCH");
    let etag = api.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
    let right = CommitPreconditions { etag, ..right };
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    api.edit(&name, "too late").await;
    commit.copy(&marked).await.unwrap();
    commit.delete(&marked).await.unwrap();
    assert_eq!(api.message(&name).await, "edited");
    assert!(api.experiments().get_opt("edited").await.unwrap().is_none());

    // The policy changes between the mark and the copy: a commit with a parentEtag fails at the copy.
    let (name, right) = api.create_pair("parent").await;
    let parent = api.get("/v1/policies/cluster.parent").await["etag"].as_str().unwrap().to_owned();
    let strict = CommitPreconditions { parent_etag: Some(parent), ..right.clone() };
    let commit = Commit::new(store, &name, &strict);
    let marked = commit.mark().await.unwrap();
    let other = api.call(Method::PATCH, "/v1/policies/cluster.parent", json!({"spec": spec("other")})).await;
    assert_eq!(other.0, 200);
    assert_eq!(commit.copy(&marked).await.unwrap_err().reason(), "ETAG_MISMATCH");
    assert_eq!(api.message(&name).await, "other");
    assert_eq!(Commit::new(store, &name, &right).mark().await.unwrap_err().reason(), "COMMIT_UNDER_WAY");
}

#[tokio::test]
async fn only_one_of_two_concurrent_commits_succeeds() {
    let api = TestApi::start("api-commits-at-once").await;
    for round in 0..5 {
        let (name, right) = api.create_pair(&format!("r{round}")).await;
        let (one, two) = tokio::join!(api.store.commit(None, &name, &right), api.store.commit(None, &name, &right));
        let (won, lost): (Vec<_>, Vec<_>) = [one, two].into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 1), "{won:?} {lost:?}");
        let code = lost.into_iter().next().unwrap().unwrap_err().code;
        assert!([Code::NotFound, Code::Aborted].contains(&code), "{code:?}");
        assert_eq!(api.message(&name).await, "new");
        assert!(api.experiments().get_opt(&name.name).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_commit_interrupted_after_any_step_can_be_finished() {
    let api = TestApi::start("api-commits-broken-off").await;
    let store = &*api.store;

    // Interrupted after (a): the policy has not changed, and after the intent has expired another call commits.
    let (name, right) = api.create_pair("marked").await;
    Commit::new(store, &name, &right).mark().await.unwrap();
    assert_eq!(api.message(&name).await, "old");
    assert_eq!(api.get(&format!("/v1/{name}")).await["etag"], right.etag, "a mark is not a new version");
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().reason(), "COMMIT_UNDER_WAY");
    let long_ago = (Timestamp::now() - SignedDuration::from_mins(1)).to_string();
    let patch = json!({"metadata": {"annotations": {COMMIT_INTENT: long_ago}}});
    api.experiments().patch("marked", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    store.commit(None, &name, &right).await.unwrap();
    assert_eq!(api.message(&name).await, "new");

    // Interrupted after (b): the experiment is committed. Another call deletes the experiment, and fails with NOT_FOUND.
    let (name, right) = api.create_pair("copied").await;
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    assert!(api.experiments().get_opt("copied").await.unwrap().is_some());
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert!(api.experiments().get_opt("copied").await.unwrap().is_none());
    assert_eq!(api.message(&name).await, "new");

    // Interrupted after (b), and the experiment was deleted and created anew: the new experiment stays.
    let (name, right) = api.create_pair("renewed").await;
    let commit = Commit::new(store, &name, &right);
    let marked = commit.mark().await.unwrap();
    commit.copy(&marked).await.unwrap();
    api.ok(Method::DELETE, &format!("/v1/{name}"), Value::Null).await;
    let again = format!("/v1/policies/{}/experiments?experimentId=renewed", name.policy);
    api.ok(Method::POST, &again, json!({"policy": {"spec": spec("next")}})).await;
    commit.delete(&marked).await.unwrap();
    assert!(api.experiments().get_opt("renewed").await.unwrap().is_some());

    // If (b) fails, the mark is removed.
    let (name, right) = api.create_pair("refused").await;
    api.policies().delete("refused", &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(store.commit(None, &name, &right).await.unwrap_err().code, Code::NotFound);
    assert!(!api.experiments().get("refused").await.unwrap().annotations().contains_key(COMMIT_INTENT));
}

/// An authorizer that denies one verb on one resource and subresource, and allows everything else.
#[derive(Clone)]
struct DenyOne(&'static str, &'static str, Option<&'static str>);

impl Authorizer for DenyOne {
    async fn authorize(&self, caller: Option<&Caller>, access: &Access) -> Result<(), Error> {
        assert_eq!(caller.map(|caller| caller.user.as_str()), Some("ann"));
        if (access.verb, access.resource, access.subresource) == (self.0, self.1, self.2) {
            return Err(Error::new(Code::PermissionDenied, "FORBIDDEN", "no"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_commit_checks_every_permission_before_any_change() {
    let api = TestApi::start("api-authorization").await;
    let (name, right) = api.create_pair("a").await;
    let ann = Caller { user: "ann".into(), ..Caller::default() };
    for authorizer in [
        DenyOne("create", "clusterpolicyexperiments", Some("commit")),
        DenyOne("delete", "clusterpolicyexperiments", None),
        DenyOne("update", "clusterpolicies", None),
    ] {
        let store = Kubernetes::new(api.client.clone(), authorizer);
        assert_eq!(store.commit(Some(&ann), &name, &right).await.unwrap_err().code, Code::PermissionDenied);
    }
    let object = api.experiments().get("a").await.unwrap();
    assert!(!object.annotations().contains_key(COMMIT_INTENT) && api.message(&name).await == "old");
    let store = Kubernetes::new(api.client.clone(), DenyOne("delete", "clusterpolicyexperiments", None));
    let denied = store.delete_policy(Some(&ann), &name.policy, None).await.unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied);
    assert!(
        api.policies().get_opt("a").await.unwrap().is_some(),
        "the policy must stay if its experiments cannot be deleted"
    );
}
