//! The plan of a seed.

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_seed_determines_the_steps() {
    let steps = |seed: u64, count: usize| Plan::new(seed).take(count).collect::<Vec<_>>();
    assert_eq!(steps(7, 300), steps(7, 300));
    assert_eq!(steps(7, 300)[..100], steps(7, 100)[..], "a shorter run has the first steps of a longer one");
    assert_ne!(steps(7, 100), steps(8, 100));
}

#[test]
fn a_plan_has_every_kind_of_step_and_unique_specs() {
    let steps: Vec<_> = Plan::new(1).take(2000).map(|planned| planned.step).collect();
    let kinds: BTreeSet<_> = steps.iter().map(std::mem::discriminant).map(|kind| format!("{kind:?}")).collect();
    assert_eq!(kinds.len(), KINDS.len());
    let specs = steps.iter().filter_map(|step| match step {
        Step::Edit { spec, .. } | Step::StartExperiment { spec, .. } => Some(spec.number),
        _ => None,
    });
    let specs: Vec<_> = specs.collect();
    assert!(specs.is_sorted_by(|a, b| a < b) && specs[0] == POLICIES, "{specs:?}");
    for step in steps {
        match step {
            Step::Edit { policy, .. } | Step::RollBack { policy, .. } => assert!(policy < POLICIES),
            Step::Scale { replicas } => assert!((2..=REPLICAS + 1).contains(&replicas)),
            _ => {}
        }
    }
}

#[test]
fn a_run_begins_with_both_versions_and_the_default_run_changes_them() {
    assert!([Version::This, Version::Other].iter().all(|version| OPERATOR_VERSIONS.contains(version)));
    // A run of three minutes, as in `make e2e`, has more steps.
    let steps: Vec<_> = Plan::new(1).take(60).map(|planned| planned.step).collect();
    assert!(steps.contains(&Step::ChangeServerVersion));
    assert!(steps.iter().any(|step| matches!(step, Step::ChangeOperatorVersion { .. })));
}
