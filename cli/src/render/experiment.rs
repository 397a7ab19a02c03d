//! The page about one experiment.

use anstyle::Style;
use proviso_crds::{Canary, CanaryResult, DivergenceCounts, DivergenceSample, PreviewLogging, PreviewState};

use super::page::{facts, heading, next_steps, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::report::{ExperimentDetail, ExperimentReport, coverage, percent, share, verdict_counts};

pub(super) fn verdict_style(name: &str, count: u64) -> Style {
    match name {
        _ if count == 0 => DIM,
        "Same" => PLAIN,
        "NewlyDenied" | "ExperimentError" => BAD,
        _ => WAITING,
    }
}

pub(super) fn state_style(state: Option<PreviewState>) -> Style {
    match state {
        Some(PreviewState::Active) => GOOD,
        Some(PreviewState::Suspended) => WAITING,
        None => DIM,
    }
}

/// Renders the page of a watch: state, counts and samples, and the conditions only with a problem.
#[must_use]
pub fn live_experiment(detail: &ExperimentDetail, view: &View) -> String {
    let experiment = &detail.experiment;
    let mut page = state_and_counts(experiment, view);
    if experiment.problem.is_some() {
        heading(&mut page, "Conditions");
        page.push_str(&conditions(experiment, view));
    }
    page
}

#[must_use]
pub fn experiment(detail: &ExperimentDetail, view: &View) -> String {
    let experiment = &detail.experiment;
    let mut page = state_and_counts(experiment, view);
    if !experiment.conditions.is_empty() {
        heading(&mut page, "Conditions");
        page.push_str(&conditions(experiment, view));
    }
    next_steps(&mut page, &detail.next_steps, view);
    page
}

/// Renders the state, the counts, the samples and the canaries.
fn state_and_counts(experiment: &ExperimentReport, view: &View) -> String {
    let mut page = head(experiment, view);
    if let Some(counts) = &experiment.divergence {
        page.push_str(&divergence(experiment, counts, view));
    }
    if !experiment.samples.is_empty() {
        heading(&mut page, "Samples of differences");
        page.push_str(&samples(&experiment.samples, view));
    }
    if !experiment.canaries.is_empty() {
        heading(&mut page, "Canaries");
        page.push_str(&canaries(&experiment.canaries, view));
    }
    page
}

/// Renders the components that get the candidate, with their answers.
fn canaries(canaries: &[Canary], view: &View) -> String {
    let mut table = Table::new(&["SUBSCRIPTION", "RESULT", "HAS", "MESSAGE"]);
    for canary in canaries {
        let style = match canary.result {
            CanaryResult::Delivered => GOOD,
            CanaryResult::Rejected => BAD,
            CanaryResult::Waiting => WAITING,
        };
        table.row(vec![
            format!("{}/{}", canary.namespace, canary.name).into(),
            Cell::new(canary.result.as_str(), style),
            canary.version.clone().unwrap_or_else(|| "-".to_owned()).into(),
            canary.message.clone().unwrap_or_default().into(),
        ]);
    }
    table.render(view.width)
}

/// Renders the name, the state and the problem of the experiment.
fn state_lines(experiment: &ExperimentReport, view: &View) -> String {
    let mut page = format!("{}  ", paint(BOLD, experiment.experiment.as_str()));
    page.push_str(&paint(state_style(experiment.state), experiment.state_label()));
    page.push('\n');
    page.push_str(&paragraph(&experiment.summary, view.width, 0, "", PLAIN));
    if let Some(problem) = &experiment.problem {
        page.push_str(&paragraph(&format!("{}: {}", problem.reason, problem.message), view.width, 0, "", BAD));
    }
    page
}

fn head(experiment: &ExperimentReport, view: &View) -> String {
    let mut page = state_lines(experiment, view);
    page.push('\n');
    let place = experiment.namespace.as_ref().map_or_else(String::new, |it| format!(" in the namespace {it}"));
    let age = view.age(experiment.created.as_ref().map(|time| time.0));
    let live = experiment.live_etag.as_ref();
    let live = live.map_or_else(String::new, |etag| format!(", etag of the live version: {etag}"));
    let mut rows = vec![
        ("Experiment", format!("{}{place}, {age} old", experiment.reference())),
        ("Policy", format!("{}{live}", experiment.policy)),
        ("Etag", experiment.etag.clone()),
    ];
    rows.extend(preview_rows(experiment, view));
    if let Some(replicas) = &experiment.replicas {
        rows.push(("Replicas", format!("{} of {} have loaded it", replicas.ready, replicas.total)));
    }
    facts(&mut page, view, &rows);
    page
}

/// Returns the facts about the last preview: its times, the cause of its end, and its settings.
fn preview_rows(experiment: &ExperimentReport, view: &View) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(preview) = &experiment.preview_metadata {
        let time = |time: jiff::Timestamp| format!("{time} ({} ago)", view.age(Some(time)));
        let is_active = experiment.state == Some(PreviewState::Active);
        rows.push(("Started", time(preview.start_time.0)));
        rows.extend(preview.stop_time.as_ref().filter(|_| !is_active).map(|it| ("Stopped", time(it.0))));
        let expiry = |it: jiff::Timestamp| ("Expires", format!("{it} (in {})", view.left(it)));
        rows.extend(preview.expire_time.as_ref().filter(|_| is_active).map(|it| expiry(it.0)));
        rows.extend(experiment.stop_cause().map(|cause| ("Cause", format!("{}: {}", cause.reason, cause.message))));
        if view.is_wide {
            rows.push(("Log prefix", preview.log_prefix.clone()));
        }
    }
    let sampled = experiment.sample_rate.filter(|rate| view.is_wide || *rate < 1.0);
    rows.extend(sampled.map(|rate| ("Sampling", format!("{} of the requests", share(rate)))));
    let logged = experiment.logging.filter(|it| view.is_wide || *it != PreviewLogging::All).map(|it| match it {
        PreviewLogging::All => "every previewed request",
        PreviewLogging::Divergences => "only requests on which the verdicts differ",
    });
    rows.extend(logged.map(|logged| ("Logging", logged.to_owned())));
    rows.extend(experiment.ttl.clone().filter(|_| view.is_wide).map(|ttl| ("Time to live", ttl)));
    let commit = experiment.committing_since.as_ref();
    rows.extend(commit.map(|since| ("Commit", format!("in progress for {}", view.age(Some(since.0))))));
    rows
}

