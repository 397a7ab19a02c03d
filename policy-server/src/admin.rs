//! The routes for operators and monitoring: `/readyz`, `/livez` and `/metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use proviso_http::shutdown::Phase;

use crate::routes::Server;
use crate::table::{IdleReason, ListedRevision, Origin, RolloutState, Table};

/// The routes of `--admin-listen`. If `is_open` is false, `/metrics` and the details of `/readyz` are served at `--metrics-listen` only.
pub fn router(server: Arc<Server>, is_open: bool) -> Router {
    let other = if is_open {
        details_router(server)
    } else {
        let elsewhere = async || (StatusCode::NOT_FOUND, "the metrics are served at --metrics-listen\n");
        Router::new().route("/readyz", get(readyz)).route("/metrics", get(elsewhere)).with_state(server)
    };
    other.route("/livez", get(async || "ok\n"))
}

/// The routes with the names of policies and the causes of problems.
pub fn details_router(server: Arc<Server>) -> Router {
    Router::new().route("/readyz", get(readyz_with_details)).route("/metrics", get(metrics)).with_state(server)
}

/// Returns the reason why the server is not ready; `None` if it is ready.
fn problem<'a>(server: &Server, table: &'a Table) -> Option<&'a str> {
    let phase = *server.phase.borrow();
    match phase {
        Phase::Serving if table.is_complete => table.unready_reason.as_deref(),
        Phase::Serving => Some("the policies are still being loaded"),
        Phase::ShuttingDown | Phase::Draining => Some("the server is shutting down"),
    }
}

fn status(problem: Option<&str>) -> StatusCode {
    if problem.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Answers the kubelet. The answer names no policy.
async fn readyz(State(server): State<Arc<Server>>) -> Response {
    let table = server.table.load_full();
    let problem = problem(&server, &table);
    let result =
        if problem.is_none() { "ok\n" } else { "readyz check failed: see /readyz?verbose at --metrics-listen\n" };
    (status(problem), result).into_response()
}

async fn readyz_with_details(State(server): State<Arc<Server>>, RawQuery(query): RawQuery) -> Response {
    let table = server.table.load_full();
    let problem = problem(&server, &table);
    let is_verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    let details = if is_verbose { details(&table) } else { String::new() };
    let result = match (problem, is_verbose) {
        (Some(problem), _) => format!("readyz check failed: {problem}"),
        (None, true) => "readyz check passed".to_owned(),
        (None, false) => "ok".to_owned(),
    };
    (status(problem), format!("{details}{result}\n")).into_response()
}

/// Returns one line for each policy (in a cluster, for each revision), experiment and problem. The line starts with `[+]` if the
/// object works, with `[-]` if it does not, and with `[ ]` if it is disabled, not started, or still being loaded.
fn details(table: &Table) -> String {
    let mut text = String::new();
    let mut write = |mark: char, words: std::fmt::Arguments<'_>| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "[{mark}] {words}");
    };
    if let Origin::Cluster(revisions) = &table.origin {
        for ListedRevision { name, state } in revisions {
            match state {
                RolloutState::Loaded => write('+', format_args!("{name} loaded")),
                RolloutState::Suspended => write(' ', format_args!("{name} loaded, and not previewed: it is disabled")),
                RolloutState::Loading => write(' ', format_args!("{name} is being loaded")),
                RolloutState::Waiting => write(' ', format_args!("{name} waits for the leader to prepare it")),
                RolloutState::Disabled => write(' ', format_args!("{name} disabled")),
                RolloutState::Failed(why) => write('-', format_args!("{name} is not served: {why}")),
            }
        }
    }
    // In a cluster, the lines above list all revisions.
    let policies = table.policies.iter().filter(|_| matches!(table.origin, Origin::Folder));
    let mut policies: Vec<_> = policies.collect();
    policies.sort_by_key(|(id, _)| *id);
    for (id, entry) in policies {
        match (&entry.live, &entry.failure) {
            (Some(live), None) if live.enabled => write('+', format_args!("{id} generation {} live", live.generation)),
            (Some(live), None) => write(' ', format_args!("{id} generation {} disabled", live.generation)),
            (Some(live), Some(failure)) => write(
                '-',
                format_args!("{id} generation {} live; the newest version does not work: {failure}", live.generation),
            ),
            (None, _) if !entry.preparing.is_empty() => write(' ', format_args!("{id} is being loaded")),
            (None, failure) => {
                let effect = if entry.is_configuration { "is not delivered" } else { "denies everything" };
                let why = failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
                write('-', format_args!("{id} {effect}: no generation works{why}"));
            }
        }
        for experiment in entry.experiments.iter() {
            let (name, generation) = (&experiment.id, experiment.revision.generation);
            let end = table.ending_experiments.get(name);
            let end = end.map(|end| format!(", and stops by itself at {end:.0}")).unwrap_or_default();
            match &experiment.failure {
                None => write('+', format_args!("experiment {name} generation {generation} previews {id}{end}")),
                Some(failure) => write(
                    '-',
                    format_args!(
                        "experiment {name} generation {generation} previews {id}{end}; the newest version does not work: {failure}"
                    ),
                ),
            }
        }
    }
    for (id, why) in &table.idle_experiments {
        let mark = if matches!(why, IdleReason::NotStarted) { ' ' } else { '-' };
        write(mark, format_args!("experiment {id} previews nothing: {why}"));
    }
    for problem in &table.problems {
        write('-', format_args!("{problem}"));
    }
    text
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    ([(header::CONTENT_TYPE, proviso_http::metrics::CONTENT_TYPE)], server.metrics.to_text(&server.limits))
        .into_response()
}
