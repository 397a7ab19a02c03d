use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn a_match(admission: &Value) -> Match {
    let selector = |name: &str| serde_json::from_value(admission[name].clone()).unwrap();
    let rules = match &admission["rules"] {
        Value::Null => json!([rule("*", "*", "*/*")]),
        rules => rules.clone(),
    };
    let exact = admission["matchPolicy"] == "Exact";
    Match::new(serde_json::from_value(rules).unwrap(), selector("namespaceSelector"), selector("objectSelector"), exact)
        .unwrap()
}

fn rule(operation: &str, group: &str, resource: &str) -> Value {
    json!({"operations": [operation], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]})
}

fn request(resource: &str, operation: &str, namespace: &str, object: &Value, old_object: &Value) -> Review {
    let (resource, sub_resource) = resource.split_once('/').unwrap_or((resource, ""));
    let (group, resource) = resource.split_once(':').unwrap_or(("", resource));
    let body = json!({"request": {
        "uid": "u", "operation": operation, "namespace": namespace, "name": "x", "subResource": sub_resource,
        "resource": {"group": group, "version": "v1", "resource": resource}, "object": object, "oldObject": old_object,
    }});
    Review::admission(body.to_string().into()).unwrap()
}

fn labelled(labels: &Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn covers(matching: &Match, review: &Review, namespaces: &BTreeMap<String, Labels>) -> bool {
    matching.covers(review, |name| namespaces.get(name)) == Coverage::Covered
}

#[test]
fn rules_cover_the_requests_that_the_api_server_sends() {
    let scoped = |mut rule: Value, scope: &str| {
        rule["scope"] = scope.into();
        rule
    };
    for (rule, resource, operation, namespace, wanted) in [
        (rule("CREATE", "", "pods"), "pods", "CREATE", "a", true),
        (rule("CREATE", "", "pods"), "pods", "UPDATE", "a", false),
        (rule("CREATE", "", "pods"), "apps:pods", "CREATE", "a", false),
        (rule("*", "*", "*"), "apps:deployments", "DELETE", "a", true),
        (rule("*", "*", "*"), "apps:deployments/scale", "UPDATE", "a", false),
        (rule("*", "*", "*/*"), "apps:deployments/scale", "UPDATE", "a", true),
        (rule("*", "*", "*/*"), "apps:deployments", "UPDATE", "a", true),
        (rule("*", "*", "*/scale"), "apps:deployments/scale", "UPDATE", "a", true),
        (rule("*", "*", "pods/*"), "pods/exec", "CONNECT", "a", true),
        (rule("*", "*", "pods/*"), "apps:deployments/scale", "UPDATE", "a", false),
        (rule("*", "", "pods"), "pods/exec", "CONNECT", "a", false),
        (rule("*", "", "events"), "events.k8s.io:events", "CREATE", "a", true),
        (scoped(rule("*", "*", "*"), "Namespaced"), "pods", "CREATE", "a", true),
        (scoped(rule("*", "*", "*"), "Namespaced"), "nodes", "CREATE", "", false),
        (scoped(rule("*", "*", "*"), "Namespaced"), "namespaces", "CREATE", "a", false),
        (scoped(rule("*", "*", "*"), "Cluster"), "namespaces", "CREATE", "a", true),
        (scoped(rule("*", "*", "*"), "Cluster"), "pods", "CREATE", "a", false),
    ] {
        let matching = a_match(&json!({"rules": [rule]}));
        let review = request(resource, operation, namespace, &Value::Null, &Value::Null);
        let coverage = matching.covers(&review, |_| None);
        let expected = if wanted {
            Coverage::Covered
        } else {
            Coverage::NotCovered { why: "spec.admission.rules does not cover the request" }
        };
        assert_eq!(coverage, expected, "{rule} {resource} {operation} {namespace:?}");
    }
}

#[test]
fn a_namespaced_policy_is_confined_to_its_namespace() {
    let matching = a_match(&json!({})).confined_to(Some("a"));
    for (resource, namespace, wanted) in [
        ("pods", "a", true),
        ("apps:deployments/scale", "a", true),
        ("pods", "b", false),
        ("nodes", "", false),
        ("namespaces", "a", false),
        ("secrets", "a", false),
        ("other.example:secrets", "a", true),
        ("proviso.dev:policies", "a", false),
        ("rbac.authorization.k8s.io:rolebindings", "a", false),
        ("resourcequotas", "a", false),
        ("pods/exec", "a", false),
        ("pods/resize", "a", true),
    ] {
        let review = request(resource, "CREATE", namespace, &Value::Null, &Value::Null);
        assert_eq!(covers(&matching, &review, &BTreeMap::new()), wanted, "{resource} {namespace:?}");
        assert_eq!(matching.covers_by_confinement(&review) == Coverage::Covered, wanted, "{resource} {namespace:?}");
    }
}

#[test]
fn a_namespaced_policy_may_be_confined_to_requests_that_are_not_of_kubernetes_itself() {
    let review = |user: Value| {
        let resource = json!({"group": "", "version": "v1", "resource": "pods"});
        let request = json!({
            "uid": "u", "resource": resource, "namespace": "a", "operation": "CREATE", "userInfo": user,
        });
        Review::admission(json!({"request": request}).to_string().into()).unwrap()
    };
    let admin = json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]});
    let person = json!({"username": "ann", "groups": null});
    for (namespace, user, wanted) in [(Some("a"), &admin, false), (Some("a"), &person, true), (None, &admin, true)] {
        let matching = a_match(&json!({})).confined_to(namespace).without_system_requests();
        assert_eq!(covers(&matching, &review(user.clone()), &BTreeMap::new()), wanted, "{namespace:?} {user}");
        let is_covered = matching.covers_by_confinement(&review(user.clone())) == Coverage::Covered;
        assert_eq!(is_covered, wanted, "{namespace:?} {user}");
    }
    let with_system_requests = a_match(&json!({})).confined_to(Some("a"));
    assert!(covers(&with_system_requests, &review(admin), &BTreeMap::new()));
}

