//! Tests of the comparison of verdicts.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::verdict::Cause;

fn mutated(patch: Value) -> Verdict {
    Verdict { patch: Some(serde_json::from_value(patch).unwrap()), ..Verdict::allow() }
}

fn cause(message: &str) -> Cause {
    Cause { field: None, message: message.to_owned() }
}

#[test]
fn divergence_is_classified_by_the_change_that_the_user_sees() {
    let object = json!({"metadata": {}});
    let add = mutated(json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]));
    let stepwise = mutated(json!([
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/labels/a", "value": "b"},
    ]));
    let no_op = mutated(json!([{"op": "replace", "path": "/metadata", "value": {}}]));
    // The API server denies a request whose patch it cannot apply.
    let broken = mutated(json!([{"op": "remove", "path": "/nowhere"}]));
    let (allow, deny) = (Verdict::allow(), Verdict::deny("no"));
    for (live, experiment, wanted) in [
        (&allow, &allow, Divergence::Same),
        (&allow, &deny, Divergence::NewlyDenied),
        (&deny, &allow, Divergence::NewlyAllowed),
        (&deny, &Verdict::deny("no"), Divergence::Same),
        (&deny, &Verdict::deny("never"), Divergence::MessageDiffers),
        (&add, &deny, Divergence::NewlyDenied),
        (&add, &stepwise, Divergence::Same),
        (&add, &allow, Divergence::MutationDiffers),
        (&allow, &no_op, Divergence::Same),
        (&add, &broken, Divergence::NewlyDenied),
        (&broken, &add, Divergence::NewlyAllowed),
        (&broken, &broken, Divergence::Same),
        (&broken, &deny, Divergence::MessageDiffers),
    ] {
        assert_eq!(Divergence::between(live, Ok(experiment), Some(&object)), wanted, "{live:?} {experiment:?}");
    }
    assert_eq!(Divergence::between(&allow, Ok(&add), None), Divergence::NewlyDenied, "a DELETE has no object to patch");
}

#[test]
fn each_field_of_a_verdict_is_compared() {
    let (allow, deny) = (Verdict::allow(), Verdict::deny("no"));
    let annotations = |value: &str| [("k".to_owned(), value.to_owned())].into();
    for (live, experiment, wanted, details) in [
        (&deny, Verdict { message: Some("never".into()), ..deny.clone() }, Divergence::MessageDiffers, vec![]),
        (&deny, Verdict { code: Some(403), ..deny.clone() }, Divergence::DetailsDiffer, vec!["code"]),
        (&deny, Verdict { reason: Some("Invalid".into()), ..deny.clone() }, Divergence::DetailsDiffer, vec!["reason"]),
        (&deny, Verdict { causes: vec![cause("why")], ..deny.clone() }, Divergence::DetailsDiffer, vec!["causes"]),
        (&deny, Verdict { warnings: vec!["w".into()], ..deny.clone() }, Divergence::DetailsDiffer, vec!["warnings"]),
        (&allow, Verdict { warnings: vec!["w".into()], ..allow.clone() }, Divergence::DetailsDiffer, vec!["warnings"]),
        (
            &allow,
            Verdict { audit_annotations: annotations("v"), ..allow.clone() },
            Divergence::DetailsDiffer,
            vec!["auditAnnotations"],
        ),
        (
            &deny,
            Verdict { code: Some(500), audit_annotations: annotations("v"), ..deny.clone() },
            Divergence::DetailsDiffer,
            vec!["code", "auditAnnotations"],
        ),
        // The API server answers 400 if the code is missing or is no error.
        (&deny, Verdict { code: Some(400), ..deny.clone() }, Divergence::Same, vec![]),
        (&deny, Verdict { code: Some(200), ..deny.clone() }, Divergence::Same, vec![]),
        // The answer to an allowed request has no status.
        (
            &allow,
            Verdict {
                message: Some("m".into()),
                code: Some(403),
                reason: Some("Invalid".into()),
                causes: vec![cause("why")],
                ..allow.clone()
            },
            Divergence::Same,
            vec![],
        ),
        // The more important difference counts.
        (
            &deny,
            Verdict { warnings: vec!["w".into()], ..Verdict::deny("never") },
            Divergence::MessageDiffers,
            vec!["warnings"],
        ),
    ] {
        assert_eq!(Divergence::between(live, Ok(&experiment), None), wanted, "{live:?} {experiment:?}");
        assert_eq!(differing_details(live, &experiment), details, "{live:?} {experiment:?}");
    }
}

