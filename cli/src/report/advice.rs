//! The next steps for a policy with a problem.

use proviso_core::Reason;
use proviso_crds::PolicyPhase;
use proviso_crds::names::SERVER_LABEL;
use proviso_crds::reasons::{self, explanation};

use super::next_step::{CommandContext, NextStep};
use super::policy::{PolicyReport, is_up_to_date};
use super::revision::RevisionReport;
use crate::objects::PolicyObject;

/// Returns the next steps for a policy; an empty list if the policy has no problem.
pub(super) fn next_steps(
    policy: &PolicyObject,
    report: &PolicyReport,
    revisions: &[RevisionReport],
    context: &CommandContext,
) -> Vec<NextStep> {
    let (program, id, namespace) = (context.program, &report.policy, &context.proviso_namespace);
    if policy.is_being_deleted {
        return Vec::new();
    }
    if !is_up_to_date(policy) || policy.rollback_to.is_some() {
        let what = "If this does not change within seconds, check the operator";
        return vec![command(what, format!("kubectl get pods -n {namespace}"))];
    }
    let mut steps = Vec::new();
    if let Some(problem) = &report.problem {
        if problem.reason == reasons::NO_REPLICAS {
            let server = report.policy_server.as_deref().unwrap_or_default();
            steps.push(command(
                &format!("See why the policy server {server} has no Ready pod"),
                format!("kubectl get pods -n {namespace} -l {SERVER_LABEL}={server}"),
            ));
        } else if problem.reason == reasons::LOADING_FAILED {
            add_replica_steps(&mut steps, report, revisions, context);
        } else {
            steps.extend(for_reason(&problem.reason));
        }
    }
    match (report.phase, report.live_generation) {
        (PolicyPhase::Failed, Some(live)) => {
            if !revisions.is_empty() {
                let difference = format!("{program} revisions diff {id}");
                steps.push(command(&format!("See the changes since generation {live}"), difference));
            }
            // `--to` also works without permission to read revisions.
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
fn add_replica_steps(
    steps: &mut Vec<NextStep>,
    report: &PolicyReport,
    revisions: &[RevisionReport],
    context: &CommandContext,
) {
    let newest = revisions.iter().filter(|it| it.generation == report.generation).flat_map(|it| &it.replicas);
    for replica in newest {
        let Some(Err(failure)) = replica.outcome() else { continue };
        if failure.reason == reasons::LOADING {
            continue;
        }
        let step = for_reason(&failure.reason);
        steps.extend(step.filter(|step| !steps.contains(step)));
        let log = format!("kubectl logs -n {} {}", context.proviso_namespace, replica.name);
        steps.push(command(&format!("See the log of {}", replica.name), log));
    }
}

fn command(what: &str, command: String) -> NextStep {
    NextStep { what: what.to_owned(), command: Some(command) }
}

/// Returns the step for the reason of a failure; `None` if another version of Proviso gave the reason.
pub(super) fn for_reason(reason: &Reason) -> Option<NextStep> {
    Some(NextStep { what: explanation(reason)?.remedy?.to_owned(), command: None })
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
        let context = CommandContext { program: "proviso", proviso_namespace: "proviso-system".to_owned() };
        let steps = next_steps(&policy, &PolicyReport::new(&policy), &list(&policy, revisions), &context);
        let line = |step: &NextStep| match &step.command {
            Some(command) => format!("{}: {command}", step.what),
            None => step.what.clone(),
        };
        steps.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_problem_has_next_steps() {
        assert_eq!(steps(2, &active(2), &[]), "", "the policy has no problem");
        let failure = steps(3, &failed(3, 2, "SettingsInvalid", "label: is missing"), &[]);
        assert!(failure.starts_with("Correct spec.settings"), "{failure}");
        assert!(failure.ends_with("Undo the change: proviso rollback ns.team.labels --to 2"), "{failure}");
        let no_pods = steps(3, &failed(3, 2, "NoReplicas", "no replica is Ready"), &[]);
        let pods = "kubectl get pods -n proviso-system -l proviso.dev/policy-server=default";
        assert!(no_pods.contains(pods), "{no_pods}");
        assert!(steps(3, &active(2), &[]).contains("check the operator"), "the status is about an older generation");
        let mut first = failed(1, 0, "CompileError", "no");
        first["liveGeneration"] = Value::Null;
        assert!(!steps(1, &first, &[]).contains("rollback"), "there is no generation to roll back to");
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
        let steps = steps(3, &status, &[newest]);
        assert_eq!(steps.matches("cache volume").count(), 1, "{steps}");
        assert!(steps.contains("kubectl logs -n proviso-system server-1") && steps.contains("server-2"), "{steps}");
        assert!(!steps.contains("server-0"), "{steps}");
    }
}
