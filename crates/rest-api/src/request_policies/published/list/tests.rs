use proptest::prelude::*;

use super::*;
use crate::request_policies::test_policy::stored;

/// Returns a policy with this id, type, name, priority and `enabled`.
fn policy((id, level, name, priority, enabled): (&str, &str, &str, u32, bool)) -> Resource {
    let spec = json!({
        "program": {"rego": {"source": "package p", "dialect": "Request"}},
        "enabled": enabled,
        "request": {"displayName": name, "priority": priority, "level": level},
    });
    Resource::of(&stored(&format!("cluster.{id}"), &spec)).unwrap()
}

fn policies() -> Vec<Resource> {
    [
        ("a", "User", "beta", 1, true),
        ("b", "Global", "Alpha", 300, true),
        ("c", "Global", "gamma", 20, false),
        ("d", "Global", "Beta", 100, true),
    ]
    .map(policy)
    .into()
}

fn list(filter: &str, order: &str) -> Result<Vec<String>> {
    let query = Query::parse(None, None, Some(filter), Some(order))?;
    let page = query.page(policies());
    Ok(page["policies"].as_array().unwrap().iter().map(|policy| policy["id"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn filters_have_at_most_two_conditions() {
    for (filter, expected) in [
        ("", &["c", "d", "b", "a"][..]),
        ("policy_type='GLOBAL'", &["c", "d", "b"]),
        ("policy_type = 'USER'", &["a"]),
        ("enabled=true", &["d", "b", "a"]),
        ("enabled=false", &["c"]),
        ("policy_type='GLOBAL' AND enabled=true", &["d", "b"]),
        ("enabled = false AND policy_type = 'USER'", &[]),
    ] {
        assert_eq!(list(filter, "").unwrap(), expected, "{filter}");
    }
    for filter in [
        "policy_type='TENANT'",
        "policy_type=GLOBAL",
        "policy_type='global'",
        "policy_type!='GLOBAL'",
        "invalid_field='value'",
        "enabled",
        "enabled=yes",
        "enabled=true OR enabled=false",
        "enabled=true and policy_type='GLOBAL'",
        "enabled=true AND enabled=true",
        "enabled=true AND policy_type='GLOBAL' AND enabled=true",
        "enabled=true AND ",
    ] {
        let error = list(filter, "").unwrap_err();
        assert_eq!((error.http(), error.violations[0].field.as_str()), (400, "filter"), "{filter}");
    }
}

#[test]
fn lists_are_ordered_by_several_fields() {
    for (order, expected) in [
        ("", ["c", "d", "b", "a"]),
        ("priority", ["a", "c", "d", "b"]),
        ("priority desc", ["b", "d", "c", "a"]),
        ("display_name ASC", ["b", "d", "a", "c"]),
        ("display_name desc", ["c", "a", "d", "b"]),
        // All policies have the same time.
        ("create_time", ["a", "b", "c", "d"]),
        ("create_time desc, priority asc", ["a", "c", "d", "b"]),
    ] {
        assert_eq!(list("", order).unwrap(), expected, "{order}");
    }
    for order in ["id", "priority foo", "priority asc extra", "priority,", ",", "priority;display_name", "policy_type"]
    {
        let error = list("", order).unwrap_err();
        assert_eq!((error.http(), error.violations[0].field.as_str()), (400, "order_by"), "{order}");
    }
}

#[test]
fn a_page_token_belongs_to_one_filter_and_one_order() {
    let parse = |size: &str, token: Option<&str>, order: &str| Query::parse(Some(size), token, None, Some(order));
    let page = parse("2", None, "priority").unwrap().page(policies());
    let token = page["next_page_token"].as_str();
    let rest = parse("50", token, "priority").unwrap().page(policies());
    assert_eq!(rest["policies"].as_array().unwrap().len(), 2);
    assert_eq!(rest.get("next_page_token"), None);
    for (token, order) in [(token, "priority desc"), (Some("x"), "priority"), (Some("b2Zmc2V0"), "")] {
        let error = parse("2", token, order).unwrap_err();
        assert_eq!((error.http(), error.violations[0].field.as_str()), (400, "page_token"), "{order}");
    }
    for size in ["0", "1001", "-1", "x", "1.5"] {
        assert_eq!(parse(size, None, "").unwrap_err().violations[0].field, "max_page_size", "{size}");
    }
}

proptest! {
    #[test]
    fn pages_have_each_policy_once_in_the_order_of_the_list(
        names in prop::collection::vec("[a-cA-C]{0,2}x", 0..12),
        size in 1usize..5,
        order in prop::sample::select(vec!["", "priority desc", "display_name", "display_name desc,priority"]),
    ) {
        let all: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let level = if index % 3 == 0 { "User" } else { "Global" };
                policy((&format!("p{index}"), level, name, u32::try_from(index % 4).unwrap() + 1, true))
            })
            .collect();
        let ids = |page: &Value| -> Vec<String> {
            page["policies"].as_array().unwrap().iter().map(|policy| policy["id"].to_string()).collect()
        };
        let whole = ids(&Query::parse(Some("1000"), None, None, Some(order)).unwrap().page(all.clone()));
        prop_assert_eq!(whole.len(), all.len());
        let (mut seen, mut token) = (Vec::new(), None::<String>);
        loop {
            let query = Query::parse(Some(&size.to_string()), token.as_deref(), None, Some(order)).unwrap();
            let page = query.page(all.clone());
            seen.extend(ids(&page));
            match page.get("next_page_token") {
                Some(next) => token = next.as_str().map(ToOwned::to_owned),
                None => break,
            }
        }
        prop_assert_eq!(seen, whole);
    }
}