#[test]
fn a_failed_evaluation_counts_by_the_verdict_that_answers_it() {
    let (allow, deny) = (Verdict::allow(), Verdict::deny("no"));
    let broken = mutated(json!([{"op": "remove", "path": "/nowhere"}]));
    for (live, answer, wanted) in [
        (&allow, &deny, Divergence::NewlyDenied),
        // In the mode Monitor, a failure denies nothing.
        (&allow, &allow, Divergence::ExperimentError),
        (&deny, &deny, Divergence::ExperimentError),
        (&deny, &allow, Divergence::ExperimentError),
        (&broken, &deny, Divergence::ExperimentError),
    ] {
        assert_eq!(Divergence::between(live, Err(answer), Some(&json!({}))), wanted, "{live:?} {answer:?}");
    }
}

prop_compose! {
    fn any_verdict()(
        allowed in any::<bool>(),
        message in prop::option::of("[ab]?"),
        code in prop::option::of(prop::sample::select(vec![0_u16, 200, 400, 403, 500])),
        reason in prop::option::of("[ab]?"),
        causes in prop::collection::vec("[ab]?", 0..2),
        warnings in prop::collection::vec("[ab]?", 0..2),
        audit_annotations in prop::collection::btree_map("[ab]", "[xy]", 0..2),
        patch in prop::option::of(prop::sample::select(vec![
            json!([]),
            json!([{"op": "add", "path": "/a", "value": 1}]),
            json!([{"op": "add", "path": "/a", "value": 2}]),
            json!([{"op": "replace", "path": "", "value": {"a": 1}}]),
            json!([{"op": "remove", "path": "/nowhere"}]),
        ])),
    ) -> Verdict {
        Verdict {
            allowed,
            message,
            code,
            reason,
            causes: causes.iter().map(|message| cause(message)).collect(),
            warnings,
            audit_annotations,
            patch: patch.map(|patch| serde_json::from_value(patch).unwrap()),
        }
    }
}

fn any_object() -> impl Strategy<Value = Option<Value>> {
    prop::sample::select(vec![None, Some(json!({})), Some(json!({"a": 1})), Some(json!(null))])
}

proptest! {
    #[test]
    fn equal_verdicts_are_the_same(verdict in any_verdict(), object in any_object()) {
        prop_assert_eq!(Divergence::between(&verdict, Ok(&verdict), object.as_ref()), Divergence::Same);
    }

    #[test]
    fn the_comparison_is_symmetric(one in any_verdict(), other in any_verdict(), object in any_object()) {
        let there = Divergence::between(&one, Ok(&other), object.as_ref());
        let back = match Divergence::between(&other, Ok(&one), object.as_ref()) {
            Divergence::NewlyAllowed => Divergence::NewlyDenied,
            Divergence::NewlyDenied => Divergence::NewlyAllowed,
            divergence => divergence,
        };
        prop_assert_eq!(there, back);
        prop_assert_ne!(there, Divergence::ExperimentError);
        if there == Divergence::Same {
            prop_assert_eq!(&one.warnings, &other.warnings);
            prop_assert_eq!(&one.audit_annotations, &other.audit_annotations);
        }
    }

    #[test]
    fn a_failure_that_denies_is_newly_denied_only_if_the_live_policy_allows(
        live in any_verdict(), answer in any_verdict(), object in any_object(),
    ) {
        let divergence = Divergence::between(&live, Err(&answer), object.as_ref());
        let allowed = Divergence::between(&live, Ok(&Verdict::deny("x")), object.as_ref()) == Divergence::NewlyDenied;
        let wanted = if allowed && !answer.allowed { Divergence::NewlyDenied } else { Divergence::ExperimentError };
        prop_assert_eq!(divergence, wanted);
    }
}
