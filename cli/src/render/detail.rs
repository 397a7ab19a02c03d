//! The page about one policy. The most urgent information is first.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proviso_crds::reasons;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, PolicyPhase, ReplicaStatus};

use super::overview::phase_style;
use super::page::{facts, heading, next_steps, omissions, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::report::{Detail, EventReport, PolicyReport, RevisionReport};

/// The number of Events on the page, unless the page is wide.
const MAX_EVENTS: usize = 8;

#[must_use]
pub fn detail(detail: &Detail, view: &View) -> String {
    let policy = &detail.policy;
    let mut page = format!("{}  ", paint(BOLD, policy.policy.as_str()));
    page.push_str(&paint(phase_style(policy.phase), &format!("{:?}", policy.phase)));
    page.push('\n');
    page.push_str(&paragraph(&policy.summary, view.width, 0, "", PLAIN));
    if let Some(problem) = &policy.problem {
        let style = if policy.phase == PolicyPhase::Failed { BAD } else { WAITING };
        page.push_str(&paragraph(&format!("{}: {}", problem.reason, problem.message), view.width, 0, "", style));
    }
    page.push('\n');
    facts(&mut page, view, &policy_facts(policy, &detail.revisions, view));
    if !policy.conditions.is_empty() {
        steps(&mut page, policy, view);
    }
    // No replica loads a policy without a policy server.
    for revision in detail.revisions.iter().filter(|_| policy.policy_server.is_some()) {
        replicas(&mut page, policy, revision, view);
    }
    if !detail.events.is_empty() {
        events(&mut page, &detail.events, view);
    }
    next_steps(&mut page, &detail.next_steps, view);
    if !detail.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &detail.unseen, view);
    page
}

fn policy_facts(policy: &PolicyReport, revisions: &[RevisionReport], view: &View) -> Vec<(&'static str, String)> {
    let place = policy.namespace.as_ref().map_or_else(String::new, |it| format!(" in the namespace {it}"));
    let age = view.age(policy.created.as_ref().map(|time| time.0));
    let mut facts = vec![("Policy", format!("{}{place}, {age} old", policy.reference()))];
    facts.extend(policy.policy_server.clone().map(|server| ("Server", server)));
    if let Some(mode) = policy.mode {
        facts.push(("Mode", format!("{mode:?}")));
    }
    let live = policy.live_generation.map_or_else(
        || "none".to_owned(),
        |live| match live_since(policy, revisions, live) {
            Some(since) => format!("generation {live}, for {}", view.age(Some(since))),
            None => format!("generation {live}"),
        },
    );
    facts.push(("Live", live));
    let replicas = policy.replicas.as_ref();
    let replicas = replicas.map_or_else(String::new, |it| format!(", served by {} of {} replicas", it.ready, it.total));
    facts.push(("Newest", format!("generation {}{replicas}", policy.generation)));
    facts
}

/// Returns the time since when a generation is live. The revision has it; if the user may not read revisions, the policy's
/// condition has it for the newest generation.
fn live_since(policy: &PolicyReport, revisions: &[RevisionReport], live: i64) -> Option<jiff::Timestamp> {
    let revision = revisions.iter().find(|it| it.generation == live).and_then(|it| it.since.as_ref());
    let is_live = |it: &&Condition| it.status == ConditionStatus::True.as_str() && it.observed_generation == Some(live);
    let condition = policy.conditions.condition(ConditionType::Live).filter(is_live).map(|it| &it.last_transition_time);
    revision.or(condition).map(|time| time.0)
}

fn steps(page: &mut String, policy: &PolicyReport, view: &View) {
    let observed = policy.conditions.iter().filter_map(|it| it.observed_generation).max().unwrap_or_default();
    heading(page, &format!("Rollout of generation {observed}"));
    let mut table = Table::new(&["STEP", if view.is_wide { "CONDITION" } else { "" }, "STATE", "FOR", "MESSAGE"]);
    for condition in &policy.conditions {
        let state = state(policy, condition);
        // The top of the page has the message of a failed rollout.
        let message = if state.0 == "failed" { &condition.reason } else { &condition.message };
        table.row(vec![
            step_name(policy, &condition.type_).into(),
            if view.is_wide { format!("{}={}", condition.type_, condition.status) } else { String::new() }.into(),
            Cell::new(state.0, state.1),
            view.age(Some(condition.last_transition_time.0)).into(),
            message.as_str().into(),
        ]);
    }
    page.push_str(&table.render(view.width));
}

