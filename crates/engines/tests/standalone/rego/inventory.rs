//! Policies that read other objects, and policies with several modules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proviso_engines::host::{FixedObjects, Host, HostCall, HostFuture, Objects, Resource};
use proviso_engines::rego::{Dialect, Program};
use proviso_engines::{CompileError, Deadline, EvaluationError};
use serde_json::{Value, json};

use super::{ample, compile, review};

const UNIQUE_HOST: &str = r#"package uniquehost
violation[{"msg": msg}] {
  host := input.review.object.spec.host
  other := data.inventory.namespace[namespace][version]["Ingress"][name]
  startswith(version, "networking.k8s.io/")
  other.spec.host == host
  msg := sprintf("%v is the host of %v/%v", [host, namespace, name])
}
violation[{"msg": msg}] { data.inventory.cluster["v1"]["Namespace"][msg].metadata.labels.closed }"#;

fn ingress(namespace: &str, name: &str, host: &str) -> Arc<Value> {
    Arc::new(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"namespace": namespace, "name": name}, "spec": {"host": host},
    }))
}

fn objects(ingresses: Vec<Arc<Value>>) -> Arc<Objects> {
    let namespace = json!({"metadata": {"name": "prod", "labels": {"closed": true}}});
    let resource = |api_version: &str, kind: &str, is_namespaced, objects| Resource {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: String::new(),
        is_namespaced,
        objects,
    };
    Arc::new(Objects {
        resources: vec![
            resource("networking.k8s.io/v1", "Ingress", true, ingresses),
            resource("v1", "Namespace", false, vec![Arc::new(namespace)]),
        ],
    })
}

async fn denial(program: &Program, host: &str) -> Option<String> {
    let request = serde_json::Map::from_iter([("object".to_owned(), json!({"spec": {"host": host}}))]);
    program.evaluate(&review(&request), ample()).await.unwrap().message
}

#[tokio::test]
async fn a_policy_reads_the_objects_of_its_host() {
    let program = compile(UNIQUE_HOST).unwrap();
    assert!(program.uses_inventory());
    assert_eq!(denial(&program, "a.example").await, None, "without a host the inventory is empty");
    let fixed = FixedObjects(objects(vec![ingress("web", "main", "a.example"), ingress("web", "other", "b.example")]));
    let program = program.with_host(Arc::new(fixed));
    assert_eq!(denial(&program, "a.example").await.as_deref(), Some("a.example is the host of web/main, prod"));
    assert_eq!(denial(&program, "c.example").await.as_deref(), Some("prod"));
}

/// A host whose objects change. It counts the calls.
#[derive(Debug)]
struct Changing {
    now: std::sync::Mutex<Result<Arc<Objects>, String>>,
    calls: AtomicUsize,
}

