//! Properties of decisions.

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn any_revision()(
        generation in 1_i64..6, is_enabled: bool, initialized in 0..3, a in 0..3, b in 0..3, mark in 0..4,
        marked in 0_u64..600, waiting in 0_u64..90, kind in 0..3,
    ) -> Revision {
        let result = |code| match code { 0 => None, 1 => Some(Ok(())), _ => Some(Err(failure("X"))) };
        Revision {
            generation,
            is_enabled,
            initialized: result(initialized),
            waiting_for: Duration::from_secs(waiting),
            replicas: vec![report("a", result(a)), report("b", result(b))],
            mark: match mark { 0 => None, 1 => Some(Mark::Live), 2 => Some(Mark::Called), _ => Some(Mark::Retired) },
            marked_for: Duration::from_secs(marked),
            webhook: match kind { 0 => None, 1 => Some(WebhookKind::Validating), _ => Some(WebhookKind::Mutating) },
        }
    }
}

prop_compose! {
    fn any_webhooks()(
        validating in prop::option::of(prop::collection::vec(1_i64..7, 0..3)),
        mutating in prop::option::of(prop::collection::vec(1_i64..7, 0..3)), age in 0_u64..60,
    ) -> Vec<Webhook> {
        let age = Duration::from_secs(age);
        let of = |kind, calls: Option<Vec<i64>>| calls.map(|calls| Webhook { kind, calls, age });
        of(WebhookKind::Validating, validating).into_iter().chain(of(WebhookKind::Mutating, mutating)).collect()
    }
}

prop_compose! {
    fn any_policy()(
        generation in 1_i64..6, reported_live in 0_i64..6, mut revisions in prop::collection::vec(any_revision(), 0..6),
        webhooks in any_webhooks(), is_enabled: bool, is_deleted: bool, is_break_glass: bool,
        history_limit in 0_usize..3, is_refused: bool, needs_replicas: bool,
    ) -> Observed {
        revisions.sort_by_key(|revision| revision.generation);
        revisions.dedup_by_key(|revision| revision.generation);
        let reported_live = (reported_live > 0).then_some(reported_live);
        let mut policy = policy(generation, None, revisions);
        policy.needs_replicas = needs_replicas;
        policy.pods.retain(|_| needs_replicas);
        let refusal = is_refused.then(|| failure("NotPermitted"));
        Observed { is_enabled, is_deleted, refusal, reported_live, webhooks, is_break_glass, history_limit, ..policy }
    }
}

/// Returns the state after the operator has carried out the decision.
fn carry_out(mut observed: Observed, decision: &Decision) -> Observed {
    observed.webhooks.retain(|webhook| !decision.delete_webhooks.contains(&webhook.kind));
    let kind = decision.live.and_then(|live| observed.revision(live)?.webhook);
    if let (Some(kind), Some(live), false) = (kind, decision.live, decision.is_break_glass) {
        match observed.webhooks.iter_mut().find(|webhook| webhook.kind == kind) {
            Some(webhook) => webhook.calls = vec![live],
            None => observed.webhooks.push(Webhook { age: Duration::ZERO, ..webhook(kind, &[live]) }),
        }
    }
    observed.revisions.retain(|revision| !decision.delete.contains(&revision.generation));
    for revision in &mut observed.revisions {
        revision.is_enabled |= decision.enable.contains(&revision.generation);
        revision.is_enabled &= !decision.disable.contains(&revision.generation);
        for (generation, mark) in decision.marks_before.iter().chain(&decision.marks_after) {
            if *generation == revision.generation {
                (revision.mark, revision.marked_for) = (Some(*mark), Duration::ZERO);
            }
        }
    }
    observed.reported_live = decision.answering;
    observed
}

proptest! {
    #[test]
    fn a_generation_goes_live_only_if_every_ready_pod_serves_it(observed in any_policy()) {
        let decision = decide(&observed);
        if let Some(live) = decision.live.filter(|live| observed.live() != Some(*live)) {
            let revision = observed.revision(live).unwrap();
            prop_assert_eq!(progress::ready(revision, &observed.pods), observed.pods.len());
            prop_assert_eq!(&revision.initialized, &Some(Ok(())));
        }
    }

    #[test]
    fn live_generations_and_those_that_webhooks_call_stay_enabled(observed in any_policy()) {
        let decision = decide(&observed);
        for generation in observed.live().into_iter().chain(decision.live).chain(observed.called()) {
            prop_assert!(!decision.disable.contains(&generation), "{decision:?}");
            prop_assert!(!decision.delete.contains(&generation), "{decision:?}");
        }
    }

    #[test]
    fn a_hand_edit_of_the_webhooks_does_not_change_the_record(observed in any_policy(), webhooks in any_webhooks()) {
        prop_assume!(observed.revisions.iter().any(|revision| revision.mark == Some(Mark::Live)));
        let edited = Observed { webhooks, ..observed.clone() };
        prop_assert_eq!(decide(&edited).live, decide(&observed).live);
    }

    #[test]
    fn break_glass_changes_neither_the_record_nor_a_webhook(observed in any_policy()) {
        let decision = decide(&observed);
        if decision.is_break_glass {
            prop_assert_eq!(decision.live, observed.live());
            prop_assert!(decision.delete_webhooks.is_empty(), "{decision:?}");
            for (generation, mark) in decision.marks_before.iter().chain(&decision.marks_after) {
                let before = observed.revision(*generation).and_then(|revision| revision.mark);
                prop_assert!(*mark != Mark::Live && before != Some(Mark::Live), "{decision:?}");
            }
        }
    }

    #[test]
    fn the_last_webhook_of_a_live_policy_is_not_deleted(observed in any_policy()) {
        let decision = decide(&observed);
        if decision.live.is_some() && !observed.webhooks.is_empty() {
            prop_assert!(!carry_out(observed, &decision).webhooks.is_empty(), "{decision:?}");
        }
    }

    #[test]
    fn a_decision_that_is_carried_out_is_not_repeated(observed in any_policy()) {
        // Without a record, break-glass enables the generation that the webhook calls, which then counts as live.
        let has_record = observed.revisions.iter().any(|revision| revision.mark == Some(Mark::Live));
        prop_assume!(has_record || !observed.is_break_glass);
        let decision = decide(&observed);
        let again = decide(&carry_out(observed, &decision));
        let changes = [&again.enable, &again.disable, &again.delete];
        prop_assert!(changes.iter().all(|changes| changes.is_empty()), "{decision:?} then {again:?}");
        let is_marked = again.marks_before.is_empty() && again.marks_after.is_empty();
        prop_assert!(is_marked && again.delete_webhooks.is_empty(), "{decision:?} then {again:?}");
        prop_assert_eq!(again.live, decision.live);
    }
}
