//! `examples/programs/cel.yaml`, asked about recorded reviews and what they could have been.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that fails says so")]

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

/// The verdict on the recorded Pod with these images and labels.
async fn verdict(image: &str, labels: &Value, memory: &str) -> Verdict {
    let policy: Value = serde_yaml::from_str(&example("programs/cel.yaml")).unwrap();
    let spec: PolicySpec = serde_json::from_value(policy["spec"].clone()).unwrap();
    assert!(check("spec", &spec).is_empty(), "{:?}", check("spec", &spec));
    let Program::Cel(cel) = &spec.program else { panic!("it is CEL") };
    let program = compile_cel(cel, &spec.settings).unwrap();
    let mut review: Value = serde_json::from_str(&example("reviews/pod-create.json")).unwrap();
    let object = &mut review["request"]["object"];
    object["metadata"]["labels"] = labels.clone();
    object["spec"]["containers"] = json!([{"name": "web", "image": image, "resources": {"limits": {"memory": memory}}}, {"name": "b", "image": "registry.example.com/b"}]);
    let review = Review::admission(Bytes::from(review.to_string())).unwrap();
    program.evaluate(&review, Deadline::after(Duration::from_mins(1))).await.unwrap()
}

#[tokio::test]
async fn the_example_changes_and_decides() {
    let good = "registry.example.com/web:1";
    let untouched = verdict(good, &json!({"team": "a"}), "1Gi").await;
    assert_eq!((untouched.allowed, untouched.patch), (true, None));
    assert_eq!(untouched.audit_annotations["team"], "a");

    let labelled = verdict(good, &json!({"app": "web"}), "1Gi").await;
    let patch = serde_json::to_value(labelled.patch.unwrap()).unwrap();
    assert_eq!(patch, json!([{"op": "add", "path": "/metadata/labels/team", "value": "unknown"}]));
    assert_eq!(labelled.audit_annotations["team"], "unknown", "annotations see the changed object");

    for (image, team, memory, message) in [
        ("docker.io/web:1", "a", "1Gi", "images must come from registry.example.com, not docker.io/web:1"),
        (good, "a", "5Gi", "a container may have at most 4Gi of memory"),
        (good, "-", "1Gi", "the label team is not valid"),
    ] {
        let denied = verdict(image, &json!({"team": team}), memory).await;
        assert_eq!((denied.allowed, denied.message.as_deref()), (false, Some(message)));
    }
}
