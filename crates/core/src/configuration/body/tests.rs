use super::*;
use crate::configuration::testing::{attributes, id, item, parse, policy};

#[test]
fn a_body_has_the_shape_of_onaps_policy_api() {
    let mut policy = policy("cluster.host-capacity", 69);
    policy.config_name = "alex_config_name".to_owned();
    policy.owner = Some("DCAE".to_owned());
    policy.attributes = attributes([("priority", "1")]);
    let item = Item::new(&policy, &json!({"hello": "world"})).unwrap();
    let expected = json!({
        "policyName": "cluster.host-capacity.69.xml",
        "policyConfigMessage": "Config Retrieved! ",
        "responseAttributes": {},
        "policyConfigStatus": "CONFIG_RETRIEVED",
        "type": "JSON",
        "matchingConditions": {"ONAPName": "DCAE", "ConfigName": "alex_config_name", "priority": "1"},
        "property": null,
        "config": {"hello": "world"},
        "policyVersion": "69",
    });
    assert_eq!(parse(item.body()), expected);
    assert!(
        item.body().starts_with(r#"{"config":{"hello":"world"},"matchingConditions":{"ConfigName""#),
        "{}",
        item.body()
    );
}

#[test]
fn a_candidate_body_names_its_experiment_and_differs_from_the_live_body() {
    let live = policy("cluster.memory", 7);
    let mut candidate = live.clone();
    candidate.version.candidate = Some(Candidate { experiment: "bigger".to_owned(), generation: 2 });
    let body = Item::new(&candidate, &json!(1)).unwrap();
    let value = parse(body.body());
    assert_eq!((&value["policyVersion"], &value["policyName"]), (&json!("7"), &json!("cluster.memory.7.xml")));
    assert_eq!(value["experiment"], json!({"name": "bigger", "generation": 2}));
    assert_ne!(body.entry(), Item::new(&live, &json!(1)).unwrap().entry());
    assert_eq!(Item::read(body.body(), false).unwrap(), body);
}

#[test]
fn the_digest_does_not_depend_on_the_order_of_keys() {
    let body = |text: &str| item("cluster.memory", 1, &parse(text)).entry();
    assert_eq!(body(r#"{"a": 1, "b": {"c": 2, "d": 3}}"#), body(r#"{"b": {"d": 3, "c": 2}, "a": 1}"#));
    assert_ne!(body(r#"{"a": 1}"#), body(r#"{"a": 2}"#));
    assert_ne!(item("cluster.memory", 1, &json!(1)).entry(), item("cluster.memory", 2, &json!(1)).entry());
}

#[test]
fn a_body_of_512_kib_is_accepted_and_a_larger_one_is_refused_with_its_size() {
    let policy = policy("ns.team-a.memory", 1);
    let frame = Item::new(&policy, &json!("")).unwrap().body().len();
    let largest = "x".repeat(MAX_BODY - frame);
    assert_eq!(Item::new(&policy, &json!(largest)).unwrap().body().len(), MAX_BODY);
    let error = Item::new(&policy, &json!(largest + "x")).unwrap_err();
    assert_eq!(error, BodyError::TooLarge { policy: id("ns.team-a.memory"), size: MAX_BODY + 1 });
    assert_eq!(error.reason().as_str(), "BodyTooLarge");
    let text = error.to_string();
    assert!(text.contains("ns.team-a.memory has 524289 bytes") && text.contains("524288"), "{text}");
}

#[test]
fn content_that_is_nested_too_deep_is_refused() {
    let nested = |depth| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    assert!(Item::new(&policy("cluster.memory", 1), &nested(MAX_DEPTH)).is_ok());
    let error = Item::new(&policy("cluster.memory", 1), &nested(MAX_DEPTH + 1)).unwrap_err();
    assert_eq!(error, BodyError::TooDeep { policy: id("cluster.memory") });
}

#[test]
fn stored_text_that_is_no_policy_body_is_refused() {
    for text in ["", "{}", "[]", "x", r#"{"policyVersion": 1}"#, r#"{"policyVersion": "x"}"#] {
        assert!(Item::read(text, false).is_err(), "{text}");
    }
    let item = item("cluster.memory", 3, &json!({"a": 1}));
    assert_eq!(Item::read(item.body(), false).unwrap(), item);
    let edited = item.body().replace('1', "2");
    assert_ne!(Item::read(&edited, false).unwrap().entry(), item.entry());
}

#[test]
fn a_digest_round_trips_through_its_text() {
    let digest = Digest::of("x");
    let text = digest.to_string();
    assert_eq!(text, "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    assert_eq!(text.parse(), Ok(digest));
    for text in
        ["", "sha256:", &text[7..], &text[..70], &text.replace('2', "ä"), &text.replace('2', "+"), &text.to_uppercase()]
    {
        assert!(text.parse::<Digest>().is_err(), "{text}");
    }
}

#[test]
fn a_reference_has_the_name_and_the_version_without_the_content() {
    let reference = reference(&id("ns.a.b.c"), &Version::of(4));
    let expected = json!({"configOmitted": true, "policyName": "ns.a.b.c.4.xml", "policyVersion": "4"});
    assert_eq!(parse(&reference), expected);
}