#[test]
fn the_confinement_does_not_depend_on_rules_and_selectors() {
    let nothing = a_match(&json!({
        "rules": [rule("DELETE", "other.example", "none")],
        "namespaceSelector": {"matchLabels": {"team": "other"}},
        "objectSelector": {"matchLabels": {"app": "other"}},
    }));
    let namespaces = BTreeMap::from([("a".to_owned(), Labels::new())]);
    let review = |namespace: &str| request("pods", "CREATE", namespace, &labelled(&json!({})), &Value::Null);
    assert!(!covers(&nothing, &review("a"), &namespaces));
    assert_eq!(nothing.covers_by_confinement(&review("a")), Coverage::Covered, "a ClusterPolicy has no confinement");
    let confined = nothing.confined_to(Some("a"));
    assert_eq!(confined.covers_by_confinement(&review("a")), Coverage::Covered);
    assert!(matches!(confined.covers_by_confinement(&review("b")), Coverage::NotCovered { .. }));
    let raw = Review::raw(r#"{"request": {"uid": "u"}}"#.into()).unwrap();
    assert_eq!(confined.covers_by_confinement(&raw), Coverage::Covered, "a raw request has no namespace");
}

#[test]
fn only_exact_matching_compares_the_version() {
    let v2 = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v2"], "resources": ["pods"]}]);
    let review = request("pods", "CREATE", "a", &Value::Null, &Value::Null);
    for (policy, wanted) in [("Exact", false), ("Equivalent", true)] {
        assert_eq!(covers(&a_match(&json!({"rules": v2, "matchPolicy": policy})), &review, &BTreeMap::new()), wanted);
    }
}

#[test]
fn exact_matching_ignores_the_converted_resource() {
    // A client sent v1, and the API server converted the object to v2 for another webhook.
    let review = |original: &str, converted: &str| {
        let resource = |version: &str| json!({"group": "apps", "version": version, "resource": "deployments"});
        let request = json!({"uid": "u", "resource": resource(converted), "requestResource": resource(original)});
        Review::admission(json!({"request": request}).to_string().into()).unwrap()
    };
    for (policy, original, converted, wanted) in [
        ("Exact", "v1", "v2", true),
        ("Exact", "v2", "v1", false),
        ("Exact", "v1", "v1", true),
        ("Equivalent", "v2", "v1", true),
    ] {
        let matching = a_match(&json!({"rules": [rule("*", "apps", "deployments")], "matchPolicy": policy}));
        let found = covers(&matching, &review(original, converted), &BTreeMap::new());
        assert_eq!(found, wanted, "{policy} {original} {converted}");
    }
    // The API server converts between groups in the same way.
    let request = json!({"uid": "u", "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "requestResource": {"group": "extensions", "version": "v1", "resource": "deployments"}});
    let moved = Review::admission(json!({"request": request}).to_string().into()).unwrap();
    for (policy, group, wanted) in [
        ("Exact", "extensions", true),
        ("Exact", "apps", false),
        ("Equivalent", "extensions", true),
        ("Equivalent", "apps", true),
    ] {
        let matching = a_match(&json!({"rules": [rule("*", group, "deployments")], "matchPolicy": policy}));
        assert_eq!(covers(&matching, &moved, &BTreeMap::new()), wanted, "{policy} {group}");
    }
}

#[test]
fn labels_are_parsed_or_unreadable() {
    let labels = Some(Labels::from([("a".to_owned(), "b".to_owned())]));
    let empty = Some(Labels::new());
    for (object, wanted) in [
        (r#"{"metadata":{"name":"x","labels":{"a":"b"}}}"#, &labels),
        ("{}", &empty),
        (r#"{"metadata":null}"#, &empty),
        (r#"{"metadata":{}}"#, &empty),
        (r#"{"metadata":{"labels":null}}"#, &empty),
        (r#"{"metadata":{},"metadata":{"labels":{"a":"b"}}}"#, &None),
        (r#"{"metadata":{"labels":{},"labels":{"a":"b"}}}"#, &None),
        (r#"{"metadata":{"labels":{"a":1}}}"#, &None),
        (r#"{"metadata":{"labels":["a"]}}"#, &None),
        (r#"{"metadata":[{"a":"b"}]}"#, &None),
        (r#"[{"labels":{"a":"b"}}]"#, &None),
        ("7", &None),
        ("\"x\"", &None),
    ] {
        assert_eq!(&labels_of(object), wanted, "{object}");
    }
}

#[test]
fn an_object_selector_checks_the_object_and_the_old_object() {
    let matching = a_match(&json!({"objectSelector": {"matchLabels": {"tier": "web"}}}));
    let (web, other) = (labelled(&json!({"tier": "web"})), labelled(&json!({"tier": "db"})));
    for (object, old_object, wanted) in [
        (&web, &Value::Null, true),
        (&other, &Value::Null, false),
        (&other, &web, true),
        (&Value::Null, &web, true),
        (&Value::Null, &Value::Null, false),
        (&json!({"metadata": {"labels": null}}), &Value::Null, false),
        (&json!({"metadata": null}), &Value::Null, false),
        // Unreadable labels count as covered.
        (&labelled(&json!({"tier": 7})), &Value::Null, true),
        (&other, &json!([other]), true),
    ] {
        let review = request("pods", "UPDATE", "a", object, old_object);
        assert_eq!(covers(&matching, &review, &BTreeMap::new()), wanted, "{object} {old_object}");
    }
}

#[test]
fn a_namespace_selector_uses_the_known_labels() {
    let labels = |env: &str| Labels::from([("env".to_owned(), env.to_owned())]);
    let namespaces = BTreeMap::from([
        ("prod".to_owned(), labels("prod")),
        ("dev".to_owned(), labels("dev")),
        // No namespace has an empty name, so this entry must have no effect.
        (String::new(), Labels::new()),
    ]);
    let prod = json!({"matchLabels": {"env": "prod"}});
    let not_system =
        json!({"matchExpressions": [{"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": ["kube-system"]}]});
    let null = Value::Null;
    for (selector, resource, operation, namespace, object, wanted) in [
        (&prod, "pods", "CREATE", "prod", &null, true),
        (&not_system, "pods", "CREATE", "prod", &null, true),
        (&not_system, "pods", "CREATE", "kube-system", &null, false),
        // The labels of this namespace are unknown, so the request is covered.
        (&prod, "pods", "CREATE", "unknown", &null, true),
        (&prod, "nodes", "CREATE", "", &null, true),
        // A Namespace is selected by the labels in the request, and for a DELETE by its current labels.
        (&prod, "namespaces", "CREATE", "new", &labelled(&json!({"env": "prod"})), true),
        (&prod, "namespaces", "CREATE", "new", &labelled(&json!({"env": "dev"})), false),
        (&prod, "namespaces", "CREATE", "new", &labelled(&json!({"env": ["dev"]})), true),
        (&prod, "namespaces", "DELETE", "prod", &null, true),
        (&prod, "namespaces", "DELETE", "dev", &null, false),
    ] {
        let matching = a_match(&json!({"namespaceSelector": selector}));
        let review = request(resource, operation, namespace, object, &null);
        assert_eq!(covers(&matching, &review, &namespaces), wanted, "{selector} {resource} {operation} {namespace}");
    }
    let dev = BTreeMap::from([("prod".to_owned(), Labels::new())]);
    let review = request("pods", "CREATE", "prod", &null, &null);
    assert!(!covers(&a_match(&json!({"namespaceSelector": prod})), &review, &dev));
}

#[test]
fn an_unknown_operator_is_an_error() {
    let selector = serde_json::from_value(json!({"matchExpressions": [{"key": "a", "operator": "Like"}]})).unwrap();
    assert!(Match::new(Vec::new(), selector, None, false).is_err());
}

#[test]
fn a_review_without_a_resource_is_covered() {
    let review = Review::admission(r#"{"request":{"uid":"u"}}"#.into()).unwrap();
    for scope in ["Namespaced", "Cluster", "*"] {
        let mut rule = rule("CREATE", "apps", "deployments");
        rule["scope"] = scope.into();
        assert!(covers(&a_match(&json!({"rules": [rule]})), &review, &BTreeMap::new()), "{scope}");
    }
}

proptest! {
    /// A match with several rules covers a request if and only if one of the rules covers it.
    #[test]
    fn a_match_covers_the_union_of_its_rules(
        rules in proptest::collection::vec(("CREATE|UPDATE|DELETE|\\*", "|apps|\\*", "pods|deployments|pods/exec|\\*|\\*/\\*|\\*/exec"), 1..4),
        resource in "pods|apps:deployments|pods/exec|nodes",
        operation in "CREATE|UPDATE|DELETE|CONNECT",
        namespace in "|a",
    ) {
        let review = request(&resource, &operation, &namespace, &Value::Null, &Value::Null);
        let rules: Vec<Value> = rules.iter().map(|(operation, group, resource)| rule(operation, group, resource)).collect();
        let all = covers(&a_match(&json!({"rules": rules})), &review, &BTreeMap::new());
        let any = rules.iter().any(|rule| covers(&a_match(&json!({"rules": [rule]})), &review, &BTreeMap::new()));
        prop_assert_eq!(all, any);
        let everything = a_match(&json!({"rules": [rule("*", "*", "*/*")]}));
        prop_assert!(covers(&everything, &review, &BTreeMap::new()));
    }

    #[test]
    fn a_selector_and_its_negation_never_agree(key in "[ab]", value in "[xy]", labels in proptest::collection::btree_map("[ab]", "[xy]", 0..3)) {
        let review = request("pods", "CREATE", "", &labelled(&json!(labels)), &Value::Null);
        let select = |operator: &str| {
            let requirement = json!({"key": key, "operator": operator, "values": [value]});
            covers(&a_match(&json!({"objectSelector": {"matchExpressions": [requirement]}})), &review, &BTreeMap::new())
        };
        prop_assert_ne!(select("In"), select("NotIn"));
        prop_assert_ne!(select("Exists"), select("DoesNotExist"));
    }
}

// A policy on `*` must not see bearer tokens, nor stop the components that ask for permissions.
#[test]
fn wildcards_do_not_cover_reviews_of_credentials() {
    let (tokens, access) = ("authentication.k8s.io:tokenreviews", "authorization.k8s.io:localsubjectaccessreviews");
    for (rules, resource, namespace, wanted) in [
        (json!([rule("*", "*", "*/*")]), tokens, None, false),
        (json!([rule("*", "*", "*/*")]), access, None, false),
        (json!([rule("*", "authentication.k8s.io", "*")]), tokens, None, true),
        (json!([rule("*", "authentication.k8s.io", "*")]), access, None, false),
        (json!([rule("*", "*", "*"), rule("*", "authorization.k8s.io", "none")]), access, None, true),
        (json!([rule("*", "authorization.k8s.io", "*")]), access, Some("a"), false),
        (json!([rule("*", "*", "*")]), "pods", None, true),
    ] {
        let matching = a_match(&json!({"rules": rules})).confined_to(namespace);
        let review = request(resource, "CREATE", "a", &Value::Null, &Value::Null);
        assert_eq!(covers(&matching, &review, &BTreeMap::new()), wanted, "{rules}, {resource}, {namespace:?}");
        // An API server matches by the same rule: see the operator's webhook configurations.
        let by_confinement = matching.covers_by_confinement(&review) == Coverage::Covered;
        assert_eq!(by_confinement, wanted, "{rules}, {resource}, {namespace:?}");
    }
}
