mod properties;
mod world;

use serde_json::json;

use super::*;
use crate::configuration::delta::Keep;
use crate::configuration::notification::Action;
use crate::configuration::parts::{Assignments, Part};
use crate::configuration::policy::Version;
use crate::configuration::testing::{id, item};

const NO_TIME: Duration = Duration::ZERO;

fn desired<const N: usize>(items: [(&str, i64); N]) -> Desired {
    let items = items.map(|(name, generation)| (id(name), item(name, generation, &json!(generation))));
    Desired { items: items.into(), keep: Keep::default() }
}

fn keeping<const N: usize>(items: [(&str, i64); N]) -> Desired {
    Desired { keep: Keep::All, ..desired(items) }
}

fn begin(delivery: &mut Delivery) -> Update {
    match delivery.begin(Duration::MAX) {
        Step::Deliver(update) => update,
        other => panic!("{other:?}"),
    }
}

/// Returns the changes of an update: the generation of an updated policy, and 0 for a removed one.
fn changes(update: &Update) -> Vec<(&str, i64)> {
    let updated = update.updated.iter().map(|(id, item)| (id.as_str(), item.version().generation));
    updated.chain(update.removed.keys().map(|id| (id.as_str(), 0))).collect()
}

fn generations(items: &Items) -> Vec<(&str, i64)> {
    items.iter().map(|(id, item)| (id.as_str(), item.version().generation)).collect()
}

fn rejected(is_partly_applied: bool) -> Outcome {
    Outcome::Rejected { message: "exit code 1".to_owned(), is_partly_applied }
}

fn failed() -> Outcome {
    Outcome::Failed { message: "timeout".to_owned() }
}

/// Returns the deliveries of a component that has acknowledged these policies.
fn acknowledged<const N: usize>(items: [(&str, i64); N]) -> Delivery {
    let mut delivery = Delivery::default();
    delivery.want(desired(items));
    begin(&mut delivery);
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    delivery
}

fn stored(contents: &Contents, update: &Update) -> StoredParts {
    let event = update.event("T".to_owned(), "U".to_owned());
    StoredParts::read(contents.parts(&Assignments::default(), &event).unwrap())
}

#[test]
fn the_first_update_contains_every_policy_and_the_next_one_only_the_changes() {
    let mut delivery = Delivery::default();
    assert!(delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)])));
    let update = begin(&mut delivery);
    assert_eq!((update.action, changes(&update)), (Action::Gathered, vec![("cluster.a", 1), ("cluster.b", 1)]));
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert!(!delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)])), "the same state again");
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    delivery.want(desired([("cluster.b", 2), ("cluster.c", 1)]));
    let update = begin(&mut delivery);
    assert_eq!(update.action, Action::Updated);
    assert_eq!(changes(&update), [("cluster.b", 2), ("cluster.c", 1), ("cluster.a", 0)]);
    assert_eq!(generations(&update.target), [("cluster.b", 2), ("cluster.c", 1)]);
    assert_eq!(generations(&update.previous), [("cluster.a", 1), ("cluster.b", 1)]);
}

#[test]
fn one_update_is_in_flight_and_a_newer_state_supersedes_the_one_that_waits() {
    let mut delivery = Delivery::default();
    delivery.want(desired([("cluster.a", 1)]));
    begin(&mut delivery);
    for generation in 2..5 {
        delivery.want(desired([("cluster.a", generation), ("cluster.b", generation)]));
        assert_eq!(delivery.begin(NO_TIME), Step::Busy);
    }
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 4), ("cluster.b", 4)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
}

#[test]
fn a_superseding_state_is_compared_with_the_acknowledged_one() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 1)]));
    delivery.want(desired([("cluster.b", 1), ("cluster.c", 1)]));
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)]));
    assert_eq!(delivery.begin(NO_TIME), Step::Idle, "the component has that state");
}

#[test]
fn a_failed_update_is_sent_again_after_a_growing_delay() {
    let mut delivery = acknowledged([("cluster.a", 1)]);
    delivery.want(desired([("cluster.a", 2)]));
    for seconds in [1, 2, 4] {
        assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 2)]);
        delivery.finish(failed(), 0.0);
        assert_eq!(delivery.begin(NO_TIME), Step::Wait(Duration::from_secs(seconds)));
        assert_eq!(delivery.begin(Duration::from_millis(900)), Step::Wait(Duration::from_millis(seconds * 1000 - 900)));
    }
    begin(&mut delivery);
    delivery.finish(Outcome::Acknowledged, 0.0);
    // The next failure begins with the first delay.
    delivery.want(desired([("cluster.a", 3)]));
    begin(&mut delivery);
    delivery.finish(failed(), 1.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Wait(Duration::from_millis(500)));
}

#[test]
fn a_newer_state_waits_for_the_delay_too_and_contains_the_failed_changes() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 1)]));
    begin(&mut delivery);
    delivery.finish(failed(), 0.0);
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 2)]));
    assert_eq!(delivery.begin(NO_TIME), Step::Wait(Duration::from_secs(1)));
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 2), ("cluster.b", 2)]);
}