/// Renders the counts, each with its share of the evaluated requests.
fn divergence(experiment: &ExperimentReport, counts: &DivergenceCounts, view: &View) -> String {
    let mut page = String::new();
    let since = view.age(Some(counts.since.0));
    heading(&mut page, &format!("Verdicts compared with {}, since {since} ago", experiment.policy));
    let mut table = Table::new(&["VERDICT", "REQUESTS", "SHARE", "MEANING"]);
    for verdict in verdict_counts(counts) {
        let share = percent(verdict.count, counts.evaluated).unwrap_or_else(|| "-".to_owned());
        let style = verdict_style(verdict.name, verdict.count);
        table.row(vec![
            Cell::new(verdict.name, style),
            Cell::new(verdict.count.to_string(), style),
            Cell::new(share, style),
            verdict.meaning.into(),
        ]);
    }
    page.push_str(&table.render(view.width));
    let (evaluated, all) = (counts.evaluated, counts.evaluated.saturating_add(counts.dropped));
    let line = match coverage(counts) {
        None => "No request was evaluated yet.".to_owned(),
        Some(coverage) => format!("Evaluated: {evaluated} of {all} requests (coverage {coverage})."),
    };
    page.push_str(&paragraph(&line, view.width, 0, "", PLAIN));
    if let Some(etag) = &counts.etag {
        let live_etag = counts.live_etag.as_deref().unwrap_or("no live version");
        let line = format!("Compared: {etag} of the experiment with {live_etag} of {}.", experiment.policy);
        page.push_str(&paragraph(&line, view.width, 0, "", PLAIN));
    }
    for warning in &experiment.warnings {
        page.push_str(&paragraph(&format!("Warning: {}.", warning.message), view.width, 0, "  ", WAITING));
    }
    page
}

