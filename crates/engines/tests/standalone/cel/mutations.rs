//! Mutations of the object.

use std::time::Duration;

use bytes::Bytes;
use proviso_core::{Review, Verdict};
use proviso_engines::cel::{Mutation, PatchType, Program, Source, Validation, Variable};
use proviso_engines::{CompileError, Deadline, EvaluationError};
use serde_json::{Value, json};

fn object() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "web", "image": "a"}], "replicas": 1},
    })
}

fn review(object: &Value) -> Review {
    let request = json!({
        "uid": "u", "operation": "CREATE", "name": "web", "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "alice"}, "object": object, "oldObject": null,
    });
    Review::admission(Bytes::from(json!({"request": request}).to_string())).unwrap()
}

fn compile(mutations: &[(PatchType, &str)], condition: &str) -> Result<Program, CompileError> {
    let mutations = mutations
        .iter()
        .map(|(patch_type, expression)| Mutation { patch_type: *patch_type, expression: (*expression).into() });
    let source = Source {
        variables: vec![
            Variable { name: "labels".into(), expression: "object.metadata.?labels.orValue({})".into() },
            Variable { name: "side".into(), expression: "Object.spec.containers{name: 'side', image: 'b'}".into() },
        ],
        validations: vec![Validation { expression: condition.into(), ..Validation::default() }],
        mutations: mutations.collect(),
        ..Source::default()
    };
    Program::compile(source, &Value::Null)
}

async fn verdict(mutations: &[(PatchType, &str)], condition: &str) -> Result<Verdict, EvaluationError> {
    let program = compile(mutations, condition).unwrap();
    program.evaluate(&review(&object()), Deadline::after(Duration::from_mins(1))).await
}

/// Returns the object after the mutations.
async fn changed(mutations: &[(PatchType, &str)]) -> Value {
    let patch = verdict(mutations, "true").await.unwrap_or_else(|error| panic!("{mutations:?}: {error}")).patch;
    let mut object = object();
    json_patch::patch(&mut object, &patch.unwrap()).unwrap();
    object
}

use PatchType::{ApplyConfiguration, JsonPatch};

#[tokio::test]
async fn apply_configurations_are_merged_into_the_object() {
    let mut wanted = object();
    wanted["metadata"]["labels"] = json!({"a": "b"});
    wanted["spec"]["containers"] =
        json!([{"name": "web", "image": "a", "imagePullPolicy": "Always"}, {"name": "side", "image": "b"}]);
    let expression = "Object{metadata: Object.metadata{labels: {'a': 'b'}, ?annotations: optional.none()}, \
                      spec: Object.spec{containers: [Object.spec.containers{name: 'web', imagePullPolicy: 'Always'}, variables.side]}}";
    assert_eq!(changed(&[(ApplyConfiguration, expression)]).await, wanted);
    // A loop may create the list.
    let loops = "Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{name: c.name, image: 'r/' + c.image})}}";
    assert_eq!(
        changed(&[(ApplyConfiguration, loops)]).await["spec"]["containers"],
        json!([{"name": "web", "image": "r/a"}])
    );
}

#[tokio::test]
async fn patches_are_applied_in_order() {
    let first = "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}, JSONPatch{op: 'test', path: '/spec/replicas', value: 1}]";
    let second = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x.y/z~'), value: variables.labels.a + '!'}, \
                   JSONPatch{op: 'remove', path: '/spec/replicas'}, JSONPatch{op: 'copy', from: '/metadata/name', path: '/spec/nodeName'}]";
    let object = changed(&[(JsonPatch, first), (JsonPatch, second)]).await;
    assert_eq!(object["metadata"]["labels"], json!({"a": "b", "x.y/z~": "b!"}));
    assert_eq!((object["spec"].get("replicas"), &object["spec"]["nodeName"]), (None, &json!("web")));
}

#[tokio::test]
async fn type_keys_are_removed_from_the_object() {
    for value in
        ["Object.spec.selector{matchLabels: Object.spec.selector.matchLabels{a: 'b'}}", "{'matchLabels': {'a': 'b'}}"]
    {
        let patch = format!("[JSONPatch{{op: 'add', path: '/spec/selector', value: {value}}}]");
        assert_eq!(
            changed(&[(JsonPatch, &patch)]).await["spec"]["selector"],
            json!({"matchLabels": {"a": "b"}}),
            "{value}"
        );
    }
    // A key `@type` of a map in the expression stays, because Envoy configuration needs it.
    let any = "{'@type': 'type.googleapis.com/a.B'}";
    let wanted = json!({"@type": "type.googleapis.com/a.B"});
    let patch = format!("[JSONPatch{{op: 'add', path: '/spec/any', value: {any}}}]");
    assert_eq!(changed(&[(JsonPatch, &patch)]).await["spec"]["any"], wanted);
    let apply = format!("Object{{spec: Object.spec{{any: {any}}}}}");
    assert_eq!(changed(&[(ApplyConfiguration, &apply)]).await["spec"]["any"], wanted);
}

