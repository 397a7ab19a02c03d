use super::*;
use crate::request_policies::test_policy::stored;

fn new(body: &Value) -> Result<NewPolicy> {
    NewPolicy::read(body.as_object().unwrap().clone())
}

fn body(policy_type: &str) -> Value {
    json!({"name": "Sizes", "type": policy_type, "rego": "package p\nresult := {}"})
}

fn resource(spec: &Value) -> Resource {
    Resource::of(&stored("ns.team-a.sizes", spec), &tenants()).unwrap()
}

fn tenants() -> NamespaceTenants {
    NamespaceTenants::new([("team-a".to_owned(), "blue".to_owned())])
}

#[test]
fn each_type_needs_its_owner() {
    let with = |policy_type: &str, owners: &[&str]| {
        let mut body = body(policy_type);
        for owner in owners {
            body[*owner] = json!("x");
        }
        new(&body).map(drop).map_err(|error| error.violations[0].field.clone())
    };
    assert_eq!(with("Global", &[]), Ok(()));
    assert_eq!(with("Tenant", &["tenant"]), Ok(()));
    assert_eq!(with("User", &["user"]), Ok(()));
    assert_eq!(with("User", &["user", "tenant"]), Ok(()));
    for (policy_type, owners, field) in [
        ("Global", &["tenant"][..], "tenant"),
        ("Global", &["user"], "user"),
        ("Tenant", &[], "tenant"),
        ("Tenant", &["tenant", "user"], "user"),
        ("User", &[], "user"),
        ("User", &["tenant"], "user"),
        ("GLOBAL", &[], "type"),
    ] {
        assert_eq!(with(policy_type, owners), Err(field.to_owned()), "{policy_type} {owners:?}");
    }
}

#[test]
fn an_invalid_field_is_refused_by_its_name() {
    for (field, value) in [
        ("name", json!("  ")),
        ("name", json!("x".repeat(256))),
        ("type", json!(null)),
        ("priority", json!(0)),
        ("priority", json!(1001)),
        ("rego", json!(" ")),
        ("rego", json!("x".repeat(262_145))),
        ("serviceTypes", json!([""])),
        ("serviceTypes", json!("vm")),
        ("labelSelector", json!({"matchLabel": {}})),
        ("id", json!("x")),
        ("regoCode", json!("x")),
    ] {
        let mut body = body("Global");
        body[field] = value.clone();
        let error = new(&body).unwrap_err();
        assert!(error.violations[0].field.starts_with(field), "{field} {value}: {error}");
    }
    let mut both = body("Global");
    (both["serviceType"], both["serviceTypes"]) = (json!("vm"), json!(["db"]));
    assert_eq!(new(&both).unwrap_err().violations[0].field, "serviceType");
}

#[test]
fn a_new_policy_becomes_a_spec() {
    let mut body = body("User");
    (body["user"], body["serviceType"], body["priority"]) = (json!("ana"), json!("vm"), json!(7));
    body["labelSelector"] = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    let spec = json!(new(&body).unwrap().to_spec().unwrap());
    let program = json!({"rego": {"source": "package p\nresult := {}", "dialect": "Request"}});
    assert_eq!((&spec["program"], &spec["enabled"]), (&program, &json!(true)));
    let request = json!({
        "displayName": "Sizes", "level": "User", "user": "ana", "serviceTypes": ["vm"], "priority": 7,
        "selector": body["labelSelector"],
    });
    assert_eq!(spec["request"], request);
}

#[test]
fn a_replacement_repeats_the_immutable_fields_or_leaves_them_out() {
    let spec = json!({
        "program": {"rego": {"source": "package p\nmain := {}", "dialect": "Request", "entrypoint": "main"}},
        "enabled": false,
        "request": {"displayName": "Sizes", "description": "d", "serviceTypes": ["vm"], "priority": 7},
    });
    let policy = stored("ns.team-a.sizes", &spec);
    let mut whole = resource(&spec).to_json();
    assert_eq!((&whole["type"], &whole["tenant"], &whole["id"]), (&json!("Tenant"), &json!("blue"), &json!("u")));
    let replace = |body: &Value| {
        let replacement = Replacement::read(body.as_object().unwrap())?;
        replacement.check_immutable(&resource(&spec))?;
        replacement.to_spec(&policy.spec)
    };
    assert_eq!(replace(&whole).unwrap(), policy.spec, "what a client has read can be written back");

    let replaced = replace(&json!({"priority": 8, "rego": "package q\nresult := {}"})).unwrap();
    let request = replaced.request.unwrap();
    assert_eq!((request.priority, request.service_types.len(), replaced.enabled), (8, 0, false));
    assert_eq!(request.description.as_deref(), Some("d"));
    // The new module has the rules of the ADR, so its entrypoint is found again.
    assert_eq!(json!(replaced.program)["rego"].get("entrypoint"), None);

    for (field, value) in
        [("name", json!("b")), ("type", json!("User")), ("tenant", json!("green")), ("id", json!("v"))]
    {
        let old = std::mem::replace(&mut whole[field], value);
        assert_eq!(replace(&whole).unwrap_err().violations[0].field, field);
        whole[field] = old;
    }
    for missing in ["priority", "rego"] {
        let mut body = json!({"priority": 8, "rego": "package q\nresult := {}"});
        body.as_object_mut().unwrap().remove(missing);
        assert_eq!(replace(&body).unwrap_err().violations[0].field, missing);
    }
}

#[test]
fn another_program_is_shown_without_code_and_not_replaced() {
    let spec = json!({"program": {"cel": {"validations": [], "result": "{}"}}, "request": {"priority": 7}});
    let shown = resource(&spec).to_json();
    assert_eq!((shown.get("rego"), &shown["name"]), (None, &json!("sizes")));
    let replacement = Replacement::read(json!({"priority": 8, "rego": "package p"}).as_object().unwrap()).unwrap();
    let error = replacement.to_spec(&stored("ns.team-a.sizes", &spec).spec).unwrap_err();
    assert_eq!((error.http(), error.reason()), (400, "OTHER_PROGRAM"));
}
