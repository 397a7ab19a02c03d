//! The example policies, as real compilers built them.

use std::path::Path;
use std::sync::LazyLock;

use proviso_core::{Review, Verdict};
use proviso_engines::SettingsError;
use proviso_engines::wasm::ExecutionMode::{self, Gatekeeper, Opa, Wasi};
use proviso_engines::wasm::{Config, Engine, Program};
use serde_json::{Value, json};

use super::guest::{load, long_deadline};

/// An engine with a larger memory limit, because Rust reserves a stack of 1 MiB in the memory of a command.
static ENGINE: LazyLock<Engine> =
    LazyLock::new(|| Engine::new(Config { memory_limit: 16 << 20, concurrency: 8 }).unwrap());

fn program(policy: &str, mode: ExecutionMode, settings: &Value) -> Program {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let wasm = std::fs::read(folder.join(policy).join(format!("{policy}.wasm"))).unwrap();
    let module = load(&ENGINE, &wasm).unwrap();
    let mode = module.mode(Some(mode)).unwrap();
    Program::new(module, settings.to_string().into_bytes()).in_mode(mode)
}

fn creation(kind: &str, spec: &Value) -> Review {
    let request = json!({
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "object": {"metadata": {"name": "shop"}, "spec": spec},
    });
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    Review::admission(review.to_string().into()).unwrap()
}

async fn evaluate(program: &Program, kind: &str, spec: Value) -> Verdict {
    program.evaluate(&creation(kind, &spec), long_deadline()).await.unwrap()
}

#[tokio::test]
async fn service_types_is_an_opa_policy() {
    let program = program("service-types", Opa, &json!({"allowedTypes": ["ClusterIP", "NodePort"]}));
    assert_eq!(evaluate(&program, "Service", json!({"type": "NodePort"})).await, Verdict::allow());
    let denial = evaluate(&program, "Service", json!({"type": "LoadBalancer"})).await;
    let message = "a Service of type LoadBalancer is not allowed here, only ClusterIP, NodePort";
    assert_eq!(denial, Verdict { code: Some(403), ..Verdict::deny(message) });
    let denial = evaluate(&program, "Service", json!({"externalIPs": ["192.0.2.1"]})).await;
    assert!(denial.message.unwrap().starts_with("the external address 192.0.2.1 is not allowed"));
}

#[tokio::test]
async fn service_types_has_default_settings() {
    let program = program("service-types", Opa, &json!({}));
    assert_eq!(evaluate(&program, "Service", json!({"type": "ClusterIP"})).await, Verdict::allow());
    assert!(!evaluate(&program, "Service", json!({"type": "NodePort"})).await.allowed);
}

#[tokio::test]
async fn required_probes_is_a_gatekeeper_policy() {
    let settings = json!({"probes": ["livenessProbe", "readinessProbe"]});
    let program = program("required-probes", Gatekeeper, &settings);
    let probe = json!({"httpGet": {"path": "/", "port": 80}});
    let whole = json!({"name": "a", "livenessProbe": probe, "readinessProbe": probe});
    assert_eq!(evaluate(&program, "Pod", json!({"containers": [whole]})).await, Verdict::allow());
    let half = json!({"name": "b", "livenessProbe": probe});
    let denial = evaluate(&program, "Deployment", json!({"template": {"spec": {"containers": [whole, half]}}})).await;
    assert_eq!(denial, Verdict::deny("container b of Deployment shop has no readinessProbe"));
    let denial = evaluate(&program, "Pod", json!({"containers": [{"name": "c"}]})).await;
    assert_eq!(denial.causes.len(), 2);
}

#[tokio::test]
async fn approved_regions_is_a_command_for_raw_requests() {
    let settings = json!({"regions": {"production": ["eu-1"], "test": ["eu-1", "us-1"]}});
    let program = program("approved-regions", Wasi, &settings);
    assert_eq!(program.validate_settings(long_deadline()).await, Ok(()));
    let evaluate = async |environment: &str, region: &str| {
        let body = json!({"request": {"uid": "u", "environment": environment, "region": region}});
        program.evaluate(&Review::raw(body.to_string().into()).unwrap(), long_deadline()).await.unwrap()
    };
    assert_eq!(evaluate("test", "us-1").await, Verdict::allow());
    let denial = Verdict { code: Some(403), ..Verdict::deny("production runs in eu-1, not in us-1") };
    assert_eq!(evaluate("production", "us-1").await, denial);
}

#[tokio::test]
async fn approved_regions_explains_invalid_settings_and_requests() {
    let empty = program("approved-regions", Wasi, &json!({"regions": {"test": []}}));
    let refused = empty.validate_settings(long_deadline()).await;
    assert_eq!(refused, Err(SettingsError::Refused("`regions.test` is empty".into())));
    let review = Review::raw(br#"{"request":{"region":"eu-1"}}"#.as_slice().into()).unwrap();
    let error = empty.evaluate(&review, long_deadline()).await.unwrap_err().to_string();
    let message = "the policy exited with code 1: cannot read the request: missing field `environment`";
    assert!(error.contains(message), "{error}");
}

#[tokio::test]
async fn consecutive_evaluations_share_no_state() {
    let program = program("service-types", Opa, &json!({}));
    for round in 0..50 {
        let kind = if round % 2 == 0 { "ClusterIP" } else { "NodePort" };
        assert_eq!(evaluate(&program, "Service", json!({"type": kind})).await.allowed, kind == "ClusterIP", "{round}");
    }
}
