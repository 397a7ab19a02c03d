//! What a policy has besides validations: variables, messages, annotations, and a world to ask.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proviso_core::{Review, Verdict};
use proviso_engines::cel::{AuditAnnotation, Program, Source, Validation, Variable};
use proviso_engines::{CompileError, Deadline, EvaluationError};
use serde_json::{Value, json};

use super::world::World;

/// What nothing takes that ends at all.
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
async fn variables_may_read_those_before_them() {
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
async fn a_variable_that_nobody_reads_does_no_harm() {
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

/// Each would be made while the one before is: a thread's stack is finite.
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
    // And none of them doubles until all memory is gone.
    let mut variables = vec![variable("v0", "'xxxxxxxxxxxxxxxx'")];
    variables.extend((1..60).map(|n| variable(&format!("v{n}"), &format!("variables.v{0} + variables.v{0}", n - 1))));
    let source = Source { variables, validations: vec![validation("variables.v59 != ''")], ..Source::default() };
    let program = Program::compile(source, &Value::Null).unwrap();
    assert!(matches!(evaluate(&program).await, Err(EvaluationError::Failed(_))));
}

/// Neither loops nor deadlines end these.
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
        assert!(
            error.contains("take more than") || error.contains("is larger than"),
            "{variables:?} {expression}: {error}"
        );
    }
    // Each evaluation begins anew.
    let program =
        compile(&[("a", "lists.range(10000).map(i, [i])")], vec![validation("size(variables.a) > 0")]).unwrap();
    for _ in 0..100 {
        assert_eq!(evaluate(&program).await, Ok(Verdict::allow()));
    }
}

#[tokio::test]
async fn an_expression_makes_the_message_or_the_message_stands_in() {
    for (expression, wanted) in [
        ("'at most ' + string(params.max)", "at most 5"),
        ("'  spaces  '", "spaces"),
        ("''", "stands in"),
        ("'  '", "stands in"),
        ("'two\\nlines'", "stands in"),
        ("object.spec.nowhere", "stands in"),
        ("1", "stands in"),
        ("lists.range(9000).map(x, 'x').join()", "stands in"),
    ] {
        let failing = Validation {
            message: Some("stands in".into()),
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
async fn annotations_go_into_the_audit_log() {
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
async fn the_namespace_is_asked_for_only_where_it_is_read() {
    let namespace = json!({"metadata": {"name": "default", "labels": {"env": "prod"}}});
    let world = Arc::new(World::with_namespace("default", namespace));
    let program = |variables: &[(&str, &str)], expression: &str| {
        compile(variables, vec![validation(expression)]).unwrap().with_host(world.clone())
    };
    assert_eq!(evaluate(&program(&[], "true")).await, Ok(Verdict::allow()));
    assert!(world.asked().is_empty());
    let reads = program(&[("env", "namespaceObject.metadata.labels.env")], "variables.env == 'prod'");
    assert_eq!(evaluate(&reads).await, Ok(Verdict::allow()));
    assert_eq!(world.asked(), ["the Namespace default"]);
    // Where there is none it is null: for what is in no namespace, and for a Namespace, which the request says is in itself.
    let null = program(&[], "namespaceObject == null");
    for review in [review_of("Node", ""), review_of("Namespace", "web")] {
        assert_eq!(null.evaluate(&review, Deadline::after(AMPLE)).await, Ok(Verdict::allow()));
    }
    assert_eq!(world.asked().len(), 1);
    // One that is not there, or that nobody may read, is no null.
    let review = review_of("Pod", "elsewhere");
    let error = null.evaluate(&review, Deadline::after(AMPLE)).await.unwrap_err().to_string();
    assert!(error.contains("there is no Namespace elsewhere"), "{error}");
    let nobody = compile(&[], vec![validation("namespaceObject == null")]).unwrap();
    assert!(evaluate(&nobody).await.unwrap_err().to_string().contains("may not read it"));
}

#[tokio::test]
async fn rights_are_what_the_api_server_says() {
    let world = Arc::new(World::default());
    for (expression, wanted) in [
        ("authorizer.group('').resource('pods').check('get').allowed()", true),
        ("authorizer.group('').resource('pods').check('delete').allowed()", false),
        ("authorizer.group('').resource('pods').check('get').reason() == 'a role says so'", true),
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
        let program = compile(&[], vec![validation(expression)]).unwrap().with_host(world.clone());
        assert_eq!(evaluate(&program).await.map(|it| it.allowed), Ok(wanted), "{expression}");
    }
    let asked = world.asked();
    let wanted = json!({
        "user": "alice", "uid": "id", "groups": ["dev"], "extra": {"scopes.example/only": ["pods"]},
        "resource_attributes": {"group": "apps", "version": "*", "resource": "deployments", "subresource": "scale", "namespace": "n", "name": "a", "verb": "get"},
    });
    assert!(asked.contains(&wanted.to_string()), "{asked:?}");
    let wanted = json!({
        "user": "alice", "uid": "id", "groups": ["dev"], "extra": {"scopes.example/only": ["pods"]},
        "resource_attributes": {"group": "", "version": "*", "resource": "pods", "subresource": "", "namespace": "default", "name": "web", "verb": "get"},
    });
    assert!(asked.contains(&wanted.to_string()), "{asked:?}");
    // Of a ServiceAccount, nothing that is the user's own is known.
    let robots: Vec<_> = asked.iter().filter(|asked| asked.contains("serviceaccount")).collect();
    assert!(robots.len() == 2 && robots.iter().all(|it| !it.contains("uid") && !it.contains("extra")), "{robots:?}");
}

/// `!….allowed()` must let nobody in because a question could not be put.
#[tokio::test]
async fn a_question_that_cannot_be_put_is_an_error() {
    for (expression, part) in [
        ("!authorizer.group('').resource('away').check('get').allowed()", "the API server is away"),
        ("authorizer.serviceAccount('a/b', 'c').group('').resource('a').check('get').allowed()", "not valid"),
    ] {
        let program = compile(&[], vec![validation(expression)]).unwrap().with_host(Arc::new(World::default()));
        let error = evaluate(&program).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let nobody = compile(&[], vec![validation("!authorizer.requestResource.check('get').allowed()")]).unwrap();
    assert!(evaluate(&nobody).await.unwrap_err().to_string().contains("may not call the host"));
}