fn samples(samples: &[DivergenceSample], view: &View) -> String {
    let mut table = Table::new(&["DIVERGENCE", "KIND", "NAMESPACE", "USER", "COUNT", "SEEN", "OBJECT: MESSAGE"]);
    for sample in samples {
        let divergence = sample.divergence.as_str();
        table.row(vec![
            Cell::new(divergence, verdict_style(divergence, sample.count)),
            sample.kind.as_str().into(),
            sample.namespace.as_str().into(),
            sample.user.as_str().into(),
            sample.count.to_string().into(),
            view.age(Some(sample.last_seen.0)).into(),
            match (sample.name.as_str(), sample.message.as_str()) {
                (name, "") => name.to_owned(),
                ("", message) => message.to_owned(),
                (name, message) => format!("{name}: {message}"),
            }
            .into(),
        ]);
    }
    table.render(view.width)
}

fn conditions(experiment: &ExperimentReport, view: &View) -> String {
    let shown = experiment.problem.as_ref().map(|problem| problem.message.as_str());
    let mut table = Table::new(&["CONDITION", "STATUS", "FOR", "REASON", "MESSAGE"]);
    for condition in &experiment.conditions {
        let style = match condition.status.as_str() {
            "True" => GOOD,
            "False" if experiment.problem.as_ref().is_some_and(|problem| condition.reason == problem.reason) => BAD,
            _ => WAITING,
        };
        let is_old = condition.observed_generation != experiment.generation;
        let mark = if is_old { " (of an earlier version)" } else { "" };
        // The top of the page has the message of the problem.
        let message = if shown == Some(&condition.message) { "" } else { &condition.message };
        table.row(vec![
            condition.type_.as_str().into(),
            Cell::new(condition.status.as_str(), if is_old { DIM } else { style }),
            view.age(Some(condition.last_transition_time.0)).into(),
            condition.reason.as_str().into(),
            format!("{message}{mark}").trim_start().into(),
        ]);
    }
    table.render(view.width)
}