/// Returns the name of the rollout step that a condition is about.
fn step_name<'a>(policy: &PolicyReport, condition: &'a str) -> &'a str {
    let is_configuration = policy.policy_server.is_none();
    match ConditionType::parse(condition) {
        Some(ConditionType::Initialized) if is_configuration => "Content checked",
        Some(ConditionType::Live) if is_configuration => "Configuring components",
        Some(ConditionType::Scheduled) => "Revision created",
        Some(ConditionType::Initialized) => "Program prepared",
        Some(ConditionType::Ready) => "Loaded by every replica",
        Some(ConditionType::Live) => "Answering requests",
        Some(ConditionType::RolledBack) => "Rolled back",
        _ => condition,
    }
}

fn state(policy: &PolicyReport, condition: &Condition) -> (&'static str, anstyle::Style) {
    let is_problem = policy.problem.as_ref().is_some_and(|problem| condition.reason == problem.reason);
    match condition.status.as_str() {
        "True" => ("done", GOOD),
        _ if condition.type_ == ConditionType::RolledBack.as_str() => ("refused", BAD),
        _ if policy.phase == PolicyPhase::Disabled => ("off", DIM),
        "False" if is_problem && condition.type_ != ConditionType::Live.as_str() => ("failed", BAD),
        _ => ("waiting", WAITING),
    }
}

fn replicas(page: &mut String, policy: &PolicyReport, revision: &RevisionReport, view: &View) {
    let generation = revision.generation;
    let mut names = Vec::new();
    if generation == policy.generation {
        names.push("newest");
    }
    if policy.live_generation == Some(generation) {
        names.push("live");
    }
    heading(page, &format!("Replicas of generation {generation} ({})", names.join(", ")));
    let shown = policy.problem.as_ref().map(|problem| problem.message.as_str());
    page.push_str(&replica_table(&revision.replicas, shown, view));
}

/// Renders the table of the replicas of a revision. `shown` is a message that the page has already, so the table omits it.
pub(super) fn replica_table(replicas: &[ReplicaStatus], shown: Option<&str>, view: &View) -> String {
    if replicas.is_empty() {
        return paint(DIM, "No replica has reported a status.\n");
    }
    let uid = if view.is_wide { "UID" } else { "" };
    let mut table = Table::new(&["POD", uid, "READY", "FOR", "VERSION", "REASON", "MESSAGE"]);
    for replica in replicas {
        let style = match replica.ready {
            ConditionStatus::True => GOOD,
            ConditionStatus::False if replica.reason != reasons::LOADING => BAD,
            _ => WAITING,
        };
        table.row(vec![
            replica.name.as_str().into(),
            if view.is_wide { replica.pod_uid.as_str() } else { "" }.into(),
            Cell::new(format!("{:?}", replica.ready), style),
            view.age(Some(replica.last_transition_time.0)).into(),
            replica.server_version.as_str().into(),
            replica.reason.as_str().into(),
            if shown == Some(&replica.message) { "" } else { replica.message.as_str() }.into(),
        ]);
    }
    table.render(view.width)
}

