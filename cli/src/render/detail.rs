//! Everything about one policy, the most urgent first.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proviso_crds::conditions::reasons;
use proviso_crds::{ConditionStatus, ConditionType, Conditions as _, PolicyPhase, ReplicaStatus};

use super::overview::phase_style;
use super::page::{facts, heading, next_step, omissions, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::report::{Detail, EventReport, PolicyReport, RevisionReport};

/// The most Events that the page has, unless it is wide.
const EVENTS: usize = 8;

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
    facts(&mut page, view, &about(policy, &detail.revisions, view));
    if !policy.conditions.is_empty() {
        steps(&mut page, policy, view);
    }
    for revision in &detail.revisions {
        replicas(&mut page, policy, revision, view);
    }
    if !detail.events.is_empty() {
        events(&mut page, &detail.events, view);
    }
    if !detail.next_steps.is_empty() {
        heading(&mut page, "What to do");
        for step in &detail.next_steps {
            next_step(&mut page, step, view);
        }
    }
    if !detail.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &detail.unseen, view);
    page
}

fn about(policy: &PolicyReport, revisions: &[RevisionReport], view: &View) -> Vec<(&'static str, String)> {
    let place = policy.namespace.as_ref().map_or_else(String::new, |it| format!(" in the namespace {it}"));
    let age = view.age(policy.created.as_ref().map(|time| time.0));
    let mut facts = vec![("Policy", format!("{}{place}, {age} old", policy.reference()))];
    facts.push(("Server", policy.policy_server.clone()));
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
    let on = policy.replicas.as_ref();
    let on = on.map_or_else(String::new, |it| format!(", served by {} of {} replicas", it.ready, it.total));
    facts.push(("Newest", format!("generation {}{on}", policy.generation)));
    facts
}

/// The revision knows it better; the policy knows it of its newest generation.
fn live_since(policy: &PolicyReport, revisions: &[RevisionReport], live: i64) -> Option<jiff::Timestamp> {
    let revision = revisions.iter().find(|it| it.generation == live).and_then(|it| it.since.as_ref());
    let is_live = |it: &&Condition| it.status == ConditionStatus::True.as_str() && it.observed_generation == Some(live);
    let condition = policy.conditions.condition(ConditionType::Live).filter(is_live).map(|it| &it.last_transition_time);
    revision.or(condition).map(|time| time.0)
}

fn steps(page: &mut String, policy: &PolicyReport, view: &View) {
    let observed = policy.conditions.iter().filter_map(|it| it.observed_generation).max().unwrap_or_default();
    heading(page, &format!("Generation {observed}, step by step"));
    let mut table = Table::new(&["STEP", if view.is_wide { "CONDITION" } else { "" }, "STATE", "FOR", "WHAT"]);
    for condition in &policy.conditions {
        let state = state(policy, condition);
        // The head of the page says it in full.
        let what = if state.0 == "failed" { &condition.reason } else { &condition.message };
        table.row(vec![
            in_words(&condition.type_).into(),
            if view.is_wide { format!("{}={}", condition.type_, condition.status) } else { String::new() }.into(),
            Cell::new(state.0, state.1),
            view.age(Some(condition.last_transition_time.0)).into(),
            what.as_str().into(),
        ]);
    }
    page.push_str(&table.render(view.width));
}

fn in_words(condition: &str) -> &str {
    match ConditionType::parse(condition) {
        Some(ConditionType::Scheduled) => "Taken up by the operator",
        Some(ConditionType::Initialized) => "Program prepared",
        Some(ConditionType::Ready) => "Loaded by every replica",
        Some(ConditionType::Live) => "Answering requests",
        _ => condition,
    }
}

fn state(policy: &PolicyReport, condition: &Condition) -> (&'static str, anstyle::Style) {
    let is_problem = policy.problem.as_ref().is_some_and(|problem| condition.reason == problem.reason);
    match condition.status.as_str() {
        "True" => ("done", GOOD),
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
    let told = policy.problem.as_ref().map(|problem| problem.message.as_str());
    page.push_str(&replica_table(&revision.replicas, told, view));
}

/// `told`: a message that stands elsewhere on the page.
pub(super) fn replica_table(replicas: &[ReplicaStatus], told: Option<&str>, view: &View) -> String {
    if replicas.is_empty() {
        return paint(DIM, "No replica has said anything about it.\n");
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
            if told == Some(&replica.message) { "" } else { replica.message.as_str() }.into(),
        ]);
    }
    table.render(view.width)
}

fn events(page: &mut String, events: &[EventReport], view: &View) {
    heading(page, "Events");
    let older = if view.is_wide { 0 } else { events.len().saturating_sub(EVENTS) };
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
        page.push_str(&paint(DIM, &format!("{older} older: -o wide\n")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::found::Omitted;
    use crate::objects::RevisionObject;
    use crate::objects::tests::{condition, failed, live, policy, revision, with_replica};
    use crate::report::Place;
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
        let place = Place { program: "proviso", proviso_namespace: "proviso-system".to_owned() };
        Detail::new(&policy(8, &failed(8, 7, "CompileError", MESSAGE)), revisions, vec![event], unseen, &place)
    }

    fn revisions() -> [RevisionObject; 2] {
        let newest = revision(8, "team", true, &[condition("Initialized", "False", "CompileError", MESSAGE, 8)]);
        let newest = with_replica(newest, "policy-server-default-0", ConditionStatus::False, "CompileError", MESSAGE);
        let old = revision(7, "owner", true, &live("True", 7));
        [newest, with_replica(old, "policy-server-default-0", ConditionStatus::True, "Loaded", "")]
    }

    #[test]
    fn a_failed_update_is_told_in_80_columns() {
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

Generation 8, step by step
STEP                      STATE    FOR  WHAT
Taken up by the operator  done     40m  there is a revision of this generation
Program prepared          failed   40m  CompileError
Loaded by every replica   waiting  40m  not every Ready replica has loaded it
Answering requests        waiting  40m  not yet; generation 7 goes on answering

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

What to do
- Correct the program where the message says, and apply the policy again.
- See what generation 7 did not have: proviso revisions diff ns.team.labels
- Undo the change: proviso rollback ns.team.labels --to 7
";
        assert_eq!(plain(&detail(&report(&revisions(), Vec::new()), &view(80))), wanted);
    }

    #[test]
    fn who_may_not_see_revisions_still_learns_why() {
        let message = "you may not list policyrevisions.proviso.dev in the namespace proviso-system".to_owned();
        let unseen = Omitted { what: "the replicas one by one".to_owned(), reason: "Forbidden", message };
        let page = plain(&detail(&report(&[], vec![unseen]), &view(140)));
        assert!(page.contains(&format!("CompileError: {MESSAGE}\n")), "{page}");
        assert!(page.contains("0 of 2 replicas") && page.contains("proviso rollback ns.team.labels --to 7"), "{page}");
        assert!(
            !page.contains("Replicas of") && page.contains("Not shown: the replicas one by one: you may not"),
            "{page}"
        );
    }

    #[test]
    fn wide_names_the_conditions_and_the_pods_uids() {
        let wide = View { is_wide: true, width: None, ..view(0) };
        let page = plain(&detail(&report(&revisions(), Vec::new()), &wide));
        assert!(page.contains("Initialized=False") && page.contains("uid-of-policy-server-default-0"), "{page}");
    }
}
