//! The merge of two constraints on one field.

use super::*;

/// Returns the merged constraint, or the reason of the conflict.
fn merge(first: &Value, second: &Value) -> Result<Value, String> {
    let outcome = evaluate(json!({}), &[constrain("x", first.clone()), constrain("x", second.clone())]);
    match outcome.decision {
        Decision::Approved => Ok(outcome.constraints["x"].clone()),
        Decision::Conflict(conflict) => {
            assert_eq!((conflict.policy.policy.name(), conflict.policy.generation), ("p2", 102));
            assert_eq!((conflict.other.policy.name(), conflict.other.generation), ("p1", 101));
            assert_eq!(conflict.field.unwrap().to_string(), "x");
            Err(conflict.reason)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_keyword_is_tightened() {
    let cases = [
        (json!({"const": 1}), json!({"const": 1.0}), json!({"const": 1})),
        (json!({"enum": [1, 2, 3]}), json!({"enum": [3, 2.0, 5]}), json!({"enum": [2, 3]})),
        (json!({"enum": ["a", "b"]}), json!({"enum": ["b", "c"]}), json!({"enum": ["b"]})),
        (json!({"minimum": 1}), json!({"minimum": 2}), json!({"minimum": 2})),
        (json!({"maximum": 8}), json!({"maximum": 4.5}), json!({"maximum": 4.5})),
        (json!({"exclusiveMinimum": 1}), json!({"exclusiveMinimum": 1}), json!({"exclusiveMinimum": 1})),
        (json!({"exclusiveMaximum": 8}), json!({"exclusiveMaximum": 7}), json!({"exclusiveMaximum": 7})),
        (json!({"minLength": 1}), json!({"minLength": 2}), json!({"minLength": 2})),
        (json!({"maxLength": 8}), json!({"maxLength": 7}), json!({"maxLength": 7})),
        (json!({"minItems": 1}), json!({"minItems": 2}), json!({"minItems": 2})),
        (json!({"maxItems": 8}), json!({"maxItems": 7}), json!({"maxItems": 7})),
        (json!({"minProperties": 1}), json!({"minProperties": 2}), json!({"minProperties": 2})),
        (json!({"maxProperties": 8}), json!({"maxProperties": 7}), json!({"maxProperties": 7})),
        (json!({"multipleOf": 2}), json!({"multipleOf": 6}), json!({"multipleOf": 6})),
        (json!({"multipleOf": 0.1}), json!({"multipleOf": 0.3}), json!({"multipleOf": 0.3})),
        (json!({"uniqueItems": false}), json!({"uniqueItems": true}), json!({"uniqueItems": true})),
        (json!({"type": "number"}), json!({"type": "integer"}), json!({"type": "integer"})),
        (json!({"type": "integer"}), json!({"type": ["number", "null"]}), json!({"type": "integer"})),
        (json!({"type": ["string", "null"]}), json!({"type": ["null", "string"]}), json!({"type": ["null", "string"]})),
        (json!({"required": ["a"]}), json!({"required": ["b", "a"]}), json!({"required": ["a", "b"]})),
        (json!({"pattern": "^a"}), json!({"pattern": "b$"}), json!({"pattern": "^a", "allOf": [{"pattern": "b$"}]})),
        (json!({"minimum": 1}), json!({"maximum": 4}), json!({"minimum": 1, "maximum": 4})),
        (json!({"title": "A", "minimum": 1}), json!({"title": "B"}), json!({"title": "A", "minimum": 1})),
        (json!(true), json!({"minimum": 1}), json!({"minimum": 1})),
    ];
    for (first, second, merged) in cases {
        let result = merge(&first, &second).unwrap();
        let sorted = |value: &Value| {
            let mut value = value.clone();
            if let Some(types) = value.get_mut("type").and_then(Value::as_array_mut) {
                types.sort_by_key(ToString::to_string);
            }
            value
        };
        assert_eq!(sorted(&result), sorted(&merged), "{first} {second}");
        let values = (-1..10).map(|number| json!(number)).chain([
            json!(4.4),
            json!(4.6),
            json!(""),
            json!("a"),
            json!("ab"),
            json!("b"),
            json!("a".repeat(8)),
            json!(["a", "a"]),
            json!([1]),
            json!(vec![1; 8]),
            json!({"a": 1}),
            json!({"a": 1, "b": 1}),
            json!({"a": 1, "b": 1, "c": 1}),
            json!(true),
        ]);
        for value in values {
            let results = [constrain("x", first.clone()), constrain("x", second.clone()), patch(json!({"x": value}))];
            let is_valid = |schema: &Value| jsonschema::draft202012::is_valid(schema, &value);
            let is_allowed = evaluate(json!({}), &results).decision.is_allowed();
            assert_eq!(is_allowed, is_valid(&first) && is_valid(&second), "{first} {second} {value}");
        }
    }
}

#[test]
fn keywords_without_a_rule_hold_together() {
    let first = json!({"maximum": 9, "if": {"minimum": 5}, "then": {"multipleOf": 5}});
    let second = json!({"maximum": 8, "not": {"const": 3}});
    let all_of = json!([{"if": {"minimum": 5}, "then": {"multipleOf": 5}}, {"not": {"const": 3}}]);
    assert_eq!(merge(&first, &second).unwrap(), json!({"maximum": 8, "allOf": all_of}));
    // `properties` beside `additionalProperties` would allow what one of the two forbids.
    let first = json!({"properties": {"a": {}}, "additionalProperties": false});
    let second = json!({"properties": {"b": {"minimum": 1}}});
    assert_eq!(merge(&first, &second).unwrap(), json!({"allOf": [first, second]}));
}

#[test]
fn references_of_merged_constraints_still_resolve() {
    let first = json!({"$ref": "#/$defs/positive", "$defs": {"positive": {"minimum": 1}}});
    let second = json!({"$ref": "#/$defs/small", "$defs": {"small": {"maximum": 9}}});
    let merged = merge(&first, &second).unwrap();
    let validator = jsonschema::draft202012::new(&merged).unwrap();
    for (value, is_valid) in [(0, false), (5, true), (10, false)] {
        assert_eq!(validator.is_valid(&json!(value)), is_valid, "{merged}");
    }
}

#[test]
fn a_looser_or_contradicting_constraint_is_a_conflict_that_names_both_policies() {
    let cases = [
        (json!({"const": 1}), json!({"const": 2}), "contradicts"),
        (json!({"const": null}), json!({"const": false}), "contradicts"),
        (json!({"enum": [1, 2]}), json!({"enum": [3]}), "no value in common"),
        (json!({"minimum": 2}), json!({"minimum": 1}), "minimum 1 would loosen minimum 2"),
        (json!({"maximum": 4}), json!({"maximum": 10}), "would loosen"),
        (json!({"exclusiveMinimum": 2}), json!({"exclusiveMinimum": 1}), "would loosen"),
        (json!({"exclusiveMaximum": 2}), json!({"exclusiveMaximum": 3}), "would loosen"),
        (json!({"minLength": 2}), json!({"minLength": 1}), "would loosen"),
        (json!({"maxLength": 2}), json!({"maxLength": 3}), "would loosen"),
        (json!({"minItems": 2}), json!({"minItems": 1}), "would loosen"),
        (json!({"maxItems": 2}), json!({"maxItems": 3}), "would loosen"),
        (json!({"minProperties": 2}), json!({"minProperties": 1}), "would loosen"),
        (json!({"maxProperties": 2}), json!({"maxProperties": 3}), "would loosen"),
        (json!({"multipleOf": 4}), json!({"multipleOf": 2}), "is not a multiple of"),
        (json!({"multipleOf": 4}), json!({"multipleOf": 6}), "is not a multiple of"),
        (json!({"uniqueItems": true}), json!({"uniqueItems": false}), "would loosen"),
        (json!({"type": "string"}), json!({"type": ["integer", "null"]}), "no type in common"),
        (json!({"minimum": 5}), json!({"maximum": 4}), "no value satisfies"),
        (json!({"maximum": 4}), json!({"minimum": 5}), "no value satisfies"),
        (json!({"exclusiveMinimum": 5}), json!({"maximum": 5}), "no value satisfies"),
        (json!({"minimum": 5}), json!({"exclusiveMaximum": 5}), "no value satisfies"),
        (json!({"minLength": 5}), json!({"maxLength": 4}), "no value satisfies"),
        (json!({"minItems": 5}), json!({"maxItems": 4}), "no value satisfies"),
        (json!({"maximum": 4}), json!({"const": 5}), "no value of const satisfies the constraint of the other policy"),
        (json!({"const": 5}), json!({"maximum": 4}), "no value of const satisfies the constraint of this policy"),
        (json!({"enum": [5, 6]}), json!({"maximum": 4}), "no value of enum"),
        (json!({"pattern": "^a"}), json!({"enum": ["b", "c"]}), "no value of enum"),
        (json!({"const": 1}), json!({"enum": [2, 3]}), "no value of"),
        (json!({"not": {"const": 1}}), json!({"const": 1}), "no value of const"),
        (json!({"maximum": 4, "not": {"const": 3}}), json!({"maximum": 5, "not": {"const": 2}}), "would loosen"),
    ];
    for (first, second, words) in cases {
        let reason = merge(&first, &second).expect_err(&format!("{first} {second}"));
        assert!(reason.contains(words), "{first} {second}: {reason}");
    }
}

#[test]
fn a_third_policy_conflicts_with_the_policy_that_set_the_keyword() {
    let outcome = evaluate(
        json!({}),
        &[
            constrain("x", json!({"minimum": 1, "maximum": 9})),
            constrain("x", json!({"maximum": 8})),
            constrain("x", json!({"maximum": 9})),
        ],
    );
    assert_conflict(&outcome, "p3", "p2", Some("x"));
    let outcome = evaluate(
        json!({}),
        &[
            constrain("x", json!({"minimum": 1, "maximum": 9})),
            constrain("x", json!({"maximum": 8})),
            constrain("x", json!({"minimum": 0})),
        ],
    );
    assert_conflict(&outcome, "p3", "p1", Some("x"));
}

#[test]
fn two_notations_of_one_field_are_one_field() {
    let outcome =
        evaluate(json!({}), &[constrain("a.b", json!({"minimum": 2})), constrain("/a/b", json!({"minimum": 1}))]);
    assert_conflict(&outcome, "p2", "p1", Some("a.b"));
}
