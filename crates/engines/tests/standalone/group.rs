//! Groups with members of several engines: short-circuit evaluation, causes, and the truth tables of expressions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proviso_core::{Review, Verdict};
use proviso_engines::rego::Dialect;
use proviso_engines::{CompileError, Deadline, EvaluationError, Program, cel, group, rego};
use serde_json::json;

const FAILING: &str = "object.missing == 1";

fn review() -> Review {
    Review::raw(Bytes::from_static(br#"{"request": {"a": 1}}"#)).unwrap()
}

fn cel_member(expression: &str) -> Arc<Program> {
    let validation = cel::Validation { expression: expression.into(), ..cel::Validation::default() };
    Arc::new(Program::Cel(cel::Program::compile(vec![validation], &json!({})).unwrap()))
}

fn rego_member(source: &str) -> Arc<Program> {
    Arc::new(Program::Rego(rego::Program::compile(source, Dialect::Admission, None, &json!({})).unwrap()))
}

fn members() -> BTreeMap<String, Arc<Program>> {
    BTreeMap::from([
        ("yes".to_owned(), cel_member("true")),
        ("no".to_owned(), cel_member("false")),
        ("failing".to_owned(), cel_member(FAILING)),
        ("warning".to_owned(), rego_member("package p\nwarn[\"careful\"] { true }")),
        (
            "mutating".to_owned(),
            rego_member(
                "package p\nmain = {\"allowed\": true, \"warnings\": [\"changed\"], \
                 \"patch\": [{\"op\": \"add\", \"path\": \"/b\", \"value\": 1}]}",
            ),
        ),
    ])
}

fn group(expression: &str) -> Result<group::Program, CompileError> {
    group::Program::new(members(), expression, "rejected by the group".into())
}

async fn evaluate(expression: &str) -> Result<Verdict, EvaluationError> {
    group(expression).unwrap().evaluate(&review(), Deadline::after(Duration::from_mins(1))).await
}

#[tokio::test]
async fn a_denial_names_the_evaluated_members_that_rejected() {
    for (expression, causes) in [
        ("no()", &["spec.policies.no"][..]),
        ("yes() && no()", &["spec.policies.no"]),
        ("no() || mutating()", &["spec.policies.no", "spec.policies.mutating"]),
        ("no() && mutating()", &["spec.policies.no"]),
        ("no() || no()", &["spec.policies.no"]),
        ("!yes()", &[]),
    ] {
        let verdict = evaluate(expression).await.unwrap();
        assert_eq!(verdict.message.as_deref(), Some("rejected by the group"), "{expression}");
        let fields: Vec<&str> = verdict.causes.iter().filter_map(|cause| cause.field.as_deref()).collect();
        assert_eq!((verdict.allowed, fields.as_slice()), (false, causes), "{expression}");
    }
    let verdict = evaluate("no()").await.unwrap();
    assert_eq!(verdict.causes[0].message, "failed expression: false");
}

#[tokio::test]
async fn a_member_that_mutates_rejects_the_request() {
    let verdict = evaluate("mutating()").await.unwrap();
    assert!(!verdict.allowed && verdict.patch.is_none());
    assert!(verdict.causes[0].message.contains("may not"), "{verdict:?}");
    assert_eq!(verdict.warnings, ["changed"]);
    let verdict = evaluate("!mutating()").await.unwrap();
    assert!(verdict.allowed && verdict.patch.is_none() && verdict.causes.is_empty(), "{verdict:?}");
}

#[tokio::test]
async fn members_are_evaluated_only_if_needed() {
    for expression in ["yes() || failing()", "!(no() && failing())", "true || failing()", "(no() || yes()) && yes()"] {
        assert!(evaluate(expression).await.unwrap().allowed, "{expression}");
    }
    assert_eq!(evaluate("yes() || warning()").await.unwrap().warnings, [""; 0]);
    assert_eq!(evaluate("warning() && warning()").await.unwrap().warnings, ["careful"], "a member is evaluated once");
}

#[tokio::test]
async fn the_error_of_a_member_contains_its_name() {
    for expression in
        ["failing()", "yes() && failing()", "no() || failing()", "failing() || yes()", "failing() == no()"]
    {
        let Err(EvaluationError::Failed(message)) = evaluate(expression).await else { panic!("{expression}") };
        assert!(message.starts_with("member failing: "), "{expression}: {message}");
    }
}

#[test]
fn expressions_are_checked() {
    for (expression, part) in [
        ("unknown()", "no member unknown"),
        ("yes() && unknown()", "column 17: the group has no member unknown"),
        ("yes", "write yes()"),
        ("yes(1)", "takes no arguments"),
        ("yes(no())", "takes no arguments"),
        ("yes() ? no() : yes()", "only members"),
        ("yes() < no()", "only members"),
        ("1 == 1", "only members"),
        ("yes() == 'x'", "only members"),
        ("[yes()].all(x, x)", "only members"),
        ("yes().no()", "only members"),
        ("has(yes())", "no member has"),
        ("yes() &&", "line 1, column"),
        ("", "line 1"),
        ("true || !false", "contains no member"),
    ] {
        let Err(CompileError::Invalid(message)) = group(expression) else { panic!("{expression} compiled") };
        assert!(message.contains(part), "{expression}: {message}");
    }
    for expression in ["(".repeat(500), "!".repeat(5000) + "yes()"] {
        assert!(matches!(group(&expression), Err(CompileError::Unsupported(_))));
    }
}

#[test]
fn groups_do_not_nest() {
    let inner = Arc::new(Program::Group(group("yes()").unwrap()));
    let result = group::Program::new(BTreeMap::from([("inner".to_owned(), inner)]), "inner()", String::new());
    assert!(matches!(result, Err(CompileError::Invalid(message)) if message.contains("inner")));
}

#[tokio::test]
async fn settings_of_all_members_are_validated() {
    let deadline = Deadline::after(Duration::from_mins(1));
    assert_eq!(group("yes()").unwrap().validate_settings(deadline).await, Ok(()));
}

/// Generates a random expression with its truth table: its value for each of the four combinations of `a()` and `b()`.
fn expression() -> impl Strategy<Value = (String, [bool; 4])> {
    let leaf = prop_oneof![
        Just(("true".to_owned(), [true; 4])),
        Just(("false".to_owned(), [false; 4])),
        Just(("a()".to_owned(), [false, false, true, true])),
        Just(("b()".to_owned(), [false, true, false, true])),
    ];
    let each = |l: [bool; 4], r: [bool; 4], f: fn(bool, bool) -> bool| std::array::from_fn(|row| f(l[row], r[row]));
    leaf.prop_recursive(5, 24, 2, move |inner| {
        prop_oneof![
            inner.clone().prop_map(|(text, rows)| (format!("!({text})"), rows.map(|value| !value))),
            (inner.clone(), inner, 0..4).prop_map(move |((left, l), (right, r), operator)| match operator {
                0 => (format!("({left} && {right})"), each(l, r, |l, r| l && r)),
                1 => (format!("({left} || {right})"), each(l, r, |l, r| l || r)),
                2 => (format!("(({left}) == ({right}))"), each(l, r, |l, r| l == r)),
                _ => (format!("(({left}) != ({right}))"), each(l, r, |l, r| l != r)),
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn expressions_agree_with_their_truth_table((text, table) in expression()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (row, expected) in table.into_iter().enumerate() {
            let member = |bit: usize| cel_member(if row & bit == 0 { "false" } else { "true" });
            let members = BTreeMap::from([("a".to_owned(), member(2)), ("b".to_owned(), member(1))]);
            let program = group::Program::new(members, &format!("{text} || (a() && !a())"), String::new()).unwrap();
            let verdict = runtime.block_on(program.evaluate(&review(), Deadline::after(Duration::from_mins(1)))).unwrap();
            prop_assert_eq!(verdict.allowed, expected, "{} in row {}", text, row);
        }
    }
}