#[tokio::test]
async fn validations_read_the_mutated_object() {
    let labels = [(ApplyConfiguration, "Object{metadata: Object.metadata{labels: {'a': 'b'}}}")];
    assert!(verdict(&labels, "object.metadata.labels.a == 'b'").await.unwrap().patch.is_some());
    let denied = verdict(&labels, "!has(object.metadata.labels)").await.unwrap();
    assert!(!denied.allowed && denied.patch.is_none(), "{denied:?}");
}

#[tokio::test]
async fn mutations_without_a_change_give_no_patch() {
    for (patch_type, expression) in [
        (ApplyConfiguration, "Object{spec: Object.spec{replicas: 1}}"),
        (ApplyConfiguration, "Object{}"),
        (JsonPatch, "[]"),
    ] {
        assert_eq!(verdict(&[(patch_type, expression)], "true").await, Ok(Verdict::allow()), "{expression}");
    }
    let program = compile(&[(JsonPatch, "[JSONPatch{op: 'remove', path: '/spec'}]")], "object == null").unwrap();
    let nothing = program.evaluate(&review(&Value::Null), Deadline::after(Duration::from_mins(1))).await;
    assert_eq!(nothing, Ok(Verdict::allow()), "without an object there is nothing to change");
}

#[tokio::test]
async fn mutations_that_cannot_be_applied_deny() {
    for (patch_type, expression, part) in [
        (ApplyConfiguration, "{'spec': {'replicas': 2}}", "not an Object"),
        (ApplyConfiguration, "Object.spec{replicas: 2}", "not an Object"),
        (
            ApplyConfiguration,
            "Object{spec: Object.spec{tolerations: [{'key': 'a'}]}}",
            ".spec.tolerations is an atomic list",
        ),
        (
            ApplyConfiguration,
            "Object{spec: Object.spec{replicas: quantity('1')}}",
            "kubernetes.Quantity has no representation in JSON",
        ),
        (JsonPatch, "Object{}", "not a list of JSONPatch"),
        (JsonPatch, "[{'op': 'remove', 'path': '/spec'}]", "not a JSONPatch"),
        (JsonPatch, "[JSONPatch{op: 'remove', path: '/nowhere'}]", "does not apply"),
        (
            JsonPatch,
            "lists.range(40).map(i, JSONPatch{op: 'copy', from: '', path: '/a' + string(i)})",
            "`copy` and `move` add more than",
        ),
        (JsonPatch, "[JSONPatch{op: 'test', path: '/spec/replicas', value: 2}]", "does not apply"),
        (JsonPatch, "[JSONPatch{op: 'add'}]", "`op` and `path`"),
        (JsonPatch, "[JSONPatch{op: 'grow', path: '/spec', value: 1}]", "not valid"),
        (JsonPatch, "[JSONPatch{op: 'move', path: '/spec'}]", "`from`"),
        (JsonPatch, "[JSONPatch{op: 'add', path: '/a', value: object.nowhere}]", "nowhere"),
    ] {
        let error = verdict(&[(patch_type, expression)], "true").await.unwrap_err().to_string();
        assert!(error.contains(part), "{expression}: {error}");
    }
}

#[test]
fn unknown_types_and_fields_are_refused() {
    for (expression, part) in [
        ("Object{spec: Object.status{a: 1}}", "is of type Object.spec"),
        ("Object{spec: Object.spec{a: [Object.spec.b{}]}}", "is of type Object.spec.a"),
        ("Pod{}", "there is no type Pod"),
        ("[JSONPatch{operation: 'add'}]", "no field operation"),
    ] {
        let error = compile(&[(ApplyConfiguration, expression)], "true").unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("line 1"), "{expression}: {error}");
    }
    assert!(
        compile(&[(ApplyConfiguration, "Object{}")], "Object{} == null").is_err(),
        "a validation cannot construct objects"
    );
}
