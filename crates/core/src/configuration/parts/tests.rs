use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::configuration::ConfigurationPolicy;
use crate::configuration::notification::Action;
use crate::configuration::testing::{id, item, parse, policy, sized_item};

fn event(contents: &Contents) -> Event {
    Event {
        action: Action::Updated,
        timestamp: "2018-02-12T10:20:30.777Z".to_owned(),
        update_id: "0e79edc0-6c64-425e-a618-cc13ef50cd56".to_owned(),
        policies_count: contents.items.len(),
    }
}

fn parts(contents: &Contents, current: &Assignments) -> Vec<Part> {
    contents.parts(current, &event(contents)).unwrap()
}

fn contents(items: impl IntoIterator<Item = (&'static str, Item)>) -> Contents {
    let items = items.into_iter().map(|(name, item)| (id(name), item)).collect();
    Contents { items, previous: Items::new() }
}

fn confidential(name: &str, content: &str) -> Item {
    let policy = ConfigurationPolicy { is_confidential: true, ..policy(name, 1) };
    Item::new(&policy, &json!(content)).unwrap()
}

fn keys(part: &Part) -> Vec<&str> {
    part.data.keys().map(String::as_str).collect()
}

/// Returns the size of a part as the API server limits it, with the names of its keys.
fn size(part: &Part) -> usize {
    part.data.iter().map(|(key, value)| key.len() + value.len()).sum()
}

#[test]
fn a_component_without_policies_has_a_config_map_with_an_event() {
    let parts = parts(&Contents::default(), &Assignments::default());
    let [part] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((part.place, part.index, keys(part)), (Place::ConfigMap, 0, vec!["event"]));
    let expected = json!({
        "action": "updated", "policies_count": 0, "timestamp": "2018-02-12T10:20:30.777Z",
        "update_id": "0e79edc0-6c64-425e-a618-cc13ef50cd56",
    });
    assert_eq!(parse(&part.data["event"]), expected);
}

#[test]
fn confidential_bodies_are_in_secrets_only() {
    let contents = Contents {
        items: [
            (id("cluster.a"), item("cluster.a", 1, &json!(1))),
            (id("cluster.s"), confidential("cluster.s", "new")),
        ]
        .into(),
        previous: [(id("cluster.s"), confidential("cluster.s", "old"))].into(),
    };
    let parts = parts(&contents, &Assignments::default());
    let [secret, config_map] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((secret.place, keys(secret)), (Place::Secret, vec!["items.cluster.s", "previous.cluster.s"]));
    assert_eq!((config_map.place, keys(config_map)), (Place::ConfigMap, vec!["event", "items.cluster.a"]));
}

#[test]
fn parts_stay_below_one_mebibyte_and_the_event_is_written_last() {
    let names = ["cluster.a", "cluster.b", "cluster.c", "cluster.d", "cluster.e"];
    let contents = contents(names.map(|name| (name, sized_item(name, 400_000))));
    let parts = parts(&contents, &Assignments::default());
    let order: Vec<_> = parts.iter().map(|part| part.index).collect();
    assert_eq!(order, [2, 1, 0]);
    assert_eq!(keys(&parts[2]), ["event", "items.cluster.a", "items.cluster.b"]);
    assert!(parts.iter().all(|part| size(part) <= MAX_PART - 16 * 1024));
}

#[test]
fn two_bodies_of_the_maximum_size_are_in_two_parts() {
    let largest = |name| {
        let frame = item(name, 1, &json!("")).body().len();
        sized_item(name, crate::configuration::MAX_BODY - frame + 2)
    };
    let contents = contents(["cluster.a", "cluster.b"].map(|name| (name, largest(name))));
    let parts = parts(&contents, &Assignments::default());
    assert_eq!(parts.len(), 2, "with the metadata, both would exceed 1 MiB");
}

#[test]
fn a_change_of_one_body_changes_its_part_and_the_event_only() {
    let names = ["cluster.a", "cluster.b", "cluster.c", "cluster.d", "cluster.e"];
    let mut contents = contents(names.map(|name| (name, sized_item(name, 400_000))));
    let stored = StoredParts::read(parts(&contents, &Assignments::default()));
    contents.items.insert(id("cluster.d"), sized_item("cluster.d", 400_001));
    let event = Event { update_id: "other".to_owned(), ..event(&contents) };
    let parts = contents.parts(&stored.assignments(), &event).unwrap();
    let changed: Vec<_> = stored.changed(&parts).map(|part| part.index).collect();
    assert_eq!(changed, [1, 0]);
    assert_eq!(stored.stale(&parts), []);
}

#[test]
fn a_part_without_keys_is_deleted() {
    let names = ["cluster.a", "cluster.b", "cluster.c"];
    let mut contents = contents(names.map(|name| (name, sized_item(name, 400_000))));
    contents.items.insert(id("cluster.s"), confidential("cluster.s", "x"));
    let stored = StoredParts::read(parts(&contents, &Assignments::default()));
    contents.items.remove(&id("cluster.c"));
    contents.items.remove(&id("cluster.s"));
    let parts = parts(&contents, &stored.assignments());
    assert_eq!(stored.stale(&parts), [(Place::ConfigMap, 1), (Place::Secret, 0)]);
}

#[test]
fn edits_by_hand_are_found() {
    let contents =
        contents([("cluster.a", item("cluster.a", 1, &json!(1))), ("cluster.s", confidential("cluster.s", "x"))]);
    let original = parts(&contents, &Assignments::default());
    assert!(StoredParts::read(original.clone()).is_equal(&contents));
    let is_equal = |change: fn(&mut Vec<Part>)| {
        let mut parts = original.clone();
        change(&mut parts);
        StoredParts::read(parts).is_equal(&contents)
    };
    assert!(is_equal(|parts| parts.reverse()));
    assert!(!is_equal(|parts| _ = parts.remove(0)));
    assert!(!is_equal(|parts| _ = parts.remove(1)));
    assert!(!is_equal(|parts| _ = parts[1].data.remove("event")));
    assert!(!is_equal(|parts| _ = parts[1].data.insert("event".to_owned(), "{}".into())));
    assert!(!is_equal(|parts| _ = parts[1].data.insert("event".to_owned(), r#"{"policies_count":1}"#.into())));
    assert!(!is_equal(|parts| _ = parts[0].data.insert("event".to_owned(), r#"{"policies_count":2}"#.into())));
    assert!(!is_equal(|parts| _ = parts[1].data.insert("items.cluster.a".to_owned(), "{}".into())));
    assert!(!is_equal(|parts| _ = parts[1].data.insert("other".to_owned(), "x".into())));
    assert!(!is_equal(|parts| _ = parts[1].data.remove("items.cluster.a")));
    // A confidential body in a ConfigMap.
    assert!(!is_equal(|parts| {
        let data = std::mem::take(&mut parts[0].data);
        parts[1].data.extend(data);
    }));
}

#[test]
fn stored_policies_are_read_with_their_previous_bodies() {
    let (new, old) = (item("cluster.a", 2, &json!(2)), item("cluster.a", 1, &json!(1)));
    let contents =
        Contents { items: [(id("cluster.a"), new.clone())].into(), previous: [(id("cluster.a"), old.clone())].into() };
    let mut parts = parts(&contents, &Assignments::default());
    parts[0].data.extend(
        [("items.not an id", "{}"), ("items.cluster.b", "{}"), ("x", "")]
            .map(|(key, value)| (key.to_owned(), value.into())),
    );
    let stored = StoredParts::read(parts);
    assert!(stored.has_event());
    assert_eq!(stored.items, [(id("cluster.a"), new.clone())].into());
    assert_eq!(stored.bodies(&id("cluster.a")), [new, old]);
    assert_eq!(stored.bodies(&id("cluster.b")), []);
}

#[test]
fn names_of_parts_are_recognised() {
    for (name, expected) in [
        ("policies", Some(0)),
        ("policies-1", Some(1)),
        ("policies-12", Some(12)),
        ("policies-0", None),
        ("policies-01", None),
        ("policies-+1", None),
        ("policies-", None),
        ("policies-x", None),
        ("other-1", None),
        ("policies1", None),
    ] {
        assert_eq!(part_index("policies", name), expected, "{name}");
    }
    assert_eq!(part_index("policies-1", "policies-1-2"), Some(2));
}

fn any_contents() -> impl Strategy<Value = Contents> {
    let item = |(name, size, is_confidential): (u8, usize, bool)| {
        let name = format!("cluster.p{name}");
        let policy = ConfigurationPolicy { is_confidential, ..policy(&name, 1) };
        (id(&name), Item::new(&policy, &json!("x".repeat(size))).unwrap())
    };
    let items = prop::collection::vec((0_u8..12, 0_usize..500_000, prop::bool::weighted(0.2)), 0..8)
        .prop_map(move |items| items.into_iter().map(item).collect::<Items>());
    (items.clone(), items).prop_map(|(items, previous)| Contents { items, previous })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn parts_rejoin_to_the_contents_and_none_exceeds_its_limit(before in any_contents(), after in any_contents()) {
        let stored = StoredParts::read(parts(&before, &Assignments::default()));
        prop_assert!(stored.is_equal(&before));
        let parts = parts(&after, &stored.assignments());
        prop_assert!(parts.iter().all(|part| size(part) <= MAX_PART - 12 * 1024));
        let last = parts.last().unwrap();
        prop_assert!(last.place == Place::ConfigMap && last.data.contains_key(EVENT_KEY));
        // The parts that are written and the parts that are deleted result in the new contents.
        let stale = stored.stale(&parts);
        let mut objects: BTreeMap<_, _> = stored.parts.iter().map(|part| ((part.place, part.index), part.clone())).collect();
        objects.extend(stored.changed(&parts).map(|part| ((part.place, part.index), part.clone())));
        objects.retain(|key, _| !stale.contains(key));
        let read = StoredParts::read(objects.into_values());
        prop_assert!(read.is_equal(&after));
        prop_assert_eq!(&read.items, &after.items);
    }
}
