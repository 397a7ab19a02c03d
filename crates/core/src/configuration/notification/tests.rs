use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::configuration::delivery::{Delivery, Outcome, Record, Step};
use crate::configuration::delta::{Desired, Items, Keep};
use crate::configuration::parts::StoredParts;
use crate::configuration::testing::{id, item, parse, policy, sized_item};
use crate::configuration::{ConfigurationPolicy, Version};

fn next(delivery: &mut Delivery, items: Items) -> Update {
    delivery.want(Desired { items, keep: Keep::default() });
    let Step::Deliver(update) = delivery.begin(std::time::Duration::MAX) else { panic!("{delivery:?}") };
    update
}

fn items(items: impl IntoIterator<Item = Item>) -> Items {
    let name =
        |item: &Item| parse(item.body())["policyName"].as_str().unwrap().rsplitn(3, '.').nth(2).unwrap().to_owned();
    items.into_iter().map(|item| (id(&name(&item)), item)).collect()
}

fn values(item: &[&Item]) -> Value {
    item.iter().map(|item| parse(item.body())).collect()
}

#[test]
fn a_notification_has_the_updated_the_removed_and_all_bodies() {
    let mut delivery = Delivery::restore(Record::default(), &StoredParts::default());
    let [a1, a2] = [1, 2].map(|generation| item("cluster.a", generation, &json!({"min_memory": "2GB"})));
    let [b, c, d] = ["cluster.b", "cluster.c", "cluster.d"].map(|name| item(name, 1, &json!(1)));
    let update = next(&mut delivery, items([a1.clone(), b.clone(), c.clone()]));
    let expected = json!({
        "updated_policies": values(&[&a1, &b, &c]), "removed_policies": [], "policies": values(&[&a1, &b, &c]),
    });
    assert_eq!(parse(&Notification::new(&update).to_json()), expected);
    delivery.finish(Outcome::Acknowledged, 0.0);
    let update = next(&mut delivery, items([a2.clone(), c.clone(), d.clone()]));
    let expected = json!({
        "updated_policies": values(&[&a2, &d]), "removed_policies": values(&[&b]), "policies": values(&[&a2, &c, &d]),
    });
    let notification = Notification::new(&update);
    assert_eq!(parse(&notification.to_json()), expected);
    assert_eq!(notification.messages(1 << 20), [notification.to_json()], "one message has no tag");
}

#[test]
fn an_event_counts_the_policies_after_the_update() {
    let mut delivery = Delivery::restore(Record::default(), &StoredParts::default());
    let event = |update: &Update| serde_json::to_value(update.event("T".to_owned(), "U".to_owned())).unwrap();
    let expected =
        |action, count| json!({"action": action, "timestamp": "T", "update_id": "U", "policies_count": count});
    let [a, b] = ["cluster.a", "cluster.b"].map(|name| item(name, 1, &json!(1)));
    assert_eq!(event(&next(&mut delivery, items([a.clone(), b]))), expected("gathered", 2));
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!(event(&next(&mut delivery, items([a]))), expected("updated", 1));
}

#[test]
fn a_confidential_body_is_not_in_a_notification() {
    let mut delivery = Delivery::default();
    let secret = ConfigurationPolicy { is_confidential: true, ..policy("cluster.s", 3) };
    let secret = Item::new(&secret, &json!("hunter2")).unwrap();
    let update = next(&mut delivery, [(id("cluster.s"), secret)].into());
    let reference = json!({"configOmitted": true, "policyName": "cluster.s.3.xml", "policyVersion": "3"});
    let expected = json!({"updated_policies": [reference], "removed_policies": [], "policies": [reference]});
    assert_eq!(parse(&Notification::new(&update).to_json()), expected);
    delivery.finish(Outcome::Acknowledged, 0.0);
    let update = next(&mut delivery, Items::new());
    let expected = json!({"updated_policies": [], "removed_policies": [reference], "policies": []});
    assert_eq!(parse(&Notification::new(&update).to_json()), expected);
}

#[test]
fn a_removed_policy_without_a_known_body_is_a_reference() {
    let record = Record {
        acknowledged: [(id("cluster.a"), item("cluster.a", 4, &json!(1)).entry())].into(),
        unconfirmed: [id("cluster.b")].into(),
        ..Record::default()
    };
    let mut delivery = Delivery::restore(record, &StoredParts::default());
    let message = parse(&Notification::new(&next(&mut delivery, Items::new())).to_json());
    let expected = json!([
        {"configOmitted": true, "policyName": "cluster.a.4.xml", "policyVersion": "4"},
        {"configOmitted": true, "policyName": "cluster.b"},
    ]);
    assert_eq!(message["removed_policies"], expected);
}

#[test]
fn a_body_that_is_larger_than_a_message_is_replaced_by_a_reference() {
    let mut delivery = Delivery::default();
    let small = item("cluster.b", 1, &json!(1));
    let update = next(&mut delivery, items([sized_item("cluster.a", 200_000), small.clone()]));
    let messages = Notification::new(&update).messages(128 * 1024);
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let message = parse(message);
    let reference = parse(&reference(&id("cluster.a"), &Version::of(1)));
    assert_eq!(message["updated_policies"], json!([reference, parse(small.body())]));
    assert_eq!(message.get("data_segment"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn segments_rejoin_to_the_notification_and_none_exceeds_the_limit(
        before in prop::collection::btree_map(0_u8..20, 2_usize..500, 0..12),
        after in prop::collection::btree_map(0_u8..20, 2_usize..500, 0..12),
        limit in MIN_MESSAGE..4_000,
    ) {
        prop_assume!(before != after && !before.is_empty());
        let items = |sizes: std::collections::BTreeMap<u8, usize>| {
            items(sizes.into_iter().map(|(name, size)| sized_item(&format!("cluster.p{name}"), size)))
        };
        let mut delivery = Delivery::default();
        next(&mut delivery, items(before));
        delivery.finish(Outcome::Acknowledged, 0.0);
        let notification = Notification::new(&next(&mut delivery, items(after)));
        let messages = notification.messages(limit);
        prop_assert!(messages.iter().all(|message| message.len() <= limit));
        let whole = parse(&notification.to_json());
        let segments: Vec<_> = messages.iter().map(|message| parse(message)).collect();
        for list in ["updated_policies", "removed_policies", "policies"] {
            let joined: Vec<_> = segments.iter().flat_map(|segment| segment[list].as_array().unwrap().clone()).collect();
            prop_assert_eq!(&Value::from(joined), &whole[list], "{}", list);
        }
        for (index, segment) in segments.iter().enumerate() {
            let tag = segment.get("data_segment").cloned();
            let expected = (segments.len() > 1).then(|| json!(format!("{}/{}", index + 1, segments.len())));
            prop_assert_eq!(tag, expected);
        }
    }
}