impl Host for Changing {
    fn call<'a>(&'a self, call: HostCall<'a>, deadline: Deadline) -> HostFuture<'a, Vec<u8>> {
        Box::pin(std::future::ready(Err(format!("{call:?} by {deadline:?}"))))
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(self.now.lock().unwrap().clone()))
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

#[tokio::test]
async fn changes_of_objects_are_visible_and_a_failing_host_denies() {
    let unchanged = ingress("web", "main", "a.example");
    let host = Arc::new(Changing { now: Ok(objects(vec![Arc::clone(&unchanged)])).into(), calls: AtomicUsize::new(0) });
    let program = compile(UNIQUE_HOST).unwrap().with_host(Arc::clone(&host) as Arc<dyn Host>);
    for _ in 0..3 {
        assert_eq!(denial(&program, "a.example").await.as_deref(), Some("a.example is the host of web/main, prod"));
    }
    *host.now.lock().unwrap() = Ok(objects(vec![unchanged, ingress("dev", "new", "b.example")]));
    assert_eq!(denial(&program, "b.example").await.as_deref(), Some("b.example is the host of dev/new, prod"));
    assert_eq!(denial(&program, "a.example").await.as_deref(), Some("a.example is the host of web/main, prod"));
    *host.now.lock().unwrap() = Ok(objects(Vec::new()));
    assert_eq!(denial(&program, "a.example").await.as_deref(), Some("prod"));
    *host.now.lock().unwrap() = Err("the API server does not answer".to_owned());
    let failed = program.evaluate(&review(&serde_json::Map::new()), ample()).await;
    assert_eq!(failed, Err(EvaluationError::Failed("the API server does not answer".to_owned())));
    assert_eq!(host.calls.load(Ordering::Relaxed), 7);
}

#[tokio::test]
async fn a_policy_without_inventory_does_not_call_the_host() {
    let host = Arc::new(Changing { now: Err("the host was called".to_owned()).into(), calls: AtomicUsize::new(0) });
    let source = "package p\nviolation[{\"msg\": \"m\"}] { input.review.object.spec }";
    let program = compile(source).unwrap().with_host(Arc::clone(&host) as Arc<dyn Host>);
    assert!(!program.uses_inventory());
    assert_eq!(denial(&program, "a").await.as_deref(), Some("m"));
    assert_eq!(host.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_inventory_with_a_too_deep_object_denies() {
    let mut deep = json!(1);
    for _ in 0..300 {
        deep = json!([deep]);
    }
    let object = Arc::new(json!({"metadata": {"name": "deep", "namespace": "a"}, "spec": deep}));
    let program = compile(UNIQUE_HOST).unwrap().with_host(Arc::new(FixedObjects(objects(vec![object]))));
    let failed = program.evaluate(&review(&serde_json::Map::new()), ample()).await.unwrap_err();
    assert!(failed.to_string().contains("the object deep in namespace \"a\" is nested too deep"), "{failed}");
}

fn with_libraries(source: &str, libraries: &[&str]) -> Result<Program, CompileError> {
    let libraries: Vec<String> = libraries.iter().map(|library| (*library).to_owned()).collect();
    Program::compile_with(source, &libraries, Dialect::Gatekeeper, None, &json!({"hosts": ["a.example"]}))
}

#[tokio::test]
async fn libraries_can_be_imported() {
    let exempt = "package lib.exempt\nimport data.lib.names\nis_exempt(host) { names.first(input.parameters.hosts) == host }\n\
                  hosts[h] { h := input.parameters.hosts[_] }";
    let names = "package lib.names\nimport rego.v1\nfirst(list) := list[0]\nshout(text) := upper(text) if not f(text)\n\
                 f(text) if text == \"x\"";
    for (import, condition, shout) in [
        ("import data.lib.exempt.is_exempt", "not is_exempt(host)", "data.lib.names.shout"),
        ("import data.lib.exempt as e\nimport data.lib.names.shout", "not e.is_exempt(host)", "shout"),
        ("import data.lib", "not lib.exempt.hosts[host]", "lib.names.shout"),
    ] {
        let source = format!(
            "package p\n{import}\nviolation[{{\"msg\": msg}}] {{\n  host := input.review.object.spec.host\n  {condition}\n  \
             msg := {shout}(host)\n}}"
        );
        let program = with_libraries(&source, &[exempt, names]).unwrap_or_else(|error| panic!("{error}: {source}"));
        assert_eq!(denial(&program, "a.example").await, None, "{source}");
        assert_eq!(denial(&program, "b").await.as_deref(), Some("B"), "{source}");
    }
}

#[test]
fn libraries_are_checked_like_policies() {
    let good = "package p\nimport data.lib.a\nviolation[{\"msg\": \"m\"}] { a.f(1) }";
    for (source, library, expected) in [
        (good, "package lib.a\nf(x) {\n  nosuch(x)\n}", "libs[0], line 3, column 3: there is no function nosuch"),
        (good, "package lib.a\nf(x) { g(x) }\ng(x) { f(x) }", "needs itself"),
        (good, "package lib.a\nf(x) { x := := 1 }", "libs[0]:2:"),
        (good, "package other.a\nf(x) { x }", "line 2, column 1: data.lib.a is not available"),
        (
            "package p\nviolation[{\"msg\": \"m\"}] { true }",
            "package p\nviolation[{\"msg\": \"m\"}] { false }",
            "libs[0], line 1, column 1: is of package p: libraries are packages below `lib`",
        ),
        (good, "package lib.b\nf(x) { x }", "data.lib.a is not available"),
        (good, "package lib.a\nf(x, y) { x }", "takes 2 arguments"),
        (good, "package lib.a\nf = 1", "a.f is a rule, not a function"),
    ] {
        let error = with_libraries(source, &[library]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
