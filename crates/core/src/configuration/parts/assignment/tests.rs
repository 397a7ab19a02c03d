use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 100;

fn sizes<const N: usize>(sizes: [(&str, usize); N]) -> BTreeMap<String, usize> {
    sizes.map(|(key, size)| (key.to_owned(), size)).into()
}

fn assigned(assignment: &Assignment) -> Vec<(&str, usize)> {
    assignment.iter().map(|(key, part)| (key.as_str(), *part)).collect()
}

#[test]
fn keys_fill_one_part_after_the_other() {
    let assignment = assign(&Assignment::new(), &sizes([("a", 60), ("b", 60), ("c", 40), ("d", 40)]), CAPACITY);
    assert_eq!(assigned(&assignment), [("a", 0), ("b", 1), ("c", 0), ("d", 1)]);
}

#[test]
fn a_key_stays_in_its_part_when_others_come_and_go() {
    let current = sizes([("a", 0), ("b", 1), ("d", 3)]);
    // There is room for `b` and `d` in the first part, but they stay.
    let assignment = assign(&current, &sizes([("b", 10), ("c", 10), ("d", 10)]), CAPACITY);
    assert_eq!(assigned(&assignment), [("b", 1), ("c", 0), ("d", 3)]);
}

#[test]
fn the_largest_key_of_a_part_that_overflows_moves() {
    let current = sizes([("a", 0), ("b", 0), ("c", 0)]);
    let assignment = assign(&current, &sizes([("a", 30), ("b", 50), ("c", 30)]), CAPACITY);
    assert_eq!(assigned(&assignment), [("a", 0), ("b", 1), ("c", 0)]);
}

#[test]
fn a_previous_body_is_stored_beside_the_current_one_if_there_is_room() {
    let current = sizes([("items.cluster.a", 0), ("items.cluster.b", 1)]);
    let wanted = sizes([("items.cluster.a", 30), ("items.cluster.b", 30), ("previous.cluster.b", 40)]);
    assert_eq!(assign(&current, &wanted, CAPACITY)["previous.cluster.b"], 1);
    let wanted = sizes([("items.cluster.a", 30), ("items.cluster.b", 80), ("previous.cluster.b", 40)]);
    assert_eq!(assign(&current, &wanted, CAPACITY)["previous.cluster.b"], 0);
    // The current body moves, and the previous one takes its place.
    let current = sizes([("items.cluster.a", 1), ("items.cluster.b", 1)]);
    let wanted = sizes([("items.cluster.a", 30), ("items.cluster.b", 80), ("previous.cluster.b", 40)]);
    let assignment = assign(&current, &wanted, CAPACITY);
    assert_eq!(assigned(&assignment), [("items.cluster.a", 1), ("items.cluster.b", 0), ("previous.cluster.b", 1)]);
}

#[test]
fn a_key_that_is_larger_than_a_part_is_alone() {
    let assignment = assign(&Assignment::new(), &sizes([("a", 200), ("b", 10), ("c", 200)]), CAPACITY);
    assert_eq!(assigned(&assignment), [("a", 0), ("b", 1), ("c", 2)]);
}

fn any_sizes() -> impl Strategy<Value = BTreeMap<String, usize>> {
    prop::collection::btree_map("(items|previous)\\.cluster\\.[a-j]", 1_usize..=CAPACITY, 0..20)
}

proptest! {
    #[test]
    fn no_part_exceeds_its_capacity_and_at_most_the_grown_keys_move(before in any_sizes(), after in any_sizes()) {
        let current = assign(&Assignment::new(), &before, CAPACITY);
        let assignment = assign(&current, &after, CAPACITY);
        prop_assert!(assignment.keys().eq(after.keys()));
        let mut used = BTreeMap::new();
        for (key, part) in &assignment {
            *used.entry(part).or_insert(0) += after[key];
        }
        prop_assert!(used.values().all(|used| *used <= CAPACITY), "{used:?}");
        let moved = after.keys().filter(|key| current.get(*key).is_some_and(|part| *part != assignment[*key])).count();
        let grown = after.iter().filter(|(key, size)| before.get(*key).is_some_and(|before| *size > before)).count();
        prop_assert!(moved <= grown, "{moved} {grown}");
        // The same keys stay, without a write.
        prop_assert_eq!(assign(&assignment, &after, CAPACITY), assignment);
    }

    #[test]
    fn at_most_one_part_of_a_new_assignment_is_at_most_half_full(sizes in prop::collection::vec(1_usize..=CAPACITY, 0..40)) {
        let sizes: BTreeMap<_, _> = sizes.into_iter().enumerate().map(|(key, size)| (key.to_string(), size)).collect();
        let mut used = BTreeMap::new();
        for (key, part) in assign(&Assignment::new(), &sizes, CAPACITY) {
            *used.entry(part).or_insert(0) += sizes[&key];
        }
        prop_assert!(used.values().filter(|used| **used <= CAPACITY / 2).count() <= 1, "{used:?}");
        prop_assert!(used.keys().copied().eq(0..used.len()));
    }
}
