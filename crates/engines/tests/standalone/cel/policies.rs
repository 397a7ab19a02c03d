//! Parts of a CEL policy besides validations: variables, messages, annotations, and calls of the host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::{Review, Verdict};
use proviso_engines::cel::{AuditAnnotation, Program, Source, Validation, Variable};
use proviso_engines::{CompileError, Deadline, EvaluationError};
use serde_json::{Value, json};

use super::host::TestHost;

/// A time limit that only a hanging evaluation reaches.
pub const AMPLE: Duration = Duration::from_mins(1);

pub fn review_of(kind: &str, namespace: &str) -> Review {
    let resource = format!("{}s", kind.to_lowercase());
    let request = json!({
        "uid": "u", "operation": "CREATE", "name": "web", "namespace": namespace,
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "userInfo": {"username": "alice", "uid": "id", "groups": ["dev"], "extra": {"scopes.example/only": ["pods"]}},
        "object": {"apiVersion": "v1", "kind": kind, "metadata": {"name": "web", "labels": {"team": "a"}}},
        "oldObject": null,
    });
    Review::admission(Bytes::from(json!({"request": request}).to_string())).unwrap()
}

fn variable(name: &str, expression: &str) -> Variable {
    Variable { name: name.into(), expression: expression.into() }
}

pub fn validation(expression: &str) -> Validation {
    Validation { expression: expression.into(), ..Validation::default() }
}

pub fn compile(variables: &[(&str, &str)], validations: Vec<Validation>) -> Result<Program, CompileError> {
    let variables = variables.iter().map(|(name, expression)| variable(name, expression)).collect();
    Program::compile(Source { variables, validations, ..Source::default() }, &json!({"max": 5}))
}

async fn evaluate(program: &Program) -> Result<Verdict, EvaluationError> {
    program.evaluate(&review_of("Pod", "default"), Deadline::after(AMPLE)).await
}

async fn holds(variables: &[(&str, &str)], expression: &str) -> Result<bool, EvaluationError> {
    Ok(evaluate(&compile(variables, vec![validation(expression)]).unwrap()).await?.allowed)
}

#[tokio::test]
async fn variables_can_read_earlier_variables() {
    let variables = [
        ("team", "object.metadata.labels.team"),
        ("greeting", "'hello ' + variables.team"),
        ("size", "quantity('1Gi')"),
        ("loops", "[1, 2].map(x, x + params.max)"),
        ("maybe", "object.metadata.?annotations"),
    ];
    for expression in [
        "variables.greeting == 'hello a'",
        "variables.size.isGreaterThan(quantity('1Mi'))",
        "variables.loops.all(x, x > params.max) && variables.loops[0] == 6",
        "!variables.maybe.hasValue()",
        "[1].all(variables, variables == 1)",
    ] {
        assert_eq!(holds(&variables, expression).await, Ok(true), "{expression}");
    }
}

#[tokio::test]
async fn a_variable_that_fails_matters_only_if_it_is_read() {
    let broken = [("broken", "object.spec.nowhere"), ("reads", "variables.broken")];
    assert_eq!(holds(&broken, "true").await, Ok(true));
    assert_eq!(holds(&broken, "variables.broken == 1 || true").await, Ok(true));
    let error = holds(&broken, "variables.reads == 1").await.unwrap_err().to_string();
    assert!(error.contains("variables.reads: ") && error.contains("object.spec.nowhere"), "{error}");
}

#[test]
fn variables_have_names_and_an_order() {
    let one = |variables: &[(&str, &str)], expression: &str| compile(variables, vec![validation(expression)]);
    for (variables, expression, part) in [
        (&[("a", "variables.b"), ("b", "1")][..], "true", "variables.b"),
        (&[("a", "variables.a")], "true", "variables.a"),
        (&[("a", "1"), ("a", "1")], "true", "twice"),
        (&[("a-b", "1")], "true", "name"),
        (&[("a", "1")], "has(variables.a)", "always there"),
        (&[("a", "1")], "variables.b == 1", "variables.b"),
        (&[("a", "type(1)")], "true", "type"),
        (&[("a", "(")], "true", "variables[a]"),
    ] {
        let error = one(variables, expression).unwrap_err().to_string();
        assert!(error.contains(part), "{error} says {part}");
    }
}

/// Each variable is evaluated during the evaluation of the next one, so that a chain needs stack.
#[tokio::test]
async fn chains_of_variables_are_bounded() {
    let chain = |length: usize| {
        let mut variables = vec![variable("v0", "1")];
        variables.extend((1..length).map(|n| variable(&format!("v{n}"), &format!("variables.v{} + 0", n - 1))));
        let validations = vec![validation(&format!("variables.v{} == 1", length - 1))];
        Program::compile(Source { variables, validations, ..Source::default() }, &Value::Null)
    };
    assert!(matches!(chain(1000), Err(CompileError::Unsupported(_))));
    let deepest = chain(190).unwrap();
    assert_eq!(evaluate(&deepest).await, Ok(Verdict::allow()));
    // A chain of variables that double a string cannot take all memory.
    let mut variables = vec![variable("v0", "'xxxxxxxxxxxxxxxx'")];
    variables.extend((1..60).map(|n| variable(&format!("v{n}"), &format!("variables.v{0} + variables.v{0}", n - 1))));
    let source = Source { variables, validations: vec![validation("variables.v59 != ''")], ..Source::default() };
    let program = Program::compile(source, &Value::Null).unwrap();
    assert!(matches!(evaluate(&program).await, Err(EvaluationError::Failed(_))));
}

