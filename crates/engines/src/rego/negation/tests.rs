//! Tests of the rewriter: the rewritten sources, and the sources that are refused.

use super::*;
use regorus::Engine;

fn rewritten(body: &str) -> Result<String, CompileError> {
    rewritten_with_module("package p", body)
}

/// Rewrites a body in a policy that has another module.
fn rewritten_with_module(other: &str, body: &str) -> Result<String, CompileError> {
    let mut engine = Engine::new();
    engine.set_rego_v0(true);
    let source = format!("package p\nimport future.keywords\nq = 1\n{body}");
    engine.add_policy("policy.rego".into(), source.clone()).unwrap();
    engine.add_policy("other.rego".into(), other.to_owned()).unwrap();
    let modules = engine.get_modules();
    let text = rewrite(&modules[0], modules)?.unwrap_or(source);
    Ok(text.lines().skip(3).collect::<Vec<_>>().join("\n"))
}

/// The expected sources follow the stages `RewriteExprTerms` and `RewriteDynamicTerms` of OPA's compiler.
#[test]
fn operands_that_may_be_undefined_are_assigned_before_the_negation() {
    for (body, expected) in [
        ("r { not f(input.m) }", "r { negated__1 := input.m; not f(negated__1) }"),
        (
            "r { not f(g(input.m), x, 1) }",
            "r { negated__1 := input.m; negated__2 := g(negated__1); not f(negated__2, x, 1) }",
        ),
        ("r { not input.m == 1 }", "r { not input.m == 1 }"),
        ("r { not input.m }", "r { not input.m }"),
        ("r { not input.m != 1 }", "r { negated__1 := input.m; not negated__1 != 1 }"),
        ("r { not input.a[input.m].b }", "r { negated__1 := input.m; not input.a[negated__1].b }"),
        ("r { not f([q, {\"a\": x}]) }", "r { negated__1 := q; not f([negated__1, {\"a\": x}]) }"),
        (
            "r { not f(input.m) with input.z as 1 }",
            "r { negated__1 := input.m with input.z as 1; not f(negated__1) with input.z as 1 }",
        ),
        ("r if not f(input.m)", "r if { negated__1 := input.m; not f(negated__1) }"),
        (
            "r { x := [y | not f(y.m)]; not x == -1 }",
            "r { x := [y | negated__1 := y.m; not f(negated__1)]; not x == -1 }",
        ),
        ("r { not q }", "r { not q }"),
        ("r { not q == 1 }", "r { not q == 1 }"),
        (
            "r { any([x], y); z := [a | any([b | not f(input.c)], a)] }",
            "r { y = any([x]); z := [a | a = any([b | negated__1 := input.c; not f(negated__1)])] }",
        ),
        ("r { [p, v] := walk(input.x) }", "r { walk(input.x, [p, v]) }"),
        ("r { not input.m in [1] }", "r { negated__1 := input.m; not negated__1 in [1] }"),
        (
            "r { not f(g(input.a[_])) }",
            "r { negated__1 := input.a[_]; negated__2 := g(negated__1); not f(negated__2) }",
        ),
        (
            "r { not (count(input.a) + 1) * 2 == 4 }",
            "r { negated__1 := input.a; negated__2 := count(negated__1); negated__3 := negated__2 + 1; negated__4 := \
             (negated__3) * 2; not negated__4 == 4 }",
        ),
    ] {
        assert_eq!(rewritten(body).unwrap(), expected, "{body}");
    }
}

#[test]
fn negations_that_are_unsafe_in_opa_are_refused() {
    for body in ["r { not f(input.a[_]) }", "r { not input.a[_] == 1 }", "r { not _ in [1] }"] {
        let error = rewritten(body).unwrap_err().to_string();
        assert!(error.starts_with("line 4, column"), "{error}");
    }
}

/// The spans of regorus omit the quotes.
#[test]
fn strings_keep_their_quotes() {
    for (body, expected) in [
        (
            r#"r { not bad(input.request.kind.kind == "Pod") }"#,
            r#"r { negated__1 := input.request.kind.kind; negated__2 := (negated__1 == "Pod"); not bad(negated__2) }"#,
        ),
        (
            r#"r { not f(input.a, input.b == "x") }"#,
            "r { negated__1 := input.a; negated__2 := input.b; negated__3 := (negated__2 == \"x\"); \
             not f(negated__1, negated__3) }",
        ),
        (
            r#"r { not (input.a == "x") == input.b }"#,
            r#"r { negated__1 := input.a; negated__2 := (negated__1 == "x"); not (negated__2) == input.b }"#,
        ),
        (
            r#"r if not lower(input.kind) == "pod""#,
            r#"r if { negated__1 := input.kind; negated__2 := lower(negated__1); not negated__2 == "pod" }"#,
        ),
        (
            "r if not lower(input.kind) == `pod`",
            "r if { negated__1 := input.kind; negated__2 := lower(negated__1); not negated__2 == `pod` }",
        ),
        (
            r#"r if not f(input.m) with input.z as """#,
            r#"r if { negated__1 := input.m with input.z as ""; not f(negated__1) with input.z as "" }"#,
        ),
        (
            r#"r { not f(input.m) with input.z as "abc" }"#,
            r#"r { negated__1 := input.m with input.z as "abc"; not f(negated__1) with input.z as "abc" }"#,
        ),
        (
            r#"r { not any([x == "a", y == "b"]) }"#,
            r#"r { negated__1 := (x == "a"); negated__2 := (y == "b"); not any([negated__1, negated__2]) }"#,
        ),
        (r#"r { crypto.sha256("x", y) }"#, r#"r { y = crypto.sha256("x") }"#),
        ("r { crypto.sha256(`x`, \"é\") }", "r { \"é\" = crypto.sha256(`x`) }"),
        (
            r#"r { not f("x" == input.a) }"#,
            r#"r { negated__1 := input.a; negated__2 := ("x" == negated__1); not f(negated__2) }"#,
        ),
        ("r { not f(`` == x) }", "r { negated__1 := (`` == x); not f(negated__1) }"),
        ("r { not f(x == ``) }", "r { negated__1 := (x == ``); not f(negated__1) }"),
        (r#"r { not f(x == "") }"#, r#"r { negated__1 := (x == ""); not f(negated__1) }"#),
        (r#"r { not f("" == "\"") }"#, r#"r { negated__1 := ("" == "\""); not f(negated__1) }"#),
        (r#"r { not f(input["a"]) }"#, r#"r { negated__1 := input["a"]; not f(negated__1) }"#),
        (r#"r { not "a" != "b" }"#, r#"r { not "a" != "b" }"#),
    ] {
        assert_eq!(rewritten(body).unwrap(), expected, "{body}");
    }
}

#[test]
fn rules_of_the_package_in_another_module_are_documents() {
    let body = "r { not f(elsewhere) }";
    let hoisted = "r { negated__1 := elsewhere; not f(negated__1) }";
    assert_eq!(rewritten_with_module("package p\nelsewhere { input.x }", body).unwrap(), hoisted);
    assert_eq!(rewritten_with_module("package p.q\nelsewhere { input.x }", body).unwrap(), body);
}

#[test]
fn functions_of_the_policy_hide_builtins() {
    for same in ["any(xs, x) { xs[_] == x }\nr { any(input.l, 1) }", "walk(x) = 1 { x }\nr { y := walk(input.l) }"] {
        assert_eq!(rewritten(same).unwrap(), same);
    }
}