/// Renders the state and the divergence of an experiment, which a commit shows before it asks for confirmation.
#[must_use]
pub fn before_commit(experiment: &ExperimentReport, view: &View) -> String {
    let mut page = state_lines(experiment, view);
    match &experiment.divergence {
        Some(counts) => page.push_str(&divergence(experiment, counts, view)),
        None if !experiment.canaries.is_empty() => {
            heading(&mut page, "Canaries");
            page.push_str(&canaries(&experiment.canaries, view));
        }
        None if experiment.preview_metadata.is_some() => {
            page.push_str(&paint(WAITING, "There are no counts of its differences.\n"));
        }
        None => page.push_str(&paint(WAITING, "Its differences are unknown: it was not previewed.\n")),
    }
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::objects::ExperimentObject;
    use crate::objects::tests::{experiment as object, previewing};
    use serde_json::{Value, json};

    fn page(object: &ExperimentObject, width: usize) -> String {
        plain(&experiment(&ExperimentDetail::new(object, "proviso"), &view(width)))
    }

    #[test]
    fn the_page_about_a_preview_fits_80_columns() {
        let wanted = "\
ns.team.stricter  ACTIVE
its verdict differs for 13 of 1200 requests

Experiment  policyexperiment/stricter in the namespace team, 3h old
Policy      ns.team.labels, etag of the live version: \"bfcf0795c990c98d\"
Etag        \"6e342990302ac2ec\"
Started     2026-11-21T09:48:00Z (12m ago)
Expires     2026-12-05T09:48:00Z (in 13d)
Replicas    2 of 2 have loaded it

Verdicts compared with ns.team.labels, since 12m ago
VERDICT          REQUESTS  SHARE  MEANING
Same             1187      98.9%  no difference
NewlyDenied      10        0.8%   allowed now, would be denied
NewlyAllowed     0         0.0%   denied now, would be allowed
MutationDiffers  0         0.0%   both allow; the objects differ
MessageDiffers   2         0.1%   both deny; the messages differ
DetailsDiffer    0         0.0%   same decision; the details differ
ExperimentError  1         <0.1%  the experiment failed to decide
Evaluated: 1200 of 1206 requests (coverage 99.5%).
Compared: \"6e342990302ac2ec\" of the experiment with \"bfcf0795c990c98d\" of
ns.team.labels.
Warning: 6 requests were not evaluated, because too many were waiting.

Samples of differences
DIVERGENCE       KIND       NAMESPACE  USER   COUNT  SEEN
NewlyDenied      Pod        team       alice  10     60s
    web-1: lacks the label team, which every Pod of a team must have
ExperimentError  Job.batch  team       alice  1      60s
    web-1

Conditions
CONDITION    STATUS  FOR  REASON      MESSAGE
Accepted     True    40m  Accepted    it is one of at most 10 experiments of
                                      ns.team.labels
Initialized  True    40m  Prepared    its program was compiled and accepted its
                                      settings
Previewing   True    40m  Previewing  every replica evaluates it for the
                                      requests that the policy answers

Next steps
- Follow it: proviso experiment status ns.team.stricter --watch
- See what a commit would change: proviso experiment diff ns.team.stricter
- Commit it: proviso experiment commit ns.team.stricter
- Stop it: proviso experiment stop ns.team.stricter
";
        assert_eq!(page(&object(1, &previewing(1)), 80), wanted);
    }

    #[test]
    fn a_commit_shows_the_counts_or_that_there_are_none() {
        let page = |status: &Value| {
            plain(&before_commit(&crate::report::ExperimentReport::new(&object(1, status)), &view(140)))
        };
        assert!(page(&Value::Null).contains("Its differences are unknown"));
        let rejected = json!({
            "namespace": "team", "name": "collector", "version": "7", "result": "Rejected", "message": "exit code 3",
        });
        let mut configuring = previewing(1);
        (configuring["divergence"], configuring["canaries"]) = (Value::Null, json!([rejected]));
        assert!(
            page(&configuring).contains("\nteam/collector  Rejected  7    exit code 3\n"),
            "{}",
            page(&configuring)
        );
        assert!(page(&previewing(1)).contains("\nNewlyDenied      10        0.8% "), "{}", page(&previewing(1)));
    }

    #[test]
    fn the_page_has_the_end_of_a_preview_and_its_settings() {
        let mut status = previewing(1);
        status["previewMetadata"]["state"] = json!("SUSPENDED");
        status["previewMetadata"]["stopTime"] = json!("2026-11-21T09:58:00Z");
        status["previewMetadata"]["stopCause"] = json!({"reason": "Expired", "message": "its ttl of 10m has passed"});
        status["liveEtag"] = json!("\"0000000000000000\"");
        let mut sampled = object(1, &status);
        (sampled.sample_rate, sampled.logging) = (Some(0.1), Some(PreviewLogging::Divergences));
        sampled.status.commit = serde_json::from_value(json!({
            "id": "c", "generation": 1, "policyGeneration": 2, "since": "2026-11-21T09:59:50Z",
        }))
        .unwrap();
        let page = page(&sampled, 200);
        for wanted in [
            "ns.team.stricter  SUSPENDED\nit is not previewed any more: its ttl of 10m has passed\n",
            "\nStopped     2026-11-21T09:58:00Z (2m ago)\nCause       Expired: its ttl of 10m has passed\n",
            "\nSampling    10% of the requests\nLogging     only requests on which the verdicts differ\n",
            "\nCommit      in progress for 10s\n",
            "\nWarning: the counts are not about the version \"0000000000000000\" of ns.team.labels: they compare with ",
            "\nWarning: the experiment previews 10% of the requests: spec.sampleRate.\n",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        assert!(!page.contains("Expires"), "{page}");
    }

    #[test]
    fn conditions_of_an_earlier_version_are_marked() {
        let page = page(&object(2, &previewing(1)), 200);
        assert!(page.contains("ns.team.stricter  SUSPENDED\n") && page.contains("(of an earlier version)\n"), "{page}");
        let mut none = previewing(1);
        none["samples"] = json!([]);
        assert!(!super::tests::page(&object(1, &none), 80).contains("Samples of differences"));
    }
}
