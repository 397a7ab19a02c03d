//! Properties of chains: no sequence of policies yields a payload or a provider that the constraint of a policy forbids.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::super::path::Located;
use super::*;

const FIELDS: [&str; 8] = ["a", "b", "a.b", "a", "a.b", "b.0", "a.b.c", ""];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (0..4_i64).prop_map(Value::from),
        Just(json!(1.0)),
        prop::sample::select(vec!["", "a", "ab", "b"]).prop_map(Value::from),
        Just(Value::Null),
        Just(Value::Bool(true)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            3 => object(inner.clone()),
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec!["a", "b", "c", "0"]);
    prop::collection::btree_map(key, inner, 0..4)
        .prop_map(|members| Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// Returns a schema of a field: one or two keywords, with and without a rule for merging.
fn schema() -> impl Strategy<Value = Value> {
    let keyword = prop_oneof![
        value().prop_map(|value| json!({ "const": value })),
        prop::collection::vec(value(), 1..3).prop_map(|values| json!({ "enum": values })),
        (0..4).prop_map(|limit| json!({ "minimum": limit })),
        (0..4).prop_map(|limit| json!({ "maximum": limit })),
        (0..4).prop_map(|limit| json!({ "exclusiveMaximum": limit })),
        (1..4).prop_map(|factor| json!({ "multipleOf": factor })),
        (0..3).prop_map(|limit| json!({ "minLength": limit })),
        (0..3).prop_map(|limit| json!({ "maxLength": limit, "minItems": limit })),
        (0..3).prop_map(|limit| json!({ "maxProperties": limit })),
        prop::sample::select(vec!["string", "number", "integer", "object", "array", "null"])
            .prop_map(|kind| json!({ "type": kind })),
        prop::sample::select(vec!["^a", "b$", "."]).prop_map(|pattern| json!({ "pattern": pattern })),
        prop::sample::select(vec!["a", "b", "c"]).prop_map(|key| json!({ "required": [key] })),
        Just(json!({"items": {"type": "integer"}})),
        Just(json!({"if": {"type": "string"}, "then": {"const": "a"}, "else": {"type": ["object", "number"]}})),
        Just(json!({"properties": {"a": {}, "b": {"type": "integer"}}, "additionalProperties": false})),
        Just(json!({"properties": {"c": {"maximum": 2}}})),
        Just(json!({"not": {"const": 2}})),
        Just(json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": ["integer", "object"]}}})),
        Just(json!({"mode": "immutable"})),
        Just(json!(false)),
    ];
    (keyword.clone(), prop::option::weighted(0.2, keyword)).prop_map(|(mut first, second)| {
        if let (Value::Object(first), Some(Value::Object(second))) = (&mut first, second)
            && !first.contains_key("mode")
            && !second.contains_key("mode")
        {
            first.extend(second);
        }
        first
    })
}

/// Returns a patch: often of one field, so that the chain is often allowed.
fn any_patch() -> impl Strategy<Value = Value> {
    let of_one_field = (prop::sample::select(FIELDS.to_vec()), value()).prop_map(|(field, value)| {
        let field: FieldPath = field.parse().unwrap();
        let nested = field.keys().iter().rev().fold(value, |value, key| json!({ key: value }));
        if nested.is_object() { nested } else { json!({ "a": nested }) }
    });
    prop_oneof![3 => of_one_field, 1 => object(value())]
}

prop_compose! {
    fn result()(
        patch in prop::option::of(any_patch()),
        constraints in prop::collection::btree_map(prop::sample::select(FIELDS.to_vec()), schema(), 0..2),
        provider in prop::option::of(prop::sample::select(vec!["aws", "gcp", "ibm"])),
        allow in prop::option::weighted(0.3, prop::collection::btree_set(prop::sample::select(vec!["aws", "gcp", "ibm"]), 1..3)),
        pattern in prop::option::weighted(0.2, prop::sample::select(vec!["^a", "m$", "c"])),
        is_adr: bool,
    ) -> Value {
        let patterns: Vec<_> = pattern.into_iter().collect();
        if is_adr {
            json!({
                "patch": patch, "constraints": constraints,
                "serviceProvider": {"value": provider, "constraints": {"allowList": allow, "patterns": patterns}},
            })
        } else {
            json!({
                "patch": patch, "constraints": constraints, "selected_provider": provider,
                "service_provider_constraints": {"allow_list": allow, "patterns": patterns},
            })
        }
    }
}

/// Returns a payload, and the results of policies that together allow it: each random result that would end the chain is left out.
fn allowed_chain() -> impl Strategy<Value = (Value, Vec<Value>)> {
    (object(value()), prop::collection::vec(result(), 2..9)).prop_map(|(payload, candidates)| {
        let mut results = Vec::new();
        for candidate in candidates {
            results.push(candidate);
            if !evaluate(payload.clone(), &results).decision.is_allowed() {
                results.pop();
            }
        }
        (payload, results)
    })
}

/// Returns the values of the payload that violate the schemas of the trail.
fn violations(outcome: &Outcome) -> Vec<String> {
    let constrained = outcome.trail.iter().flat_map(|entry| &entry.constrained);
    let violated = constrained.filter(|constrained| match constrained.field.locate(&outcome.payload) {
        // The schema is compiled anew, by another function of the crate than the chain calls.
        Located::Present(value) => !jsonschema::draft202012::is_valid(&constrained.constraint, value),
        Located::Absent => false,
        Located::Misplaced { .. } => true,
    });
    violated.map(|constrained| format!("{}: {}", constrained.field, constrained.constraint)).collect()
}

/// Evaluates the chain step by step, and returns the payload before each policy and after the last.
fn payloads(payload: &Value, results: &[Value]) -> Vec<Value> {
    (0..=results.len()).map(|count| evaluate(payload.clone(), &results[..count]).payload).collect()
}

fn find(field: &FieldPath, payload: &Value) -> Option<Value> {
    match field.locate(payload) {
        Located::Present(value) => Some(value.clone()),
        Located::Absent | Located::Misplaced { .. } => None,
    }
}

#[test]
fn random_chains_have_patches_after_constraints() {
    let mut runner = TestRunner::deterministic();
    let mut patched = 0;
    for _ in 0..100 {
        let (payload, results) = allowed_chain().new_tree(&mut runner).unwrap().current();
        let trail = evaluate(payload, &results).trail;
        let constrained = trail.iter().position(|entry| !entry.constrained.is_empty());
        patched += usize::from(
            constrained.is_some_and(|first| trail[first + 1..].iter().any(|entry| !entry.patched.is_empty())),
        );
    }
    assert!(patched > 40, "{patched} of 100");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    // Holes 1 and 3 of the published implementation: patches, values of the caller, and merged keywords.
    #[test]
    fn the_payload_of_an_allowed_request_satisfies_the_constraints_of_all_policies((payload, results) in allowed_chain()) {
        let outcome = evaluate(payload, &results);
        prop_assert!(outcome.decision.is_allowed());
        prop_assert_eq!(violations(&outcome), Vec::<String>::new());
    }

    // Hole 3: what later policies and the caller see is at least as strict as each constraint.
    #[test]
    fn a_merged_constraint_allows_no_value_that_one_of_its_constraints_forbids(
        schemas in prop::collection::vec(schema(), 2..4), values in prop::collection::vec(value(), 8),
    ) {
        let results: Vec<_> = schemas.iter().map(|schema| constrain("x", schema.clone())).collect();
        let outcome = evaluate(json!({}), &results);
        if let Some(merged) = outcome.constraints.get("x").filter(|_| outcome.decision.is_allowed()) {
            let constraints: Vec<_> = outcome.trail.iter().flat_map(|entry| &entry.constrained).collect();
            for value in values {
                let all = constraints.iter().all(|it| jsonschema::draft202012::is_valid(&it.constraint, &value));
                prop_assert_eq!(jsonschema::draft202012::is_valid(merged, &value), all, "{} {}", merged, value);
            }
        }
    }

    // Hole 2: a field that a constraint binds stays, and so do its parents.
    #[test]
    fn a_constrained_field_is_never_removed_by_a_later_policy((payload, results) in allowed_chain()) {
        let outcome = evaluate(payload.clone(), &results);
        if outcome.decision.is_allowed() {
            let payloads = payloads(&payload, &results);
            for (position, entry) in outcome.trail.iter().enumerate() {
                for constrained in &entry.constrained {
                    let keys = constrained.field.keys();
                    let parents = (1..=keys.len()).map(|depth| {
                        keys[..depth].iter().fold(FieldPath::root(), |path, key| path.child(key.as_str()))
                    });
                    for parent in parents {
                        let existed = find(&parent, &payloads[position + 1]);
                        let exists = find(&parent, &outcome.payload);
                        prop_assert!(
                            existed.is_none() || exists.is_some(),
                            "{} was removed after policy {}: {:?}", parent, position + 1, payloads
                        );
                    }
                }
            }
        }
    }

    // Holes 2 and 3: a lock holds the value that the payload has after the policy that locks it.
    #[test]
    fn a_locked_field_keeps_its_value((payload, results) in allowed_chain()) {
        let outcome = evaluate(payload.clone(), &results);
        if outcome.decision.is_allowed() {
            let payloads = payloads(&payload, &results);
            for (position, entry) in outcome.trail.iter().enumerate() {
                for lock in entry.constrained.iter().filter(|constrained| constrained.is_lock) {
                    let locked = find(&lock.field, &payloads[position + 1]);
                    let is_satisfied = |value: &Value| jsonschema::draft202012::is_valid(&lock.constraint, value);
                    if let Some(locked) = locked.filter(is_satisfied) {
                        let value = find(&lock.field, &outcome.payload).unwrap();
                        prop_assert!(super::super::merge::equals(&locked, &value), "{} {}", locked, value);
                    }
                }
            }
        }
    }

    // Hole 4: also a provider that was chosen before a policy constrained providers.
    #[test]
    fn the_provider_of_an_allowed_request_satisfies_the_constraints_of_all_policies((payload, results) in allowed_chain()) {
        let outcome = evaluate(payload, &results);
        if let (true, Some(provider)) = (outcome.decision.is_allowed(), &outcome.provider) {
            for entry in &outcome.trail {
                let ProviderConstraints { allow_list, patterns } = &entry.provider_constraints;
                prop_assert!(allow_list.as_ref().is_none_or(|names| names.contains(provider)));
                prop_assert!(patterns.iter().all(|pattern| regex::Regex::new(pattern).unwrap().is_match(provider)));
            }
            let chosen: BTreeSet<_> = outcome.trail.iter().filter_map(|entry| entry.provider.as_ref()).collect();
            prop_assert!(chosen.contains(provider));
        }
    }

    // Hole 5: names, paths and values of a policy are data. They have no effect on the rest of the chain.
    #[test]
    fn any_result_ends_in_a_decision(results in prop::collection::vec(any_json(), 1..3), payload in object(value())) {
        let outcome = evaluate(payload, &results);
        prop_assert!(outcome.decision.is_allowed() == outcome.decision.message().is_none());
    }

    // Hole 6: a policy that fails to evaluate is not skipped.
    #[test]
    fn a_chain_with_a_failed_evaluation_is_never_allowed((payload, results) in allowed_chain(), position: prop::sample::Index) {
        let position = position.index(results.len() + 1);
        let mut results: Vec<Result<_, _>> = results.into_iter().map(|result| Ok(Some(result))).collect();
        results.insert(position, Err(Failure::new("EvaluationError", "no")));
        let outcome = evaluate_all(payload, &results);
        prop_assert_eq!(outcome.decision.status(), "FAILED");
        prop_assert_eq!(outcome.trail.len(), position + 1);
    }

    #[test]
    fn the_order_of_reading_policies_has_no_effect(priorities in prop::collection::vec(1..4_u32, 1..6)) {
        let names = |policies: Vec<RequestPolicy>| {
            let mut progress = Chain::start(request(json!({})), policies, Arc::default());
            loop {
                progress = match progress {
                    Progress::Next(chain) => chain.apply(Ok(None)),
                    Progress::Done(outcome) => {
                        return outcome.trail.into_iter().map(|entry| entry.revision).collect::<Vec<_>>();
                    }
                }
            }
        };
        let policies: Vec<_> =
            priorities.iter().enumerate().map(|(number, priority)| policy(&format!("p{number}"), Level::Tenant, *priority)).collect();
        prop_assert_eq!(names(policies.iter().rev().cloned().collect()), names(policies));
    }
}

/// Returns JSON that resembles a result.
fn any_json() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(vec!["a", "a.b", "/a/0", "", "a..b", "$ref", "x[0]"]);
    let fragment = prop_oneof![schema(), value(), Just(json!({"$ref": "#"})), Just(json!({"pattern": "("}))];
    (any::<bool>(), value(), prop::collection::btree_map(field, fragment, 0..3), value()).prop_map(
        |(is_whole, patch, constraints, provider)| {
            if is_whole {
                json!({"patch": patch, "constraints": constraints, "selected_provider": provider})
            } else {
                patch
            }
        },
    )
}
