//! Compiled Rego: its documents, the meaning of its answers, and its builtins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};
use proviso_engines::wasm::ExecutionMode::{self, Gatekeeper, Opa};
use proviso_engines::wasm::Program;
use proviso_engines::{CompileError, EvaluationError};
use serde_json::{Value, json};

use super::guest::{create_review, long_deadline, review};
use super::rego::{Rego, TEXT};
use super::test_host::TestHost;

/// Returns a policy that aborts with a document as the text.
fn aborting_with(document: &str) -> Rego {
    Rego::with_body(&format!("(call $abort (global.get {document})) (i32.const 0)"))
}

/// Evaluates a review and returns the document with which the policy aborts.
async fn aborted_with(program: Program, review: &Review) -> Value {
    let error = program.evaluate(review, long_deadline()).await.unwrap_err().to_string();
    serde_json::from_str(error.strip_prefix("internal server error: the policy aborted: ").unwrap()).unwrap()
}

#[tokio::test]
async fn opa_policies_get_the_request_as_input_and_the_settings_as_data() {
    let update = review(r#"{"uid":"u","object":{"b":null},"oldObject":null}"#);
    let input = aborted_with(aborting_with("$input").program(Opa), &update).await;
    assert_eq!(input, json!({"request": {"uid": "u", "object": {"b": null}}}));
    let program = Program::new(aborting_with("$data").load().unwrap(), *br#"{"max":1}"#).in_mode(Opa);
    assert_eq!(aborted_with(program, &update).await, json!({"max": 1}));
}

#[tokio::test]
async fn gatekeeper_policies_get_the_request_and_the_settings_as_input() {
    let program =
        |document| Program::new(aborting_with(document).load().unwrap(), *br#"{"max":1}"#).in_mode(Gatekeeper);
    let input = aborted_with(program("$input"), &review(r#"{"uid":"u"}"#)).await;
    assert_eq!(input, json!({"parameters": {"max": 1}, "review": {"uid": "u"}}));
    let data = aborted_with(program("$data"), &create_review()).await;
    assert_eq!(data, json!({"inventory": {"cluster": {}, "namespace": {}}}));
}

#[tokio::test]
async fn gatekeeper_policies_find_a_deleted_object_in_the_field_object() {
    let old = r#"{"kind":"Pod","x":null}"#;
    for (request, object) in [
        (format!(r#"{{"uid":"u","operation":"DELETE","object":null,"name":null,"oldObject":{old}}}"#), Some(old)),
        (format!(r#"{{"uid":"u","operation":"DELETE","object":{{"a":1}},"oldObject":{old}}}"#), Some(old)),
        (format!(r#"{{"uid":"u","operation":"UPDATE","object":{{"a":1}},"oldObject":{old}}}"#), Some(r#"{"a":1}"#)),
        (r#"{"uid":"u","operation":"DELETE","object":null,"oldObject":null}"#.to_owned(), None),
    ] {
        let object = object.map(|object| serde_json::from_str::<Value>(object).unwrap());
        let input = aborted_with(aborting_with("$input").program(Gatekeeper), &review(&request)).await;
        assert_eq!(input["review"].get("object"), object.as_ref(), "{request}");
        assert!(input["review"].get("name").is_none() && input["review"]["uid"] == "u", "{input}");
        let opa_input = aborted_with(aborting_with("$input").program(Opa), &review(&request)).await;
        let object = request.contains(r#""object":{"a":1}"#).then(|| json!({"a": 1}));
        assert_eq!(opa_input["request"].get("object"), object.as_ref(), "OPA policies get the API server's request");
    }
}

#[tokio::test]
async fn raw_requests_are_passed_unchanged() {
    let raw = Review::raw(br#"{"request":[1,"x"]}"#.as_slice().into()).unwrap();
    assert_eq!(aborted_with(aborting_with("$input").program(Opa), &raw).await, json!({"request": [1, "x"]}));
    let input = aborted_with(aborting_with("$input").program(Gatekeeper), &raw).await;
    assert_eq!(input, json!({"parameters": {}, "review": [1, "x"]}));
}

#[tokio::test]
async fn kubernetes_objects_are_in_the_data_of_compiled_rego() {
    let object = json!({"metadata": {"name": "n", "namespace": "x"}});
    let host = Arc::new(TestHost::with_objects("Service", "services", vec![object.clone()]));
    for (mode, expected) in [
        (Opa, json!({"kubernetes": {"services": {"x": {"n": &object}}}})),
        (Gatekeeper, json!({"inventory": {"cluster": {}, "namespace": {"x": {"v1": {"Service": {"n": &object}}}}}})),
    ] {
        let program = aborting_with("$data").program(mode).with_host(host.clone());
        for _ in 0..2 {
            assert_eq!(aborted_with(program.clone(), &create_review()).await, expected);
        }
    }
    assert_eq!(host.object_requests.load(Ordering::Relaxed), 4);
    let empty = Arc::new(TestHost::with_objects("Service", "services", vec![]));
    let program = aborting_with("$data").program(Opa).with_host(empty);
    assert_eq!(aborted_with(program, &create_review()).await, json!({"kubernetes": {"services": {}}}));
}

async fn verdict(mode: ExecutionMode, result: &str) -> Result<Verdict, EvaluationError> {
    Rego::answering(result).evaluate(mode).await
}

#[tokio::test]
async fn an_opa_policy_answers_with_a_response() {
    let allow = r#"[{"result":{"apiVersion":"v1","response":{"uid":"u","allowed":true}}}]"#;
    assert_eq!(verdict(Opa, allow).await, Ok(Verdict::allow()));
    let deny = r#"[{"result":{"response":{"uid":"u","allowed":false,"status":{"message":"no","code":418}}}}]"#;
    assert_eq!(verdict(Opa, deny).await, Ok(Verdict { code: Some(418), ..Verdict::deny("no") }));
    let bare = r#"[{"result":{"allowed":false,"status":{"message":"no"}}},{"result":{"allowed":true}}]"#;
    assert_eq!(verdict(Opa, bare).await, Ok(Verdict::deny("no")));
    let patch = r#"[{"result":{"response":{"uid":"u","allowed":true,"patchType":"JSONPatch",
        "patch":"W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL2xpc3QifV0="}}}]"#;
    assert_eq!(verdict(Opa, patch).await.unwrap().patch.unwrap().len(), 1);
}

#[tokio::test]
async fn a_gatekeeper_policy_answers_with_violations() {
    assert_eq!(verdict(Gatekeeper, r#"[{"result":[]}]"#).await, Ok(Verdict::allow()));
    let one = r#"[{"result":[{"msg":"no","details":{"a":1}}]}]"#;
    assert_eq!(verdict(Gatekeeper, one).await, Ok(Verdict::deny("no")));
    let cause = |message: &str| Cause { field: None, message: message.into() };
    let two = Verdict { causes: vec![cause("no"), cause("never")], ..Verdict::deny("no, never") };
    assert_eq!(verdict(Gatekeeper, r#"[{"result":[{"msg":"no"},{"msg":"never"}]}]"#).await, Ok(two));
}

#[tokio::test]
async fn a_malformed_answer_never_allows_the_request() {
    for (mode, results) in [
        (
            Opa,
            &[
                "",
                "[]",
                "{}",
                r#"[{"result":true}]"#,
                r#"[{"result":[]}]"#,
                r#"[{"result":{}}]"#,
                "[{}]",
                r#"[{"result":{"response":{"uid":"u"}}}]"#,
                r#"[{"result":{"response":{"allowed":"yes"}}}]"#,
            ][..],
        ),
        (
            Gatekeeper,
            &[
                "",
                "[]",
                "{}",
                r#"[{"result":true}]"#,
                r#"[{"result":{}}]"#,
                r#"[{"result":[{"msg":1}]}]"#,
                r#"[{"result":[{}]}]"#,
                r#"[{"result":["no"]}]"#,
                r#"[{"result":[{"msg":"no"},{"msg":null}]}]"#,
            ][..],
        ),
    ] {
        for result in results {
            let error = verdict(mode, result).await.unwrap_err();
            assert!(matches!(error, EvaluationError::InvalidAnswer(_)), "{mode} {result}: {error}");
        }
    }
}

#[tokio::test]
async fn the_text_of_an_aborted_policy_is_reported() {
    let text = Rego::with_body("(call $abort (i32.const 2048)) (i32.const 0)").text(TEXT, "a conflict").failure().await;
    assert_eq!(text, "the policy aborted: a conflict");
    assert_eq!(Rego::with_body("(i32.const 3)").failure().await, "the evaluation ended with the error 3");
    for text in ["hello", &"long".repeat(400)] {
        let printing = Rego::with_body("(call $println (i32.const 2048)) (i32.const 3)").text(TEXT, text);
        assert_eq!(printing.failure().await, "the evaluation ended with the error 3");
    }
}

#[tokio::test]
async fn compiled_rego_accepts_all_settings() {
    assert_eq!(Rego::with_body("unreachable").program(Opa).validate_settings(long_deadline()).await, Ok(()));
}

#[tokio::test]
async fn compiled_rego_uses_the_builtins_of_the_rego_engine() {
    for (builtin, arguments, expected) in [
        ("sprintf", &[r#""%s has %d of %v""#, r#"["a",2,{1,"x"}]"#][..], r#""a has 2 of {1, \"x\"}""#),
        ("semver.compare", &[r#""1.2.3""#, r#""1.10.0""#], "-1"),
        ("semver.is_valid", &[r#""1.2""#], "false"),
        ("regex.split", &[r#""-""#, r#""a-b""#], r#"["a","b"]"#),
        ("regex.replace", &[r#""a.c""#, r#""b""#, r#""x""#], r#""a.c""#),
        ("regex.find_n", &[r#""[a-z]+""#, r#""ab1cd2""#, "-1"], r#"["ab","cd"]"#),
        ("regex.template_match", &[r#""urn:{.*}""#, r#""urn:x""#, r#""{""#, r#""}""#], "true"),
        ("glob.quote_meta", &[r#""a*b""#], r#""a\\*b""#),
        ("base64url.encode_no_pad", &[r#""?""#], r#""Pw""#),
        ("hex.encode", &[r#""a""#], r#""61""#),
        ("hex.decode", &[r#""61""#], r#""a""#),
        ("urlquery.encode", &[r#""a b""#], r#""a+b""#),
        ("urlquery.encode_object", &[r#"{"a":{"1","2"}}"#], r#""a=1&a=2""#),
        ("yaml.unmarshal", &[r#""a: [1, x]""#], r#"{"a":[1,"x"]}"#),
        ("yaml.marshal", &[r#"{"a":1}"#], r#""a: 1\n""#),
        ("yaml.is_valid", &[r#""a: [""#], "false"),
        ("json.is_valid", &[r#""{}""#], "true"),
        ("json.patch", &[r#"{"a":1}"#, r#"[{"op":"add","path":"/b","value":2}]"#], r#"{"a":1,"b":2}"#),
        ("units.parse_bytes", &[r#""1Ki""#], "1024"),
        ("time.parse_rfc3339_ns", &[r#""1970-01-01T00:00:01Z""#], "1000000000"),
        ("object.union_n", &[r#"[{"a":1},{"b":set()}]"#], r#"{"a":1,"b":set()}"#),
        ("trace", &[r#""here""#], "true"),
        ("crypto.sha256", &[r#""a""#], r#""ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb""#),
        ("crypto.hmac.equal", &[r#""a""#, r#""a""#], "true"),
        ("io.jwt.decode", &[r#""eyJhbGciOiJub25lIn0.e30.""#], r#"[{"alg":"none"},{},""]"#),
        ("net.cidr_merge", &[r#"["192.0.128.0/24","192.0.129.0/24"]"#], r#"{"192.0.128.0/23"}"#),
        ("net.cidr_contains_matches", &[r#""1.1.1.0/24""#, r#""1.1.1.128""#], r#"{["1.1.1.0/24","1.1.1.128"]}"#),
    ] {
        let text = Rego::calling_builtin(builtin, arguments).failure().await;
        assert_eq!(text, format!("the policy aborted: {expected}"), "{builtin}");
    }
}

#[tokio::test]
async fn a_builtins_error_is_undefined_and_a_guards_refusal_is_a_failure() {
    let undefined = "the evaluation ended with the error 77";
    assert_eq!(Rego::calling_builtin("hex.decode", &[r#""x""#]).failure().await, undefined);
    assert_eq!(Rego::calling_builtin("yaml.unmarshal", &[r#""a: [""#]).failure().await, undefined);
    let text = Rego::calling_builtin("regex.split", &[r#""(""#, r#""a""#]).failure().await;
    assert!(text.starts_with("regex.split: ") && text.contains("not a valid regular expression"), "{text}");
    let text = Rego::calling_builtin("sprintf", &[r#""%d""#, "[1"]).failure().await;
    assert!(text.contains("sprintf: an argument is not valid"), "{text}");
}

#[tokio::test]
async fn the_time_stands_still_during_an_evaluation() {
    // The two results must have the same digits at different addresses. Otherwise the policy traps.
    let body = "
        (local $first i32) (local $second i32)
        (local.set $first (call $builtin0 (i32.const 7) (i32.const 0)))
        (local.set $second (call $builtin0 (i32.const 7) (i32.const 0)))
        (if (i32.eq (local.get $first) (local.get $second)) (then unreachable))
        (if (i64.ne (i64.load (i32.add (local.get $first) (i32.const 11)))
                    (i64.load (i32.add (local.get $second) (i32.const 11)))) (then unreachable))
        (call $abort (local.get $first)) (i32.const 0)";
    let clock = Rego::with_body(body).with_builtins(r#"{"time.now_ns":7}"#);
    let (first, second) = (clock.failure().await, clock.failure().await);
    assert!(first.starts_with("the policy aborted: 1") && first != second, "{first} {second}");
}

#[test]
fn builtins_that_are_not_provided_are_named() {
    let names = r#"{"http.send":1,"sprintf":2,"no.such":3,"opa.runtime":4}"#;
    let error = Rego::with_body("(i32.const 0)").with_builtins(names).load().unwrap_err();
    let text = "the module calls builtins that are not provided: http.send, no.such, opa.runtime";
    assert_eq!(error, CompileError::Unsupported(text.into()));
}

#[tokio::test]
async fn builtins_have_the_numbers_that_the_module_lists_and_a_fixed_arity() {
    let body = |call: &str| Rego::with_body(&format!("(drop {call}) (i32.const 0)")).with_builtins(r#"{"sprintf":7}"#);
    let text = body("(call $builtin0 (i32.const 8) (i32.const 0))").failure().await;
    assert_eq!(text, "the policy called the builtin 8, which its export `builtins` does not list");
    let text = body("(call $builtin1 (i32.const 7) (i32.const 0) (i32.const 4096))").failure().await;
    assert_eq!(text, "the policy called sprintf with 1 arguments, not 2");
}

#[test]
fn a_module_that_does_not_list_its_builtins_is_refused() {
    for (rego, words) in [
        (Rego::with_body("(i32.const 0)").with_builtins("no json"), "expected"),
        (Rego::with_body("(i32.const 0)").version(2), "not version 1"),
        (Rego::with_body("(i32.const 0)").field("(func $loop (loop (br 0))) (start $loop)"), "deadline"),
    ] {
        let error = rego.load().unwrap_err().to_string();
        assert!(error.contains("the builtins that it needs") && error.contains(words), "{error}");
    }
}