fn events(page: &mut String, events: &[EventReport], view: &View) {
    heading(page, "Events");
    let older = if view.is_wide { 0 } else { events.len().saturating_sub(MAX_EVENTS) };
    let mut table = Table::new(&["AGE", "TYPE", "REASON", "MESSAGE"]);
    for event in &events[older..] {
        let style = if event.type_ == "Warning" { WAITING } else { PLAIN };
        let times = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
        table.row(vec![
            view.age(event.last_seen.as_ref().map(|time| time.0)).into(),
            Cell::new(event.type_.as_str(), style),
            event.reason.as_str().into(),
            format!("{}{times}", event.message).into(),
        ]);
    }
    page.push_str(&table.render(view.width));
    if older > 0 {
        page.push_str(&paint(DIM, &format!("{older} older Events: use -o wide\n")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::found::Omitted;
    use crate::objects::RevisionObject;
    use crate::objects::tests::{condition, failed, live, policy, revision, with_replica};
    use crate::report::CommandContext;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    const MESSAGE: &str = "spec.program.cel.validations[0].expression: undeclared reference to 'parms'";

    fn report(revisions: &[RevisionObject], unseen: Vec<Omitted>) -> Detail {
        let event = EventReport {
            type_: "Warning".to_owned(),
            reason: "CompileError".to_owned(),
            message: format!("generation 8: {MESSAGE}"),
            count: 1,
            last_seen: Some(Time("2026-11-21T09:20:00Z".parse().unwrap())),
            version: String::new(),
        };
        let context = CommandContext { program: "proviso", proviso_namespace: "proviso-system".to_owned() };
        Detail::new(&policy(8, &failed(8, 7, "CompileError", MESSAGE)), revisions, vec![event], unseen, &context)
    }

    fn revisions() -> [RevisionObject; 2] {
        let newest = revision(8, "team", true, &[condition("Initialized", "False", "CompileError", MESSAGE, 8)]);
        let newest = with_replica(newest, "policy-server-default-0", ConditionStatus::False, "CompileError", MESSAGE);
        let old = revision(7, "owner", true, &live("True", 7));
        [newest, with_replica(old, "policy-server-default-0", ConditionStatus::True, "Loaded", "")]
    }

    #[test]
    fn the_page_about_a_failed_update_fits_80_columns() {
        let wanted = "\
ns.team.labels  Failed
generation 8 does not work; generation 7 goes on answering
CompileError: spec.program.cel.validations[0].expression: undeclared reference
to 'parms'

Policy  policy/labels in the namespace team, 12d old
Server  default
Mode    Protect
Live    generation 7, for 40m
Newest  generation 8, served by 0 of 2 replicas

Rollout of generation 8
STEP                     STATE    FOR  MESSAGE
Revision created         done     40m  there is a revision of this generation
Program prepared         failed   40m  CompileError
Loaded by every replica  waiting  40m  not every Ready replica has loaded it
Answering requests       waiting  40m  not yet; generation 7 goes on answering

Replicas of generation 8 (newest)
POD                      READY  FOR  VERSION  REASON
policy-server-default-0  False  30m  0.1.0    CompileError

Replicas of generation 7 (live)
POD                      READY  FOR  VERSION  REASON
policy-server-default-0  True   30m  0.1.0    Loaded

Events
AGE  TYPE     REASON        MESSAGE
40m  Warning  CompileError  generation 8:
                            spec.program.cel.validations[0].expression:
                            undeclared reference to 'parms'

Next steps
- Correct the program at the position in the message, and apply the policy
  again.
- See the changes since generation 7: proviso revisions diff ns.team.labels
- Undo the change: proviso rollback ns.team.labels --to 7
";
        assert_eq!(plain(&detail(&report(&revisions(), Vec::new()), &view(80))), wanted);
    }

    #[test]
    fn the_problem_is_shown_without_permission_to_read_revisions() {
        let message = "you may not list policyrevisions.proviso.dev in the namespace proviso-system".to_owned();
        let unseen = Omitted { what: "the status of each replica".to_owned(), reason: "Forbidden", message };
        let page = plain(&detail(&report(&[], vec![unseen]), &view(140)));
        assert!(page.contains(&format!("CompileError: {MESSAGE}\n")), "{page}");
        assert!(page.contains("0 of 2 replicas") && page.contains("proviso rollback ns.team.labels --to 7"), "{page}");
        assert!(
            !page.contains("Replicas of") && page.contains("Not shown: the status of each replica: you may not"),
            "{page}"
        );
    }

    #[test]
    fn wide_output_has_conditions_and_pod_uids() {
        let wide = View { is_wide: true, width: None, ..view(0) };
        let page = plain(&detail(&report(&revisions(), Vec::new()), &wide));
        assert!(page.contains("Initialized=False") && page.contains("uid-of-policy-server-default-0"), "{page}");
    }
}
