use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn review(request: &Value) -> Bytes {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string().into()
}

fn joined(review: &Review) -> String {
    String::from_utf8(review.request_pieces().flatten().copied().collect()).unwrap()
}

#[test]
fn a_parsed_request_keeps_its_bytes() {
    let body = r#"{ "kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1",
      "request": {"uid":"u-1","kind":{"group":"apps","version":"v1","kind":"Deployment"},
        "resource":{"group":"apps","version":"v1","resource":"deployments"},"subResource":"scale",
        "name":"web","namespace":"prod","operation":"UPDATE","userInfo":{"username":"ann","groups":["dev"],"extra":{"a":["b"]}},
        "object":{"metadata": {"name":"web"},  "n":1.0e3},"oldObject":null,"dryRun":true,"options":null}}"#;
    let review = Review::admission(Bytes::from_static(body.as_bytes())).unwrap();
    let head = review.head().unwrap();
    assert_eq!((head.kind.kind.as_str(), head.sub_resource.as_str()), ("Deployment", "scale"));
    assert_eq!((head.name.as_str(), head.namespace.as_str(), head.operation), ("web", "prod", Some(Operation::Update)));
    assert_eq!((head.user.username.as_str(), review.uid(), review.is_dry_run()), ("ann", "u-1", true));
    assert_eq!(review.object_json(), Some(r#"{"metadata": {"name":"web"},  "n":1.0e3}"#));
    assert_eq!(review.old_object_json(), None);
    let start = body.find(r#"{"uid""#).unwrap();
    assert_eq!(review.request_json(), &body[start..body.len() - 1]);
}

#[test]
fn a_guest_gets_the_request_without_null_members() {
    for (request, wanted) in [
        (r#"{"uid":"u"}"#, r#"{"uid":"u"}"#),
        (r#"{"uid":"u","a":null}"#, r#"{"uid":"u"}"#),
        (r#"{"a":null,"uid":"u"}"#, r#"{"uid":"u"}"#),
        (r#"{"a":null,"uid":"u","b":null}"#, r#"{"uid":"u"}"#),
        (r#"{ "uid" : "u" , "a":null, "b":null , "c": {"d":null} }"#, r#"{ "uid" : "u" , "c": {"d":null} }"#),
    ] {
        let body = format!(r#"{{"request":{request}}}"#);
        assert_eq!(joined(&Review::admission(body.into()).unwrap()), wanted, "{request}");
    }
}

#[test]
fn a_malformed_review_is_refused_with_its_uid_if_readable() {
    let deep = format!(r#"{{"request":{{"uid":"u","object":{}1{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let huge_depth = "[".repeat(1_000_000);
    for (body, uid, message) in [
        ("", None, "not an AdmissionReview"),
        ("[]", None, "not an AdmissionReview"),
        ("{}", None, "has no request"),
        (r#"{"uid":"u","kind":{"kind":"Pod"}}"#, None, "wrap it as `request`"),
        (r#"{"request":{}}"#, None, "uid is missing"),
        (r#"{"request":{"uid":7}}"#, None, "uid"),
        (r#"{"request":null}"#, None, "has no request"),
        (r#"{"request":"u"}"#, None, "an object"),
        (r#"{"request":[]}"#, None, "an object"),
        (r#"["admission.k8s.io/v1","AdmissionReview",{"uid":"u"}]"#, None, "an object"),
        (r#"{"kind":null,"kind":"Pod","request":{"uid":"u"}}"#, Some("u"), "duplicate"),
        (r#"{"request":{"uid":"u","uid":"v"}}"#, Some("u"), "duplicate member"),
        (r#"{"request":{"uid":"u","object":{},"object":{}}}"#, Some("u"), "duplicate member"),
        (r#"{"request":{"uid":"u"},"request":{"uid":"v"}}"#, Some("u"), "duplicate"),
        (r#"{"request":{"uid":"u","obj\u0065ct":{}}}"#, Some("u"), "escapes"),
        (r#"{"request":{"uid":"u","object":{},"obj\u0065ct":null}}"#, Some("u"), "escapes"),
        (r#"{"request":{"uid":"u","object":null,"object":{}}}"#, Some("u"), "duplicate member"),
        (r#"{"kind":"Pod","request":{"uid":"u"}}"#, Some("u"), r#"kind is "Pod""#),
        (r#"{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}"#, Some("u"), "v1beta1"),
        (r#"{"request":{"uid":"u","operation":"WATCH"}}"#, Some("u"), "operation"),
        (r#"{"request":{"uid":"u"}"#, Some("u"), "EOF"),
        (&deep, Some("u"), "nested deeper"),
        (&huge_depth, None, "nested deeper"),
    ] {
        let error = Review::admission(body.to_owned().into()).unwrap_err();
        assert_eq!(error.uid.as_deref(), uid, "{body:.80}");
        assert!(error.message.contains(message), "{body:.80}: {error}");
    }
    let error = Review::admission(Bytes::from_static(b"{\"request\":{\"uid\":\"\xff\"}}")).unwrap_err();
    assert!(error.message.contains("UTF-8"), "{error}");
}

#[test]
fn the_request_range_includes_its_braces() {
    for request in
        [r#"{"uid":"u"}"#, "{ \n\t\r\"uid\":\"u\" }", r#"{"{":"}","uid":"u","}":["{"] }"#, r#"{"uid":"u","n":1}"#]
    {
        let body = format!(r#"{{ "a":{{"b":{{}}}}, "request" : {request} , "c":"}}" }}"#);
        assert_eq!(Review::admission(body.into()).unwrap().request_json(), request);
    }
}

#[test]
fn duplicate_members_are_found_among_many_members() {
    let members: Vec<String> = (0..100_000).map(|index| format!(r#""m{index}":1"#)).collect();
    let body = |last: &str| format!(r#"{{"request":{{"uid":"u",{},{last}}}}}"#, members.join(","));
    assert!(Review::admission(body(r#""last":1"#).into()).is_ok());
    let error = Review::admission(body(r#""m7":1"#).into()).unwrap_err();
    assert!(error.message.contains(r#"duplicate member "m7""#), "{error}");
}

#[test]
fn a_raw_request_may_be_any_json() {
    for (body, uid, request) in [
        (r#"{"request":{"uid":"u","b":null}}"#, "u", r#"{"uid":"u","b":null}"#),
        (r#"{"request":[1,2]}"#, "", "[1,2]"),
        (r#"{"request":"x"}"#, "", r#""x""#),
    ] {
        let review = Review::raw(body.into()).unwrap();
        assert_eq!((review.uid(), review.request_json(), joined(&review).as_str()), (uid, request, request));
    }
    assert!(Review::raw("{}".into()).is_err());
}

proptest! {
    #[test]
    fn cut_null_members_match_a_parsed_request_without_them(values in proptest::collection::vec(0..3_usize, 0..8), spaces in " {0,2}") {
        let mut members = serde_json::Map::from_iter([("uid".to_owned(), json!("u"))]);
        for (index, value) in values.iter().enumerate() {
            let values = [Value::Null, json!("n,ull"), json!({"a": [null, "}"]})];
            members.insert(format!("m{index}"), values[*value].clone());
        }
        let body = review(&Value::Object(members.clone()));
        let body = String::from_utf8(body.to_vec()).unwrap().replace(',', &format!("{spaces},{spaces}"));
        // The added spaces also changed some strings, so the expected value is parsed from the changed body.
        let parsed: Value = serde_json::from_str(&body).unwrap();
        let mut expected = parsed["request"].clone();
        expected.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let review = Review::admission(body.into()).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&joined(&review)).unwrap(), expected);
    }

    #[test]
    fn parsing_any_body_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Review::admission(body.clone().into());
        let _ = Review::raw(body.into());
    }

    #[test]
    fn parsing_text_similar_to_a_review_does_not_panic(body in r#"\{"request":\{("(uid|object|a)":(null|"u"|\{\}|\[|1),?){0,4}\}?\}?"#) {
        if let Ok(review) = Review::admission(body.into()) {
            prop_assert!(serde_json::from_str::<Value>(&joined(&review)).is_ok());
        }
    }
}

#[test]
fn secrets_and_tokens_are_confidential() {
    for (group, resource, sub_resource, wanted) in [
        ("", "secrets", "", true),
        ("", "serviceaccounts", "token", true),
        ("authentication.k8s.io", "tokenreviews", "", true),
        ("", "serviceaccounts", "", false),
        ("", "configmaps", "", false),
        ("example.com", "secrets", "", false),
    ] {
        let resource = json!({"group": group, "version": "v1", "resource": resource});
        let request = json!({"uid": "u", "resource": resource, "subResource": sub_resource});
        let review = Review::admission(review(&request)).unwrap();
        assert_eq!(review.is_confidential(), wanted, "{request}");
    }
    // A review that a person wrote, and one that the API server converted.
    let kind = json!({"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Secret"}});
    let converted = json!({"uid": "u", "requestResource": {"group": "", "version": "v1", "resource": "secrets"}});
    for request in [kind, converted] {
        assert!(Review::admission(review(&request)).unwrap().is_confidential(), "{request}");
    }
}
