//! The REST API over the API server of a control plane. No operator runs: tests write the statuses that it would write.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, CommitIntent, ExperimentStatus, fixtures};
use proviso_e2e::{ControlPlane, Kubectl, manifests};
use proviso_rest_api::kubernetes::{AllowAll, Authorizer, Kubernetes, Settings};
use proviso_rest_api::{Caller, CommitPreconditions, ExperimentName, request_policies_router, router};
use serde_json::{Value, json};

/// The namespace of the operator.
pub const NAMESPACE: &str = "proviso-system";

pub type Router = TowerToHyperService<axum::Router>;

pub struct TestApi {
    pub client: Client,
    pub store: Arc<Kubernetes<AllowAll>>,
    router: Router,
    pub kubectl: Kubectl,
    _plane: ControlPlane,
}

/// Returns the spec of a policy that denies pods with this message.
pub fn spec(message: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": "false", "message": message}]}},
        "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
    })
}

pub fn caller(user: &str) -> Caller {
    Caller { user: user.to_owned(), ..Caller::default() }
}

/// Returns the settings of a store. No operator runs, so a change does not wait until it is served.
fn settings(impersonates_callers: bool) -> Settings {
    Settings { namespace: NAMESPACE.to_owned(), impersonates_callers, serving_timeout: Duration::ZERO }
}

/// Returns the routes of `/v1` and of the management of request policies.
fn both_routers<A: Authorizer>(store: &Arc<Kubernetes<A>>) -> Router {
    let router = router(Arc::clone(store)).merge(request_policies_router(Arc::clone(store)));
    TowerToHyperService::new(router)
}

impl TestApi {
    pub async fn start(name: &str) -> Self {
        let plane = ControlPlane::start(name).await.unwrap();
        let kubectl = Kubectl::new(plane.kubeconfig()).unwrap();
        let client = plane.client().await.unwrap();
        let crds = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds"));
        manifests::apply_crds(&client, crds).await.unwrap();
        kubectl.run(&["create", "namespace", NAMESPACE]).await.unwrap();
        let settings = settings(false);
        let store = Arc::new(Kubernetes::new(client.clone(), AllowAll, settings));
        let router = both_routers(&store);
        Self { client, store, router, kubectl, _plane: plane }
    }

    /// Returns another store over the same API server.
    pub fn store_with<A: Authorizer>(&self, authorizer: A, impersonates_callers: bool) -> Kubernetes<A> {
        let settings = settings(impersonates_callers);
        Kubernetes::new(self.client.clone(), authorizer, settings)
    }

    /// Returns the routes of another replica over the same API server.
    pub fn another_router(&self) -> Router {
        self.router_with(AllowAll)
    }

    /// Returns the routes of a replica with this authorizer.
    pub fn router_with<A: Authorizer>(&self, authorizer: A) -> Router {
        both_routers(&Arc::new(self.store_with(authorizer, false)))
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        Self::send(&self.router, method, path, body).await
    }

    /// Calls a method of a replica. Returns the status and the body; null if the body is empty.
    pub async fn send(router: &Router, method: Method, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let response = router.call(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() })
    }

    pub async fn ok(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, Value::Null).await
    }

    /// Calls a method without a body, and returns the operation.
    pub async fn post(&self, path: &str) -> Value {
        self.ok(Method::POST, path, Value::Null).await
    }

    /// Returns the current state of an operation.
    pub async fn poll(&self, operation: &Value) -> Value {
        self.get(&format!("/v1/{}", operation["name"].as_str().unwrap())).await
    }

    pub fn policies(&self) -> Api<ClusterPolicy> {
        Api::all(self.client.clone())
    }

    pub fn experiments(&self) -> Api<ClusterPolicyExperiment> {
        Api::all(self.client.clone())
    }

    /// Creates a policy and an experiment of it. Returns the name of the experiment and the preconditions that commit it.
    pub async fn create_pair(&self, name: &str) -> (ExperimentName, CommitPreconditions) {
        self.ok(Method::POST, &format!("/v1/policies?policyId=cluster.{name}"), json!({"spec": spec("old")})).await;
        let path = format!("/v1/policies/cluster.{name}/experiments");
        let body = json!({"policy": {"spec": spec("new")}});
        self.ok(Method::POST, &format!("{path}?policyExperimentId={name}"), body).await;
        let name = ExperimentName { policy: format!("cluster.{name}").parse().unwrap(), name: name.to_owned() };
        let etag = self.get(&format!("/v1/{name}")).await["etag"].as_str().unwrap().to_owned();
        (name, CommitPreconditions { etag, parent_etag: None })
    }

    /// Creates a policy and an experiment that is prepared.
    pub async fn create_prepared_pair(&self, name: &str) -> (ExperimentName, CommitPreconditions) {
        let (name, right) = self.create_pair(name).await;
        self.report_initialized(&name, "True", "Prepared", "it works").await;
        (name, right)
    }

    /// Returns the denial message of the policy of the experiment.
    pub async fn message(&self, name: &ExperimentName) -> String {
        let policy = self.get(&format!("/v1/policies/{}", name.policy)).await;
        policy.pointer("/spec/program/cel/validations/0/message").unwrap().as_str().unwrap().to_owned()
    }

    /// Changes the denial message of the experiment, past the REST API.
    pub async fn edit(&self, name: &ExperimentName, message: &str) {
        let patch = json!({"spec": {"policy": {"program": spec(message)["program"]}}});
        self.experiments().patch(&name.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Changes the denial message of the policy, past the REST API.
    pub async fn edit_policy(&self, name: &ExperimentName, message: &str) {
        let patch = json!({"spec": {"program": spec(message)["program"]}});
        self.policies().patch(name.policy.name(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn status(&self, name: &ExperimentName) -> ExperimentStatus {
        self.experiments().get(&name.name).await.unwrap().status.unwrap_or_default()
    }

    /// Returns the intent of a commit in the status of the experiment.
    pub async fn intent(&self, name: &ExperimentName) -> Option<CommitIntent> {
        self.status(name).await.commit
    }

    /// Writes these fields of the status of the experiment, as the operator does.
    pub async fn report(&self, name: &ExperimentName, fields: Value) {
        let patch = Patch::Merge(json!({"status": fields}));
        self.experiments().patch_status(&name.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Writes these fields of the status of the experiment's policy, as the operator does.
    pub async fn report_policy(&self, name: &ExperimentName, fields: Value) {
        let patch = Patch::Merge(json!({"status": fields}));
        self.policies().patch_status(name.policy.name(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Reports the preparation of the current version.
    pub async fn report_initialized(&self, name: &ExperimentName, status: &str, reason: &str, message: &str) {
        self.report_condition(name, "Initialized", status, reason, message).await;
    }

    /// Reports a condition of the current version, and no other condition.
    pub async fn report_condition(
        &self,
        name: &ExperimentName,
        type_: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) {
        let generation = self.experiments().get(&name.name).await.unwrap().metadata.generation.unwrap();
        let condition = fixtures::condition(type_, status, reason, message, generation);
        self.report(name, json!({"conditions": [condition]})).await;
    }
}
