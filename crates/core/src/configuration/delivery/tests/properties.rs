//! Any sequence of events ends with the newest state, in the simulated world.

use proptest::prelude::*;

use super::world::{World, any_event, any_event_without_edits, any_state, entries, is_bad};
use super::*;
use crate::configuration::delta::{Delta, Keep};

proptest! {
    #[test]
    fn an_update_contains_the_delta_of_the_desired_state(
        has in any_state(), items in any_state(), keep in prop_oneof![Just(Keep::default()), Just(Keep::All)],
    ) {
        let mut delivery = Delivery::default();
        delivery.want(Desired { items: has, keep: Keep::default() });
        delivery.begin(Duration::ZERO);
        delivery.finish(Outcome::Acknowledged, 0.0);
        let desired = Desired { items, keep };
        let delta = Delta::between(&delivery.record().acknowledged, &desired);
        let target = delta.apply(&delivery.record().acknowledged, &desired);
        delivery.want(desired);
        match delivery.begin(Duration::ZERO) {
            Step::Deliver(update) => {
                prop_assert!(update.updated.keys().eq(&delta.updated));
                prop_assert!(update.removed.keys().eq(&delta.removed));
                prop_assert_eq!(entries(&update.target), target);
            }
            step => prop_assert!(step == Step::Idle && delta.is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_sequence_of_updates_failures_and_restarts_ends_with_the_newest_state(
        events in prop::collection::vec(any_event(), 0..25),
        newest in any_state(),
    ) {
        // One or two bodies in each object.
        let mut world = World::new([false, false], 800);
        for event in events {
            world.handle(event);
        }
        world.want(&newest, Keep::default());
        world.settle();
        for pod in &world.pods {
            prop_assert_eq!(&pod.policies, &entries(&newest));
        }
        world.check_storage();
    }

    #[test]
    fn any_sequence_with_rejections_ends_with_the_newest_accepted_bodies_on_every_pod(
        events in prop::collection::vec(any_event_without_edits(), 0..25),
        newest in any_state(),
        rejecting in prop::sample::select(&[[true, true], [true, false]][..]),
    ) {
        let mut world = World::new(rejecting, 1 << 20);
        for event in events {
            world.handle(event);
        }
        world.want(&newest, Keep::default());
        world.settle();
        for pod in &world.pods {
            // Both pods have the acknowledged policies, and no rejected body.
            prop_assert_eq!(&pod.policies, &world.record.acknowledged);
            for (id, item) in &newest {
                if is_bad(item) {
                    prop_assert_ne!(pod.policies.get(id), Some(&item.entry()));
                    prop_assert!(world.record.rejected.contains_key(id));
                } else {
                    prop_assert_eq!(pod.policies.get(id), Some(&item.entry()));
                }
            }
            // A policy that is gone for good is removed.
            prop_assert!(pod.policies.keys().all(|id| newest.contains_key(id)));
        }
        world.check_storage();
    }
}
