//! Constraints that cannot be compiled, and references within constraints.

use super::*;

fn compile(schema: Value) -> Outcome {
    evaluate(json!({}), &[constrain("x", schema)])
}

#[test]
fn an_invalid_schema_is_refused_with_the_policy_and_the_field() {
    let cases = [
        (json!({"minimum": "4"}), "is not a JSON Schema"),
        (json!({"type": "text"}), "is not a JSON Schema"),
        (json!({"required": "a"}), "is not a JSON Schema"),
        (json!({"pattern": 5}), "is not a JSON Schema"),
        (json!({"pattern": "("}), "has a pattern that cannot be used"),
        (json!({"pattern": "^(?=a)"}), "Look-around and back-references are not supported"),
        (json!({"pattern": r"(a)\1"}), "has a pattern that cannot be used"),
        (json!({"patternProperties": {"(?!a)": {}}}), "has a pattern that cannot be used"),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#"}), "only draft 2020-12"),
    ];
    for (schema, words) in cases {
        assert_failed(&compile(schema.clone()), "p1", "ResultInvalid", words);
        assert_failed(&compile(schema), "p1", "ResultInvalid", "the constraint of the field `x`");
    }
}

#[test]
fn a_reference_is_never_fetched() {
    for reference in [
        "https://example.com/schema.json",
        "file:///etc/passwd",
        "other.json",
        "#/$defs/missing",
        "#missing",
        "urn:uuid:1",
    ] {
        let outcome = compile(json!({"$ref": reference}));
        assert_failed(&outcome, "p1", "ResultInvalid", "has a reference that does not resolve");
        let outcome = compile(json!({"$dynamicRef": reference}));
        assert_failed(&outcome, "p1", "ResultInvalid", "has a reference that does not resolve");
    }
}

#[test]
fn a_reference_that_leads_back_to_itself_is_refused() {
    let cases = [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "null"}]}}}),
        json!({"$ref": "#n", "$defs": {"n": {"$anchor": "n", "not": {"$ref": "#n"}}}}),
        json!({"$dynamicAnchor": "n", "if": {"$dynamicRef": "#n"}}),
    ];
    for schema in cases {
        assert_failed(&compile(schema), "p1", "ResultInvalid", "cyclic reference");
    }
}

#[test]
fn a_recursive_reference_of_a_tree_is_followed() {
    let trees = [
        json!({"properties": {"value": {"type": "integer"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}}),
        json!({"$dynamicAnchor": "n", "properties": {"value": {"type": "integer"}}, "additionalProperties": {"$dynamicRef": "#n"}}),
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"value": {"type": "integer"}, "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}}}}),
    ];
    for schema in trees {
        let tree = |value: Value| json!({"x": {"value": 1, "left": {"value": 2, "left": {"value": value}}}});
        assert_allowed(&evaluate(tree(json!(3)), &[constrain("x", schema.clone())]), &tree(json!(3)));
        assert_eq!(evaluate(tree(json!("3")), &[constrain("x", schema)]).decision.status(), "REJECTED");
    }
}

#[test]
fn a_reference_resolves_against_the_id_of_its_schema() {
    let bar = json!({"$id": "nested/bar.json", "type": "integer"});
    let foo = json!({"$id": "nested/foo.json", "$ref": "bar.json"});
    let schema =
        json!({"$id": "https://example.com/base.json", "$ref": "nested/foo.json", "$defs": {"foo": foo, "bar": bar}});
    assert_eq!(evaluate(json!({"x": 1}), &[constrain("x", schema.clone())]).decision, Decision::Approved);
    assert_eq!(evaluate(json!({"x": "1"}), &[constrain("x", schema)]).decision.status(), "REJECTED");
}

#[test]
fn a_reference_to_the_meta_schema_is_followed() {
    let schema = json!({"$ref": "https://json-schema.org/draft/2020-12/schema"});
    let payload = |minimum: Value| json!({"x": {"properties": {"a": {"minimum": minimum}}}});
    assert_eq!(evaluate(payload(json!(1)), &[constrain("x", schema.clone())]).decision, Decision::Approved);
    assert_eq!(evaluate(payload(json!("1")), &[constrain("x", schema)]).decision.status(), "REJECTED");
}

#[test]
fn a_schema_that_would_take_exponential_time_is_refused() {
    // Each definition refers twice to the next one.
    let definitions: serde_json::Map<_, _> = (0..40)
        .map(|number| {
            let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
            (format!("d{number}"), json!({"allOf": [next, next]}))
        })
        .chain([("d40".to_owned(), json!({"minimum": 1}))])
        .collect();
    assert_failed(
        &compile(json!({"$ref": "#/$defs/d0", "$defs": definitions})),
        "p1",
        "ResultInvalid",
        "too large after each $ref",
    );
    // Each level of a value would be validated twice as often as the level above.
    let twice = [
        json!({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}),
        json!({"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}),
        json!({"items": {"$ref": "#"}, "contains": {"$ref": "#"}}),
        json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#/properties/a"}}}]}}}),
    ];
    for schema in twice {
        assert_failed(&compile(schema), "p1", "ResultInvalid", "more than once");
    }
    // A validator evaluates the subschemas of a schema with `unevaluatedProperties` again to find the evaluated properties.
    let nested = (0..20)
        .fold(json!({"properties": {"a": {}}}), |schema, _| json!({"allOf": [schema], "unevaluatedProperties": false}));
    assert_failed(&compile(nested), "p1", "ResultInvalid", "too large after each $ref");
    let one = json!({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false});
    assert_eq!(evaluate(json!({"x": {"a": 1}}), &[constrain("x", one.clone())]).decision, Decision::Approved);
    assert_eq!(evaluate(json!({"x": {"b": 1}}), &[constrain("x", one)]).decision.status(), "REJECTED");
}

#[test]
fn a_catastrophic_pattern_is_validated_in_linear_time() {
    // A backtracking engine needs 2^1000 steps.
    let outcome =
        evaluate(json!({"x": format!("{}!", "a".repeat(1000))}), &[constrain("x", json!({"pattern": "^(a+)+$"}))]);
    assert_eq!(outcome.decision.status(), "REJECTED");
}

#[test]
fn formats_are_annotations() {
    let outcome = evaluate(json!({"x": "nobody"}), &[constrain("x", json!({"format": "email"}))]);
    assert_eq!(outcome.decision, Decision::Approved);
}
