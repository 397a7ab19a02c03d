//! The order of policies, and the requests that they cover.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Returns the names of the policies in the trail, if none of them has an effect.
fn evaluated(request: Request, policies: Vec<RequestPolicy>) -> Vec<String> {
    let mut progress = Chain::start(request, policies, Arc::default());
    loop {
        progress = match progress {
            Progress::Next(chain) => chain.apply(Ok(None)),
            Progress::Done(outcome) => {
                assert_eq!(outcome.decision, Decision::Approved);
                return outcome.trail.iter().map(|entry| entry.revision.policy.name().to_owned()).collect();
            }
        }
    }
}

fn selector(selector: Value) -> kube::core::Selector {
    serde_json::from_value::<LabelSelector>(selector).unwrap().try_into().unwrap()
}

#[test]
fn policies_are_ordered_by_level_then_priority_then_id() {
    let policies = [
        policy("u1", Level::User, 1),
        policy("t2", Level::Tenant, 2),
        policy("g7", Level::Global, 7),
        policy("b", Level::Global, 3),
        policy("a", Level::Global, 3),
        policy("t1", Level::Tenant, 1),
        policy("g1", Level::Global, 1),
    ];
    let expected = ["g1", "a", "b", "g7", "t1", "t2", "u1"];
    assert_eq!(evaluated(request(json!({})), policies.to_vec()), expected);
    assert_eq!(evaluated(request(json!({})), policies.iter().rev().cloned().collect()), expected);
}

#[test]
fn a_policy_covers_requests_that_meet_each_criterion() {
    let payload = json!({"service_type": "vm", "metadata": {"labels": {"env": "prod", "tier": "1", "size": 5}}});
    let request = Request::new(payload, Some("acme".into()), Some("ann".into())).unwrap();
    let any = Criteria::default();
    let by_selector = |value| Criteria { selector: selector(value), ..Criteria::default() };
    let cases = [
        (any.clone(), true),
        (Criteria { service_types: vec!["db".into(), "vm".into()], ..any.clone() }, true),
        (Criteria { service_types: vec!["db".into()], ..any.clone() }, false),
        (by_selector(json!({"matchLabels": {"env": "prod"}})), true),
        (by_selector(json!({"matchLabels": {"env": "prod", "team": "a"}})), false),
        (by_selector(json!({"matchLabels": {"service_type": "vm"}})), true),
        (by_selector(json!({"matchExpressions": [{"key": "env", "operator": "In", "values": ["dev", "prod"]}]})), true),
        (by_selector(json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]})), false),
        (by_selector(json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]})), true),
        (by_selector(json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]})), true),
        (by_selector(json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})), false),
        // A label whose value is not a string is not a label.
        (by_selector(json!({"matchExpressions": [{"key": "size", "operator": "Exists"}]})), false),
        (
            Criteria {
                service_types: vec!["vm".into()],
                selector: selector(json!({"matchLabels": {"env": "dev"}})),
                ..any.clone()
            },
            false,
        ),
        (Criteria { tenant: Some("acme".into()), ..any.clone() }, true),
        (Criteria { tenant: Some("other".into()), ..any.clone() }, false),
        (Criteria { user: Some("ann".into()), ..any.clone() }, true),
        (Criteria { user: Some("bob".into()), ..any.clone() }, false),
        (Criteria { tenant: Some("other".into()), user: Some("ann".into()), ..any }, false),
    ];
    for (criteria, expected) in cases {
        assert_eq!(criteria.cover(&request), expected, "{criteria:?}");
    }
}

#[test]
fn a_policy_of_a_tenant_or_user_does_not_cover_an_anonymous_request() {
    let request = request(json!({"service_type": "vm"}));
    for criteria in [
        Criteria { tenant: Some("acme".into()), ..Criteria::default() },
        Criteria { user: Some("ann".into()), ..Criteria::default() },
    ] {
        assert!(!criteria.cover(&request), "{criteria:?}");
    }
}

#[test]
fn a_label_of_the_caller_does_not_replace_the_service_type() {
    let payload = json!({"service_type": "vm", "metadata": {"labels": {"service_type": "db"}}});
    assert_eq!(request(payload).labels()["service_type"], "vm");
}

#[test]
fn a_request_without_policies_is_approved_as_it_is() {
    let outcome = evaluate(json!({"a": 1}), &[]);
    assert_eq!((outcome.decision.clone(), outcome.provider.clone()), (Decision::Approved, None));
    assert_eq!(outcome.payload, json!({"a": 1}));
    assert!(outcome.trail.is_empty());
}

#[test]
fn a_policy_sees_the_results_of_the_policies_before() {
    let policies = [policy("first", Level::Global, 1), policy("second", Level::User, 1)];
    let request = Request::new(json!({"cpu": 1}), Some("acme".into()), Some("ann".into())).unwrap();
    let Progress::Next(chain) = Chain::start(request, policies, Arc::default()) else {
        panic!("a policy covers the request")
    };
    assert_eq!(serde_json::to_value(chain.published_input()).unwrap(), json!({"spec": {"cpu": 1}, "provider": ""}));
    let result = json!({
        "patch": {"cpu": 2}, "constraints": {"cpu": {"maximum": 4}}, "selected_provider": "aws",
        "service_provider_constraints": {"allow_list": ["aws", "gcp"], "patterns": ["^a"]},
    });
    let Progress::Next(chain) = chain.apply(Ok(Some(result))) else { panic!("two policies cover the request") };
    assert_eq!(chain.policy().revision.policy.name(), "second");
    assert_eq!(
        serde_json::to_value(chain.published_input()).unwrap(),
        json!({
            "spec": {"cpu": 2}, "provider": "aws", "constraints": {"cpu": {"maximum": 4}},
            "service_provider_constraints": {"allow_list": ["aws", "gcp"], "patterns": ["^a"]},
        })
    );
    assert_eq!(
        serde_json::to_value(chain.input()).unwrap(),
        json!({
            "originalPayload": {"cpu": 1}, "payload": {"cpu": 2}, "constraints": {"cpu": {"maximum": 4}},
            "user": "ann", "tenant": "acme",
            "serviceProvider": {"value": "aws", "constraints": {"allowList": ["aws", "gcp"], "patterns": ["^a"]}},
        })
    );
}