#[test]
fn a_policy_that_returns_to_the_acknowledged_version_after_a_failure_is_sent_again() {
    // The component may have applied the update although its result was lost.
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2), ("cluster.c", 1)]));
    begin(&mut delivery);
    delivery.finish(failed(), 0.0);
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)]));
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 1), ("cluster.b", 1), ("cluster.c", 0)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!((delivery.begin(NO_TIME), delivery.record().unconfirmed.len()), (Step::Idle, 0));
}

#[test]
fn a_rejected_policy_is_held_back_and_the_acknowledged_body_stays() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 1)]));
    let update = begin(&mut delivery);
    assert_eq!(generations(&delivery.contents().items), [("cluster.a", 2), ("cluster.b", 1)]);
    delivery.finish(rejected(false), 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    assert_eq!(generations(&delivery.contents().items), [("cluster.a", 1), ("cluster.b", 1)]);
    let rejection =
        Rejection { change: Change::To(update.updated[&id("cluster.a")].entry()), message: "exit code 1".to_owned() };
    assert_eq!(delivery.record().rejected, [(id("cluster.a"), vec![rejection])].into());
    // Other policies are delivered, and so is the next version.
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 2)]));
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.b", 2)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    delivery.want(desired([("cluster.a", 3), ("cluster.b", 2)]));
    assert_eq!(delivery.record().rejected.len(), 0);
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 3)]);
}

#[test]
fn a_rejected_removal_keeps_the_policy() {
    let mut delivery = acknowledged([("cluster.a", 1)]);
    delivery.want(desired([]));
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 0)]);
    delivery.finish(rejected(false), 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    assert_eq!(generations(&delivery.contents().items), [("cluster.a", 1)]);
}

#[test]
fn the_rejected_policy_among_many_is_found_and_the_others_are_delivered() {
    let names: Vec<_> = (0..2_000).map(|number| format!("cluster.p{number:04}")).collect();
    let items = names.iter().map(|name| (id(name), item(name, 1, &json!(1)))).collect();
    let mut delivery = Delivery::default();
    delivery.want(Desired { items, keep: Keep::default() });
    let (mut updates, bad) = (0, [id("cluster.p0000"), id("cluster.p1234")]);
    while let Step::Deliver(update) = delivery.begin(NO_TIME) {
        updates += 1;
        let is_bad = bad.iter().any(|bad| update.updated.contains_key(bad));
        delivery.finish(if is_bad { rejected(false) } else { Outcome::Acknowledged }, 0.0);
    }
    assert!(delivery.record().rejected.keys().eq(&bad), "{:?}", delivery.record().rejected);
    assert_eq!(delivery.record().acknowledged.len(), 1_998);
    assert!(updates < 60, "{updates}");
}

#[test]
fn a_component_that_rejects_everything_is_called_a_bounded_number_of_times() {
    let names: Vec<_> = (0..2_000).map(|number| format!("cluster.p{number:04}")).collect();
    let items = names.iter().map(|name| (id(name), item(name, 1, &json!(1)))).collect();
    let mut delivery = Delivery::default();
    delivery.want(Desired { items, keep: Keep::default() });
    let mut updates = 0;
    while let Step::Deliver(_) = delivery.begin(NO_TIME) {
        updates += 1;
        delivery.finish(rejected(false), 0.0);
    }
    assert_eq!((updates, delivery.record().rejected.len()), (MAX_CONSECUTIVE_REJECTIONS, 2_000));
}

#[test]
fn a_pod_that_applied_a_rejected_update_gets_the_acknowledged_body_back() {
    let mut delivery = acknowledged([("cluster.a", 1)]);
    delivery.want(desired([("cluster.a", 2)]));
    begin(&mut delivery);
    delivery.finish(rejected(true), 0.0);
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 1)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle, "the rejected version is not sent again");
    assert_eq!(delivery.record().rejected.len(), 1);
    // A component that rejects the body that it had acknowledged is not called again.
    delivery.want(desired([("cluster.a", 3)]));
    for _ in 0..2 {
        begin(&mut delivery);
        delivery.finish(rejected(true), 0.0);
    }
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
}

#[test]
fn a_rejected_new_policy_is_removed_from_the_pod_that_applied_it() {
    let mut delivery = acknowledged([("cluster.a", 1)]);
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)]));
    begin(&mut delivery);
    delivery.finish(rejected(true), 0.0);
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.b", 0)]);
}

#[test]
fn a_failed_selector_neither_removes_nor_changes_the_policies_of_the_component() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(keeping([("cluster.b", 2)]));
    let update = begin(&mut delivery);
    assert_eq!(changes(&update), [("cluster.b", 2)]);
    assert_eq!(generations(&update.target), [("cluster.a", 1), ("cluster.b", 2)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    delivery.want(keeping([]));
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
}

#[test]
fn a_failed_selector_does_not_remove_a_policy_whose_first_update_is_unconfirmed() {
    let mut delivery = Delivery::default();
    delivery.want(desired([("cluster.a", 1)]));
    let update = begin(&mut delivery);
    delivery.finish(failed(), 0.0);
    let stored = stored(&delivery.contents(), &update);
    let restarted = Delivery::restore(delivery.record().clone(), &stored);
    for mut delivery in [delivery, restarted] {
        delivery.want(keeping([]));
        assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 1)]);
        assert_eq!(generations(&delivery.contents().items), [("cluster.a", 1)]);
    }
}