/// These expressions need no loop and end before the deadline, but their values double at each step.
#[tokio::test]
async fn values_that_would_take_all_memory_are_errors() {
    let chain = |first: &str, step: &str| -> Vec<(String, String)> {
        let steps = (1..40).map(|n| (format!("v{n}"), step.replace('V', &format!("variables.v{}", n - 1))));
        std::iter::once(("v0".to_owned(), first.to_owned())).chain(steps).collect()
    };
    let text = format!("'{}'", "x".repeat(1000));
    for (variables, expression) in [
        (chain("[1]", "[V, V]"), "variables.v39 != null"),
        (chain("1", "{'a': V, 'b': V}"), "variables.v39 != null"),
        (chain("[object]", "V + V"), "variables.v39 != null"),
        (chain(&text, "'%s%s'.format([V, V])"), "variables.v39 != ''"),
        (chain("'\"'", "strings.quote(V)"), "variables.v39 != ''"),
        (chain("[object]", "[optional.of(V), optional.of(V)]"), "variables.v39 != null"),
        (chain("lists.range(10000)", "V"), "lists.range(1000).map(i, variables.v0).size() == 1000"),
        (chain("1", "1"), "lists.range(1000).map(i, lists.range(1000).map(j, object)).size() == 1000"),
        (chain("1", "1"), "lists.range(1000).map(i, lists.range(1000).map(j, {'a': object.metadata})).size() == 1000"),
        (chain("1", "1"), "lists.range(1000).map(i, lists.range(1000).filter(j, true)).map(k, [k, k]).size() == 1000"),
    ] {
        let named: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let error = holds(&named, expression).await.unwrap_err().to_string();
        let limits = ["take more than", "is larger than", "it takes more memory than its limit of 128 MiB"];
        assert!(limits.iter().any(|limit| error.contains(limit)), "{variables:?} {expression}: {error}");
    }
    // The memory of an evaluation does not count for the next one.
    let program =
        compile(&[("a", "lists.range(10000).map(i, [i])")], vec![validation("size(variables.a) > 0")]).unwrap();
    for _ in 0..100 {
        assert_eq!(evaluate(&program).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn an_invalid_message_expression_falls_back_to_the_message() {
    for (expression, wanted) in [
        ("'at most ' + string(params.max)", "at most 5"),
        ("'  spaces  '", "spaces"),
        ("''", "the fixed message"),
        ("'  '", "the fixed message"),
        ("'two\\nlines'", "the fixed message"),
        ("object.spec.nowhere", "the fixed message"),
        ("1", "the fixed message"),
        ("lists.range(9000).map(x, 'x').join()", "the fixed message"),
    ] {
        let failing = Validation {
            message: Some("the fixed message".into()),
            message_expression: Some(expression.into()),
            ..validation("false")
        };
        let verdict = evaluate(&compile(&[], vec![failing]).unwrap()).await.unwrap();
        assert_eq!(verdict.message.as_deref(), Some(wanted), "{expression}");
    }
    let wrong = Validation { message_expression: Some("nowhere".into()), ..validation("true") };
    assert!(compile(&[], vec![wrong]).unwrap_err().to_string().starts_with("messageExpression: "));
}

fn annotated(key: &str, expression: &str) -> Result<Program, CompileError> {
    let annotation = AuditAnnotation { key: key.into(), value_expression: expression.into() };
    let source =
        Source { audit_annotations: vec![annotation], validations: vec![validation("false")], ..Source::default() };
    Program::compile(source, &Value::Null)
}

#[tokio::test]
async fn the_verdict_has_the_audit_annotations() {
    for (expression, wanted) in [
        ("'team ' + object.metadata.labels.team", Some("team a")),
        ("null", None),
        ("true ? '' : null", None),
        ("object.metadata.labels.team == 'b' ? 'b' : null", None),
    ] {
        let verdict = evaluate(&annotated("a", expression).unwrap()).await.unwrap();
        assert!(!verdict.allowed, "denials have annotations too");
        assert_eq!(verdict.audit_annotations.get("a").map(String::as_str), wanted, "{expression}");
    }
    let long = evaluate(&annotated("a", "lists.range(9000).map(x, 'ü').join()").unwrap()).await.unwrap();
    assert_eq!(long.audit_annotations["a"].len(), 10 * 1024);
    for expression in ["1", "object.spec.nowhere"] {
        assert!(matches!(evaluate(&annotated("a", expression).unwrap()).await, Err(EvaluationError::Failed(_))));
    }
    for key in ["", "a/b", "-a", &"a".repeat(64)] {
        assert!(annotated(key, "''").unwrap_err().to_string().contains("key"), "{key}");
    }
}

#[tokio::test]
async fn the_namespace_is_read_only_if_an_expression_needs_it() {
    let namespace = json!({"metadata": {"name": "default", "labels": {"env": "prod"}}});
    let host = Arc::new(TestHost::with_namespace("default", namespace));
    let program = |variables: &[(&str, &str)], expression: &str| {
        compile(variables, vec![validation(expression)]).unwrap().with_host(host.clone())
    };
    assert_eq!(evaluate(&program(&[], "true")).await, Ok(Verdict::allow()));
    assert!(host.calls().is_empty());
    let reads = program(&[("env", "namespaceObject.metadata.labels.env")], "variables.env == 'prod'");
    assert_eq!(evaluate(&reads).await, Ok(Verdict::allow()));
    assert_eq!(host.calls(), ["the Namespace default"]);
    // The variable is null for an object that is not namespaced, and for a Namespace: its request names itself as its namespace.
    let null = program(&[], "namespaceObject == null");
    for review in [review_of("Node", ""), review_of("Namespace", "web")] {
        assert_eq!(null.evaluate(&review, Deadline::after(AMPLE)).await, Ok(Verdict::allow()));
    }
    assert_eq!(host.calls().len(), 1);
    // A Namespace that does not exist, or that the policy may not read, is an error.
    let review = review_of("Pod", "elsewhere");
    let error = null.evaluate(&review, Deadline::after(AMPLE)).await.unwrap_err().to_string();
    assert!(error.contains("there is no Namespace elsewhere"), "{error}");
    let without_host = compile(&[], vec![validation("namespaceObject == null")]).unwrap();
    assert!(evaluate(&without_host).await.unwrap_err().to_string().contains("may not read it"));
}

#[tokio::test]
async fn the_authorizer_returns_the_decisions_of_the_api_server() {
    let host = Arc::new(TestHost::default());
    for (expression, wanted) in [
        ("authorizer.group('').resource('pods').check('get').allowed()", true),
        ("authorizer.group('').resource('pods').check('delete').allowed()", false),
        ("authorizer.group('').resource('pods').check('get').reason() == 'a role allows it'", true),
        (
            "authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('a').check('get').allowed()",
            true,
        ),
        ("authorizer.requestResource.check('get').allowed()", true),
        ("authorizer.path('/healthz').check('get').allowed()", true),
        ("authorizer.path('/metrics').check('get').allowed()", false),
        ("authorizer.serviceAccount('default', 'robot').group('').resource('pods').check('get').allowed()", true),
        ("authorizer.serviceAccount('default', 'other').group('').resource('pods').check('get').allowed()", false),
        ("authorizer.group('').resource('broken').check('get').errored()", true),
        ("authorizer.group('').resource('broken').check('get').error() == 'it is broken'", true),
        ("authorizer.group('').resource('pods').check('get').errored()", false),
        ("authorizer.group('').resource('broken').check('get').allowed()", false),
        ("['get', 'delete'].filter(v, authorizer.requestResource.check(v).allowed()) == ['get']", true),
    ] {
        let program = compile(&[], vec![validation(expression)]).unwrap().with_host(host.clone());
        assert_eq!(evaluate(&program).await.map(|it| it.allowed), Ok(wanted), "{expression}");
    }
    let calls = host.calls();
    let wanted = json!({
        "user": "alice", "uid": "id", "groups": ["dev"], "extra": {"scopes.example/only": ["pods"]},
        "resource_attributes": {"group": "apps", "version": "*", "resource": "deployments", "subresource": "scale", "namespace": "n", "name": "a", "verb": "get"},
    });
    assert!(calls.contains(&wanted.to_string()), "{calls:?}");
    let wanted = json!({
        "user": "alice", "uid": "id", "groups": ["dev"], "extra": {"scopes.example/only": ["pods"]},
        "resource_attributes": {"group": "", "version": "*", "resource": "pods", "subresource": "", "namespace": "default", "name": "web", "verb": "get"},
    });
    assert!(calls.contains(&wanted.to_string()), "{calls:?}");
    // The review of a ServiceAccount has neither the UID nor the extra attributes of the user.
    let robots: Vec<_> = calls.iter().filter(|call| call.contains("serviceaccount")).collect();
    assert!(robots.len() == 2 && robots.iter().all(|it| !it.contains("uid") && !it.contains("extra")), "{robots:?}");
}

/// Otherwise `!….allowed()` would be true if the review fails.
#[tokio::test]
async fn an_authorization_check_that_fails_is_an_error() {
    for (expression, part) in [
        ("!authorizer.group('').resource('away').check('get').allowed()", "the API server is away"),
        ("authorizer.serviceAccount('a/b', 'c').group('').resource('a').check('get').allowed()", "not valid"),
    ] {
        let program = compile(&[], vec![validation(expression)]).unwrap().with_host(Arc::new(TestHost::default()));
        let error = evaluate(&program).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let without_host = compile(&[], vec![validation("!authorizer.requestResource.check('get').allowed()")]).unwrap();
    assert!(evaluate(&without_host).await.unwrap_err().to_string().contains("may not call the host"));
}
