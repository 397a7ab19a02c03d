use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::configuration::testing::{id, item, parse, sized_item};

#[test]
fn a_message_has_the_shape_of_onaps_policy_handler() {
    let body = item("cluster.a", 2, &json!(1));
    let message = PolicyUpdateMessage {
        catch_up: true,
        latest: [(id("cluster.a"), body.clone())].into(),
        removed: [id("cluster.b")].into(),
        filter_matches: [(id("cluster.a"), BTreeSet::from(["f1".to_owned(), "\"f2".to_owned()]))].into(),
    };
    let expected = json!({
        "catch_up": true,
        "latest_policies": {"cluster.a": {"policy_id": "cluster.a", "policy_body": parse(body.body())}},
        "removed_policies": {"cluster.b": true},
        "policy_filter_matches": {"cluster.a": {"f1": true, "\"f2": true}},
    });
    let segments = message.segments(DEFAULT_MESSAGE_LIMIT).unwrap();
    assert_eq!(segments.iter().map(|text| parse(text)).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_message_without_policies_has_no_segments() {
    assert_eq!(PolicyUpdateMessage::default().segments(DEFAULT_MESSAGE_LIMIT), Ok(vec![]));
}

#[test]
fn three_large_policies_are_three_tagged_segments() {
    let latest = ["cluster.a", "cluster.b", "cluster.c"].map(|name| (id(name), sized_item(name, 500_000)));
    let message = PolicyUpdateMessage { latest: latest.into(), ..PolicyUpdateMessage::default() };
    let segments = message.segments(600_000).unwrap();
    let tags: Vec<_> = segments.iter().map(|text| parse(text)["data_segment"].clone()).collect();
    assert_eq!(tags, ["1/3", "2/3", "3/3"]);
}

#[test]
fn a_policy_that_is_larger_than_a_message_is_refused() {
    let message = PolicyUpdateMessage {
        latest: [(id("cluster.a"), sized_item("cluster.a", 500_000))].into(),
        ..PolicyUpdateMessage::default()
    };
    let error = message.segments(400_000).unwrap_err();
    assert_eq!((&error.policy, error.limit), (&id("cluster.a"), 400_000));
    assert!(error.to_string().starts_with("the policy cluster.a needs 500"), "{error}");
}

proptest! {
    #[test]
    fn segments_rejoin_to_the_message_and_none_exceeds_the_limit(
        latest in prop::collection::btree_map(0_u8..30, 2_usize..400, 0..15),
        removed in prop::collection::btree_set(0_u8..30, 0..15),
        matches in prop::collection::btree_map(0_u8..30, prop::collection::btree_set("[a-c]", 0..3), 0..15),
        limit in 1_000_usize..5_000,
    ) {
        let name = |number: u8| format!("cluster.p{number}");
        let message = PolicyUpdateMessage {
            catch_up: false,
            latest: latest.into_iter().map(|(number, size)| (id(&name(number)), sized_item(&name(number), size))).collect(),
            removed: removed.into_iter().map(|number| id(&name(number))).collect(),
            filter_matches: matches.into_iter().map(|(number, filters)| (id(&name(number)), filters)).collect(),
        };
        let texts = message.segments(limit).unwrap();
        prop_assert!(texts.iter().all(|text| text.len() <= limit));
        let segments: Vec<_> = texts.iter().map(|text| parse(text)).collect();
        let mut joined = json!({"latest_policies": {}, "removed_policies": {}, "policy_filter_matches": {}});
        for segment in &segments {
            for (member, values) in joined.as_object_mut().unwrap() {
                for (key, value) in segment[member].as_object().unwrap() {
                    prop_assert_eq!(values.as_object_mut().unwrap().insert(key.clone(), value.clone()), None, "twice: {}", key);
                }
            }
        }
        let count = |member: &str| joined[member].as_object().map_or(0, serde_json::Map::len);
        prop_assert_eq!(count("latest_policies"), message.latest.len());
        prop_assert_eq!(count("removed_policies"), message.removed.len());
        prop_assert_eq!(count("policy_filter_matches"), message.filter_matches.len());
        for (id, item) in &message.latest {
            prop_assert_eq!(&joined["latest_policies"][id.as_str()]["policy_body"], &parse(item.body()));
        }
        let tags: Vec<Value> = segments.iter().filter_map(|segment| segment.get("data_segment").cloned()).collect();
        prop_assert_eq!(tags.len(), if segments.len() > 1 { segments.len() } else { 0 });
    }
}