#[test]
fn a_restarted_operator_removes_nothing_before_the_first_resolution() {
    let delivery = acknowledged([("cluster.a", 1)]);
    let mut delivery = Delivery::restore(delivery.record().clone(), &StoredParts::default());
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    delivery.resend();
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
}

#[test]
fn a_restarted_operator_sends_an_interrupted_update_again() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2)]));
    let update = begin(&mut delivery);
    let contents = [Contents::default(), delivery.contents()];
    // The operator stops before it writes the contents, or after that.
    for contents in contents {
        let stored = stored(&contents, &update);
        let mut delivery = Delivery::restore(delivery.record().clone(), &stored);
        delivery.want(desired([("cluster.a", 1), ("cluster.b", 1)]));
        assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 1), ("cluster.b", 1)]);
    }
}

#[test]
fn a_restarted_operator_still_has_the_acknowledged_body_of_a_rejected_policy() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 2)]));
    let update = begin(&mut delivery);
    let stored = stored(&delivery.contents(), &update);
    let mut delivery = Delivery::restore(delivery.record().clone(), &stored);
    delivery.want(desired([("cluster.a", 2)]));
    let update = begin(&mut delivery);
    assert_eq!(changes(&update), [("cluster.a", 2), ("cluster.b", 0)]);
    assert_eq!(update.removed[&id("cluster.b")], LastKnown::Body(item("cluster.b", 1, &json!(1))));
    // Both changes are rejected, one after the other.
    while let Step::Deliver(_) | Step::Busy = delivery.begin(NO_TIME) {
        delivery.finish(rejected(true), 0.0);
    }
    assert_eq!(generations(&delivery.contents().items), [("cluster.a", 1), ("cluster.b", 1)]);
}

#[test]
fn stored_bodies_that_were_edited_by_hand_are_sent_again_after_a_restart() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 2)]));
    let update = begin(&mut delivery);
    delivery.finish(Outcome::Acknowledged, 0.0);
    let event = update.event("T".to_owned(), "U".to_owned());
    let mut parts = delivery.contents().parts(&Assignments::default(), &event).unwrap();
    let edit = |part: &mut Part| part.data.insert("items.cluster.a".to_owned(), r#"{"policyVersion":"9"}"#.into());
    edit(&mut parts[0]);
    let mut delivery = Delivery::restore(delivery.record().clone(), &StoredParts::read(parts));
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 2)]));
    let update = begin(&mut delivery);
    assert_eq!(changes(&update), [("cluster.a", 1)]);
    assert_eq!(generations(&update.target), [("cluster.a", 1), ("cluster.b", 2)]);
}

#[test]
fn a_resend_contains_all_policies_and_tries_rejected_ones_without_a_delay() {
    let mut delivery = acknowledged([("cluster.a", 1), ("cluster.b", 1)]);
    delivery.want(desired([("cluster.a", 1), ("cluster.b", 2)]));
    begin(&mut delivery);
    delivery.finish(rejected(false), 0.0);
    delivery.want(desired([("cluster.a", 2), ("cluster.b", 2)]));
    begin(&mut delivery);
    delivery.finish(failed(), 0.0);
    delivery.resend();
    let Step::Deliver(update) = delivery.begin(NO_TIME) else { panic!("{delivery:?}") };
    assert_eq!(changes(&update), [("cluster.a", 2), ("cluster.b", 2)]);
    delivery.finish(Outcome::Acknowledged, 0.0);
    delivery.resend();
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 2), ("cluster.b", 2)]);
}

#[test]
fn a_result_without_an_update_in_flight_changes_nothing() {
    let mut delivery = acknowledged([("cluster.a", 1)]);
    let record = delivery.record().clone();
    delivery.finish(rejected(true), 0.0);
    assert_eq!(delivery.begin(NO_TIME), Step::Idle);
    assert_eq!(delivery.record(), &record);
}

#[test]
fn an_acknowledged_candidate_is_on_record_with_its_experiment() {
    let candidate = crate::configuration::Candidate { experiment: "bigger".to_owned(), generation: 2 };
    let mut policy = crate::configuration::testing::policy("cluster.a", 1);
    policy.version.candidate = Some(candidate.clone());
    let body = Item::new(&policy, &json!(1)).unwrap();
    let mut delivery = acknowledged([("cluster.a", 1)]);
    delivery.want(Desired { items: [(id("cluster.a"), body)].into(), keep: Keep::default() });
    begin(&mut delivery);
    delivery.finish(Outcome::Acknowledged, 0.0);
    let version = &delivery.record().acknowledged[&id("cluster.a")].version;
    assert_eq!(version, &Version { generation: 1, candidate: Some(candidate) });
    // The end of the experiment returns the live body as an update.
    delivery.want(desired([("cluster.a", 1)]));
    assert_eq!(changes(&begin(&mut delivery)), [("cluster.a", 1)]);
}
