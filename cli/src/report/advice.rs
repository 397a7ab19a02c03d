//! What a person does next, in the words of somebody who has seen it before. Commands are whole, to be copied.

use proviso_crds::{PolicyPhase, Readiness};

use super::{Place, PolicyReport, RevisionReport, is_up_to_date};
use crate::objects::PolicyObject;

/// What to do about a policy, the most important first; empty if nothing is to be done.
pub(super) fn next_steps(
    policy: &PolicyObject,
    report: &PolicyReport,
    revisions: &[RevisionReport],
    place: &Place,
) -> Vec<String> {
    let mut steps = Vec::new();
    let (program, id) = (place.program, &report.policy);
    if policy.is_being_deleted {
        return steps;
    }
    if !is_up_to_date(policy) || policy.rollback_to.is_some() {
        steps.push(format!(
            "If this does not change within seconds, look at the operator: kubectl get pods -n {}",
            place.proviso_namespace
        ));
        return steps;
    }
    if let Some(problem) = &report.problem {
        steps.extend(for_reason(&problem.reason, report, place));
        let failed = revisions.iter().filter(|it| it.generation == report.generation).flat_map(|it| &it.replicas);
        for replica in failed.filter(|it| it.ready == Readiness::False && it.reason != "Loading") {
            steps.extend(for_replica(&replica.reason));
            steps.push(format!("Its log: kubectl logs -n {} {}", place.proviso_namespace, replica.name));
        }
        steps.dedup();
    }
    match (report.phase, report.live_generation) {
        (PolicyPhase::Failed, Some(live)) => {
            steps.push(format!("See what generation {live} did not have: {program} revisions diff {id}"));
            steps.push(format!("Undo the change: {program} rollback {id}"));
        }
        (PolicyPhase::Pending | PolicyPhase::Updating, _) => {
            steps.push(format!("Follow it: {program} status {id} --watch"));
        }
        _ => {}
    }
    steps
}

/// What the reason of a condition asks for.
fn for_reason(reason: &str, report: &PolicyReport, place: &Place) -> Vec<String> {
    let (server, namespace) = (&report.policy_server, &place.proviso_namespace);
    match reason {
        "NoReplicas" => vec![format!(
            "Look why the policy server {server} has no Ready pod: kubectl get pods -n {namespace} -l \
             proviso.dev/policy-server={server}"
        )],
        // What its replicas say is told for each.
        "LoadingFailed" => Vec::new(),
        other => for_replica(other).into_iter().collect(),
    }
}

/// What the reason of a replica, or of the leader, asks for.
fn for_replica(reason: &str) -> Option<String> {
    let step = match reason {
        "PullError" => {
            "Check that the module's reference is right and that the policy server may fetch it: program.wasm.module and \
             imagePullSecrets of the policy, and what the PolicyServer says about its sources."
        }
        "VerificationError" => {
            "The module is not the one that was meant: compare its digest with program.wasm.digest before you change \
             either."
        }
        "CompileError" => "Correct the program where the message says, and apply the policy again.",
        "CompileTimeout" => "The program takes too long to compile: make it smaller.",
        "SettingsInvalid" => "Correct spec.settings: the message is the program's own.",
        "CacheError" => "Look at the policy server's cache volume: is it full, or read-only?",
        "Unsupported" => "This version of the policy server does not serve that: leave it out, or update the server.",
        "Invalid" => "Correct the field that the message names, and apply the policy again.",
        _ => return None,
    };
    Some(step.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, failed, policy, revision, with_replica};
    use crate::report::list;
    use serde_json::{Value, json};

    fn steps(generation: i64, status: &Value, revisions: &[crate::objects::RevisionObject]) -> String {
        let policy = policy(generation, status);
        let place = Place { program: "proviso", proviso_namespace: "proviso-system".to_owned() };
        next_steps(&policy, &PolicyReport::new(&policy), &list(&policy, revisions), &place).join("\n")
    }

    #[test]
    fn who_has_a_problem_is_told_the_way_out() {
        assert_eq!(steps(2, &active(2), &[]), "", "nothing is to be done");
        let failure = steps(3, &failed(3, 2, "SettingsInvalid", "label: is missing"), &[]);
        assert!(failure.starts_with("Correct spec.settings"), "{failure}");
        assert!(failure.ends_with("Undo the change: proviso rollback ns.team.labels"), "{failure}");
        let nobody = steps(3, &failed(3, 2, "NoReplicas", "no replica is Ready"), &[]);
        assert!(nobody.contains("kubectl get pods -n proviso-system -l proviso.dev/policy-server=default"), "{nobody}");
        assert!(steps(3, &active(2), &[]).contains("look at the operator"), "the operator is away");
        let mut first = failed(1, 0, "CompileError", "no");
        first["liveGeneration"] = Value::Null;
        assert!(!steps(1, &first, &[]).contains("rollback"), "there is nothing to go back to");
        let mut updating = failed(3, 2, "Preparing", "");
        updating["phase"] = json!("Updating");
        assert_eq!(steps(3, &updating, &[]), "Follow it: proviso status ns.team.labels --watch");
    }

    #[test]
    fn a_replica_that_fails_is_named() {
        let newest = revision(3, "a", true, &[condition("Initialized", "True", "Prepared", "", 3)]);
        let newest = with_replica(newest, "server-0", Readiness::True, "Loaded", "");
        let newest = with_replica(newest, "server-1", Readiness::False, "CacheError", "no space left");
        let mut status = failed(3, 2, "Prepared", "");
        status["conditions"][1] = condition("Initialized", "True", "Prepared", "", 3);
        status["conditions"][2] = condition("Ready", "False", "LoadingFailed", "1 of 2", 3);
        let told = steps(3, &status, &[newest]);
        assert!(told.contains("cache volume") && told.contains("kubectl logs -n proviso-system server-1"), "{told}");
        assert!(!told.contains("server-0"), "{told}");
    }
}
