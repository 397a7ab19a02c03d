//! Candidates of active experiments, and the subscriptions that get them.

use super::*;
use crate::configuration::policy::Candidate;
use crate::configuration::subscription::CanaryFor;

fn candidate(policy_id: &str, experiment: &str, generation: i64) -> ConfigurationPolicy {
    let mut candidate = policy(policy_id, 7);
    candidate.version.candidate = Some(Candidate { experiment: experiment.to_owned(), generation });
    candidate
}

fn catalog() -> Catalog {
    let versions = [
        policy("cluster.memory", 7),
        candidate("cluster.memory", "bigger", 2),
        candidate("cluster.memory", "bigger", 3),
        candidate("cluster.memory", "smaller", 1),
        policy("cluster.storage", 7),
        candidate("cluster.storage", "faster", 1),
        candidate("cluster.deleted", "orphan", 1),
        policy("ns.b.limits", 1),
        candidate("ns.b.limits", "stolen", 1),
    ];
    Catalog::new(versions, [])
}

fn resolve_canary(selectors: Vec<Selector>, canaries: &[(&str, &str)]) -> (Vec<String>, Vec<CanaryOutcome>) {
    let canary =
        |(policy, experiment): &(&str, &str)| CanaryFor { policy: id(policy), experiment: (*experiment).to_owned() };
    let canary_for = canaries.iter().map(canary).collect();
    let subscription = Subscription { namespace: "a".to_owned(), selectors, canary_for };
    let resolution = resolve(&CompiledSubscription::new(&subscription), &catalog());
    let versions = resolution.selected.values().map(|policy| format!("{} {}", policy.id, policy.version));
    (versions.collect(), resolution.canaries)
}

#[test]
fn only_a_canary_gets_the_candidate_in_its_newest_generation() {
    let live = ["cluster.memory 7", "cluster.storage 7"];
    assert_eq!(resolve_canary(vec![named(".*")], &[]), (live.map(ToOwned::to_owned).into(), vec![]));
    let (versions, outcomes) = resolve_canary(vec![named(".*")], &[("cluster.memory", "bigger")]);
    assert_eq!(versions, ["cluster.memory 7/bigger/3", "cluster.storage 7"]);
    assert_eq!(outcomes, [CanaryOutcome::Delivered]);
}

#[test]
fn a_canary_without_an_active_experiment_gets_the_live_policy() {
    for (policy, experiment, expected) in [
        ("cluster.memory", "suspended", CanaryOutcome::NotActive),
        ("cluster.deleted", "orphan", CanaryOutcome::PolicyNotFound),
        ("ns.b.limits", "stolen", CanaryOutcome::OtherNamespace),
    ] {
        let (versions, outcomes) = resolve_canary(vec![named(".*")], &[(policy, experiment)]);
        assert_eq!(versions, ["cluster.memory 7", "cluster.storage 7"], "{experiment}");
        assert_eq!(outcomes, [expected], "{experiment}");
    }
}

#[test]
fn two_active_experiments_of_one_policy_exclude_each_other() {
    let canaries = [("cluster.memory", "bigger"), ("cluster.storage", "faster"), ("cluster.memory", "smaller")];
    let (versions, outcomes) = resolve_canary(vec![named(".*")], &canaries);
    assert_eq!(versions, ["cluster.memory 7", "cluster.storage 7/faster/1"]);
    assert_eq!(outcomes, [CanaryOutcome::Conflict, CanaryOutcome::Delivered, CanaryOutcome::Conflict]);
    // A suspended experiment excludes no other one, and a repeated entry does not exclude itself.
    let canaries = [("cluster.memory", "bigger"), ("cluster.memory", "suspended"), ("cluster.memory", "bigger")];
    let (versions, outcomes) = resolve_canary(vec![named(".*memory")], &canaries);
    assert_eq!(versions, ["cluster.memory 7/bigger/3"]);
    assert_eq!(outcomes, [CanaryOutcome::Delivered, CanaryOutcome::NotActive, CanaryOutcome::Delivered]);
}

#[test]
fn selectors_are_compared_with_the_candidate_as_if_it_were_committed() {
    let (versions, outcomes) = resolve_canary(vec![named("cluster.storage")], &[("cluster.memory", "bigger")]);
    assert_eq!((versions, outcomes), (vec!["cluster.storage 7".to_owned()], vec![CanaryOutcome::NotSelected]));
    let renamed =
        ConfigurationPolicy { config_name: "renamed".to_owned(), ..candidate("cluster.memory", "renamed", 1) };
    let catalog = Catalog::new([policy("cluster.memory", 7), renamed], []);
    let by_name = |name: &str| vec![filter(|filter| filter.config_name = Some(name.to_owned()))];
    for (name, expected) in [("memory", 0), ("renamed", 1)] {
        let subscription = Subscription {
            namespace: "a".to_owned(),
            selectors: by_name(name),
            canary_for: vec![CanaryFor { policy: id("cluster.memory"), experiment: "renamed".to_owned() }],
        };
        let resolution = resolve(&CompiledSubscription::new(&subscription), &catalog);
        assert_eq!(resolution.selected.len(), expected, "{name}");
    }
}
