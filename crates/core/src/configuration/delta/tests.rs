use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::configuration::testing::{id, item};

fn entries<const N: usize>(items: [(&str, i64, i64); N]) -> Entries {
    items.map(|(name, generation, content)| (id(name), item(name, generation, &json!(content)).entry())).into()
}

fn desired<const N: usize>(items: [(&str, i64, i64); N], keep: Keep) -> Desired {
    let items = items.map(|(name, generation, content)| (id(name), item(name, generation, &json!(content))));
    Desired { items: items.into(), keep }
}

fn ids<const N: usize>(names: [&str; N]) -> BTreeSet<PolicyId> {
    names.map(id).into()
}

#[test]
fn each_policy_is_updated_removed_unchanged_or_kept() {
    let has = entries([
        ("cluster.same", 1, 1),
        ("cluster.newer", 1, 1),
        ("cluster.recomputed", 1, 1),
        ("cluster.gone", 1, 1),
        ("cluster.too-large", 1, 1),
    ]);
    let items =
        [("cluster.same", 1, 1), ("cluster.newer", 2, 1), ("cluster.recomputed", 1, 2), ("cluster.added", 1, 1)];
    let desired = desired(items, Keep::Only(ids(["cluster.too-large", "cluster.never-had"])));
    let delta = Delta::between(&has, &desired);
    assert_eq!(delta.updated, ids(["cluster.added", "cluster.newer", "cluster.recomputed"]));
    assert_eq!(delta.removed, ids(["cluster.gone"]));
    assert_eq!(delta.unchanged, ids(["cluster.same"]));
    assert_eq!(delta.kept, ids(["cluster.too-large"]));
}

#[test]
fn a_policy_that_was_deleted_and_created_again_is_an_update() {
    // The generation begins with 1 again.
    let has = entries([("cluster.memory", 7, 1)]);
    let delta = Delta::between(&has, &desired([("cluster.memory", 1, 2)], Keep::default()));
    assert_eq!((delta.updated, delta.removed), (ids(["cluster.memory"]), ids([])));
}

#[test]
fn an_older_version_after_a_rollback_is_an_update() {
    let has = entries([("cluster.memory", 7, 1)]);
    let delta = Delta::between(&has, &desired([("cluster.memory", 6, 1)], Keep::default()));
    assert_eq!(delta.updated, ids(["cluster.memory"]));
}

#[test]
fn a_failed_selector_removes_nothing() {
    let has = entries([("cluster.a", 1, 1), ("cluster.b", 1, 1)]);
    let delta = Delta::between(&has, &desired([("cluster.b", 2, 1)], Keep::All));
    assert_eq!((delta.removed, delta.kept), (ids([]), ids(["cluster.a"])));
    assert_eq!(delta.updated, ids(["cluster.b"]));
}

fn any_entries() -> impl Strategy<Value = BTreeMap<PolicyId, Item>> {
    let item = |(name, generation, content): (u8, i64, i64)| {
        let name = format!("cluster.p{name}");
        (id(&name), item(&name, generation, &json!(content)))
    };
    prop::collection::vec((0_u8..8, 1_i64..3, 0_i64..2), 0..8)
        .prop_map(move |items| items.into_iter().map(item).collect())
}

fn any_keep() -> impl Strategy<Value = Keep> {
    let ids = prop::collection::btree_set(0_u8..8, 0..4);
    let only = ids.prop_map(|ids| Keep::Only(ids.into_iter().map(|name| id(&format!("cluster.p{name}"))).collect()));
    prop_oneof![4 => only, 1 => Just(Keep::All)]
}

proptest! {
    #[test]
    fn the_old_state_with_the_delta_applied_is_the_desired_state(has in any_entries(), items in any_entries(), keep in any_keep()) {
        let has: Entries = has.into_iter().map(|(id, item)| (id, item.entry())).collect();
        let desired = Desired { items, keep };
        let delta = Delta::between(&has, &desired);
        let after = delta.apply(&has, &desired);
        let kept = has.iter().filter(|(id, _)| desired.keep.contains(id)).map(|(id, entry)| (id.clone(), entry.clone()));
        let mut expected: Entries = kept.collect();
        expected.extend(desired.items.iter().map(|(id, item)| (id.clone(), item.entry())));
        prop_assert_eq!(&after, &expected);
        prop_assert!(Delta::between(&after, &desired).is_empty());
        // Each policy is in one set.
        let sets = [&delta.updated, &delta.removed, &delta.unchanged, &delta.kept];
        let all: BTreeSet<_> = has.keys().chain(desired.items.keys()).collect();
        prop_assert_eq!(sets.iter().map(|set| set.len()).sum::<usize>(), all.len());
    }
}
