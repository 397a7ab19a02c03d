//! The next steps for a policy that is not well.

use proviso_core::Reason;
use proviso_crds::PolicyPhase;
use proviso_crds::conditions::reasons;
use proviso_crds::names::SERVER_LABEL;

use super::next_step::{NextStep, Place};
use super::policy::{PolicyReport, is_up_to_date};
use super::revision::RevisionReport;
use crate::objects::PolicyObject;

/// Returns the next steps for a policy; none if all is well.
pub(super) fn next_steps(
    policy: &PolicyObject,
    report: &PolicyReport,
    revisions: &[RevisionReport],
    place: &Place,
) -> Vec<NextStep> {
    let (program, id, namespace) = (place.program, &report.policy, &place.proviso_namespace);
    if policy.is_being_deleted {
        return Vec::new();
    }
    if !is_up_to_date(policy) || policy.rollback_to.is_some() {
        let what = "If this does not change within seconds, look at the operator";
        return vec![command(what, format!("kubectl get pods -n {namespace}"))];
    }
    let mut steps = Vec::new();
    if let Some(problem) = &report.problem {
        if problem.reason == reasons::NO_REPLICAS {
            let server = &report.policy_server;
            steps.push(command(
                &format!("Look why the policy server {server} has no Ready pod"),
                format!("kubectl get pods -n {namespace} -l {SERVER_LABEL}={server}"),
            ));
        } else if problem.reason == reasons::LOADING_FAILED {
            of_replicas(&mut steps, report, revisions, place);
        } else {
            steps.extend(for_reason(&problem.reason));
        }
    }
    match (report.phase, report.live_generation) {
        (PolicyPhase::Failed, Some(live)) => {
            if !revisions.is_empty() {
                let difference = format!("{program} revisions diff {id}");
                steps.push(command(&format!("See what generation {live} did not have"), difference));
            }
            // With its number, which works without permission to read revisions.
            steps.push(command("Undo the change", format!("{program} rollback {id} --to {live}")));
        }
        (PolicyPhase::Pending | PolicyPhase::Updating, _) => {
            steps.push(command("Follow it", format!("{program} status {id} --watch")));
        }
        _ => {}
    }
    steps
}

/// Adds the steps for the replicas that cannot load the newest generation, each step once.
fn of_replicas(steps: &mut Vec<NextStep>, report: &PolicyReport, revisions: &[RevisionReport], place: &Place) {
    let newest = revisions.iter().filter(|it| it.generation == report.generation).flat_map(|it| &it.replicas);
    for replica in newest {
        let Some(Err(failure)) = replica.outcome() else { continue };
        if failure.reason == reasons::LOADING {
            continue;
        }
        let step = for_reason(&failure.reason);
        steps.extend(step.filter(|step| !steps.contains(step)));
        let log = format!("kubectl logs -n {} {}", place.proviso_namespace, replica.name);
        steps.push(command(&format!("See what {} says", replica.name), log));
    }
}

fn command(what: &str, command: String) -> NextStep {
    NextStep { what: what.to_owned(), command: Some(command) }
}

/// The steps for the reasons of failures.
static STEPS: [(Reason, &str); 8] = [
    (
        Reason::PULL_ERROR,
        "Check that the module's reference is right and that the policy server may fetch it: program.wasm.module and \
         imagePullSecrets of the policy, and what the PolicyServer says about its sources",
    ),
    (
        Reason::VERIFICATION_ERROR,
        "The module is not the one that was meant: compare its digest with program.wasm.digest before you change either",
    ),
    (Reason::COMPILE_ERROR, "Correct the program where the message says, and apply the policy again"),
    (Reason::COMPILE_TIMEOUT, "The program takes too long to compile: make it smaller"),
    (Reason::SETTINGS_INVALID, "Correct spec.settings: the message is the program's own"),
    (Reason::CACHE_ERROR, "Look at the policy server's cache volume: it may be full, or read-only"),
    (Reason::UNSUPPORTED, "This version of the policy server does not serve that: leave it out, or update the server"),
    (Reason::INVALID, "Correct the field that the message names, and apply the policy again"),
];

/// Returns the step for the reason of a failure; none if only time helps.
pub(super) fn for_reason(reason: &Reason) -> Option<NextStep> {
    let (_, step) = STEPS.iter().find(|(of, _)| of == reason)?;
    Some(NextStep { what: (*step).to_owned(), command: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, failed, policy, revision, with_replica};
    use crate::report::list;
    use proviso_crds::ConditionStatus;
    use serde_json::{Value, json};

    fn steps(generation: i64, status: &Value, revisions: &[crate::objects::RevisionObject]) -> String {
        let policy = policy(generation, status);
        let place = Place { program: "proviso", proviso_namespace: "proviso-system".to_owned() };
        let steps = next_steps(&policy, &PolicyReport::new(&policy), &list(&policy, revisions), &place);
        let in_words = |step: &NextStep| match &step.command {
            Some(command) => format!("{}: {command}", step.what),
            None => step.what.clone(),
        };
        steps.iter().map(in_words).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn who_has_a_problem_is_told_the_way_out() {
        assert_eq!(steps(2, &active(2), &[]), "", "nothing is to be done");
        let failure = steps(3, &failed(3, 2, "SettingsInvalid", "label: is missing"), &[]);
        assert!(failure.starts_with("Correct spec.settings"), "{failure}");
        assert!(failure.ends_with("Undo the change: proviso rollback ns.team.labels --to 2"), "{failure}");
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
        let newest = with_replica(newest, "server-0", ConditionStatus::True, "Loaded", "");
        let newest = with_replica(newest, "server-1", ConditionStatus::False, "CacheError", "no space left");
        let newest = with_replica(newest, "server-2", ConditionStatus::False, "CacheError", "no space left");
        let mut status = failed(3, 2, "Prepared", "");
        status["conditions"][1] = condition("Initialized", "True", "Prepared", "", 3);
        status["conditions"][2] = condition("Ready", "False", "LoadingFailed", "1 of 2", 3);
        let told = steps(3, &status, &[newest]);
        assert_eq!(told.matches("cache volume").count(), 1, "{told}");
        assert!(told.contains("kubectl logs -n proviso-system server-1") && told.contains("server-2"), "{told}");
        assert!(!told.contains("server-0"), "{told}");
    }
}
