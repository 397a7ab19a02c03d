//! Verdicts of `examples/quickstart/team-pods.yaml` on variants of a recorded review.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::{Review, Verdict};
use proviso_crds::{PolicySpec, Program};
use proviso_engines::Deadline;
use proviso_programs::{check, compile_cel};
use serde_json::{Value, json};

fn example(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)).unwrap()
}

/// Returns the verdict on the recorded Pod with other labels, and with other `resources.limits` in its first container.
async fn verdict(labels: &Value, limits: &Value) -> Verdict {
    let policy: Value = serde_yaml::from_str(&example("quickstart/team-pods.yaml")).unwrap();
    let spec: PolicySpec = serde_json::from_value(policy["spec"].clone()).unwrap();
    assert!(check("spec", &spec).is_empty(), "{:?}", check("spec", &spec));
    let Program::Cel(cel) = &spec.program else { panic!("the program of the example is not CEL") };
    let program = compile_cel(cel, &spec.settings).unwrap();
    let mut review: Value = serde_json::from_str(&example("reviews/pod-create.json")).unwrap();
    let object = &mut review["request"]["object"];
    object["metadata"]["labels"] = labels.clone();
    object["spec"]["containers"][0]["resources"]["limits"] = limits.clone();
    let review = Review::admission(Bytes::from(review.to_string())).unwrap();
    program.evaluate(&review, Deadline::after(Duration::from_mins(1))).await.unwrap()
}

#[tokio::test]
async fn the_example_mutates_and_denies_pods() {
    let good = json!({"memory": "1Gi"});
    let untouched = verdict(&json!({"team": "a"}), &good).await;
    assert_eq!((untouched.allowed, untouched.patch), (true, None));
    assert_eq!(untouched.audit_annotations["team"], "a");

    let labelled = verdict(&json!({"app": "web"}), &good).await;
    let patch = serde_json::to_value(labelled.patch.unwrap()).unwrap();
    assert_eq!(patch, json!([{"op": "add", "path": "/metadata/labels/team", "value": "unknown"}]));
    assert_eq!(labelled.audit_annotations["team"], "unknown", "annotations see the changed object");

    for (team, limits, message) in [
        ("a", json!({"cpu": "1"}), "these containers have no limit of memory: api"),
        ("a", json!({"memory": "5Gi"}), "a container may have at most 4Gi of memory"),
        ("-", good, "the label team is not valid"),
    ] {
        let denied = verdict(&json!({"team": team}), &limits).await;
        assert_eq!((denied.allowed, denied.message.as_deref()), (false, Some(message)));
    }
}
