//! `proviso experiment status --watch`: redraws a table on a terminal, and writes a line for each change to any other output.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use jiff::Timestamp;
use proviso_core::PolicyId;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::super::print;
use super::super::screen::Screen;
use super::session::Session;
use super::subject::{Report, Subject};
use crate::arguments::{ExportForm, Form};
use crate::cluster::Scope;
use crate::error::Error;
use crate::found::Found;
use crate::objects::ExperimentObject;
use crate::render;
use crate::report::ExperimentReport;
use crate::terminal;

/// The interval at which a terminal is redrawn with new ages. A redraw makes no request.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which an error that was not repeated is no longer shown. A failing watch is tried again sooner, and a
/// working watch reports nothing until an object changes.
const ERROR_EXPIRY: Duration = Duration::from_mins(1);

/// Shows the experiments and their changes until Ctrl-C; a watch of one experiment also ends when the experiment is gone.
pub async fn run(
    session: &Session,
    subject: &Subject,
    found: &Found<ExperimentObject>,
    form: ExportForm,
) -> Result<ExitCode, Error> {
    let mut output = Output::new(session, subject, form);
    let mut changes = session.backend.follow(&subject.scope, subject.policy.as_ref(), &found.unseen);
    let (mut resized, mut interrupted) = (signal(SignalKind::window_change())?, signal(SignalKind::interrupt())?);
    let mut terminated = signal(SignalKind::terminate())?;
    let mut tick = tokio::time::interval(REDRAW_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    output.show(found)?;
    loop {
        tokio::select! {
            change = changes.next() => match change {
                None => return Ok(ExitCode::SUCCESS),
                Some(Ok(found)) => {
                    let is_gone = found.items.is_empty() && found.unseen.is_empty();
                    if let (Scope::One(id), true) = (&subject.scope, is_gone) {
                        return output.gone(id, &found);
                    }
                    output.show(&found)?;
                }
                // An API server that has just restarted may answer "forbidden" until it has loaded the RBAC rules. The errors of
                // its absence came before, so "forbidden" ends the watch only if it is the first error.
                Some(Err(error @ Error::Forbidden { .. })) if output.error.is_none() => {
                    output.end()?;
                    return Err(error);
                }
                Some(Err(error)) => output.show_error(&error)?,
            },
            _ = tick.tick(), if output.screen.is_some() => output.redraw()?,
            _ = resized.recv(), if output.screen.is_some() => output.redraw()?,
            _ = interrupted.recv() => return output.end(),
            _ = terminated.recv() => return output.end(),
        }
    }
}

struct Output<'a> {
    session: &'a Session,
    subject: &'a Subject,
    form: ExportForm,
    screen: Option<Screen>,
    /// The report that was shown last.
    last: Option<Report>,
    /// The report behind the last line of each experiment, if the output is not a terminal.
    reports: BTreeMap<String, ExperimentReport>,
    /// The last error of the watch, and its time.
    error: Option<(String, Instant)>,
}

impl<'a> Output<'a> {
    fn new(session: &'a Session, subject: &'a Subject, form: ExportForm) -> Self {
        // The other formats are for programs, so they are not redrawn on a terminal.
        let screen = matches!(form, ExportForm::Table | ExportForm::Wide).then(Screen::of_stdout).flatten();
        Self { session, subject, form, screen, last: None, reports: BTreeMap::new(), error: None }
    }

    fn show(&mut self, found: &Found<ExperimentObject>) -> Result<(), Error> {
        let report = self.subject.report(self.session, found);
        let is_changed = self.error.take().is_some() || self.last.as_ref() != Some(&report);
        if is_changed && self.screen.is_none() {
            match self.form {
                // One document a line, so that a reader can separate the documents.
                ExportForm::Json => print(&(serde_json::to_string(&report)? + "\n"))?,
                ExportForm::Yaml => print(&format!("---\n{}", serde_yaml::to_string(&report)?))?,
                // Each change adds rows to one table, with the time of the change.
                ExportForm::Csv => {
                    print(&render::csv(report.experiments(), Timestamp::now(), self.last.is_none())?)?;
                }
                ExportForm::Table | ExportForm::Wide => {
                    let text = changed_lines(&mut self.reports, &report, Timestamp::now());
                    print(&render::printable(&text))?;
                }
            }
        }
        self.last = Some(report);
        self.redraw()
    }

    /// Draws the last report, if the output is a terminal.
    fn redraw(&mut self) -> Result<(), Error> {
        let (Some(screen), Some(report)) = (&mut self.screen, &self.last) else { return Ok(()) };
        let page = match report {
            Report::Detail(detail) if self.form == ExportForm::Table => {
                render::live_experiment(detail, &self.session.view(Form::Table))
            }
            _ => self.subject.text(self.session, report, self.form)?,
        };
        self.error.take_if(|(_, time)| time.elapsed() > ERROR_EXPIRY);
        let warning = self.error.as_ref().map(|(message, _)| render::warning(message, None)).unwrap_or_default();
        // The warning is above the page, because the end of a long page is cut off.
        screen.draw(&format!("{warning}{page}"))
    }

    /// Shows an error of the watch. The last page stays, and the watch continues when the API server is back.
    fn show_error(&mut self, error: &Error) -> Result<(), Error> {
        let message = error.to_string();
        let is_changed = self.error.as_ref().is_none_or(|(before, _)| *before != message);
        self.error = Some((message, Instant::now()));
        if is_changed && self.screen.is_none() {
            terminal::print_error(error, self.session.program);
        }
        self.redraw()
    }

    /// Ends the watch of an experiment that is gone. The last page stays, so that the user can read the result of the preview.
    fn gone(&mut self, id: &PolicyId, found: &Found<ExperimentObject>) -> Result<ExitCode, Error> {
        if self.screen.is_none() {
            self.show(found)?;
            return self.end();
        }
        self.end()?;
        print(&format!("{id}: it no longer exists: it was deleted or committed\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn end(&self) -> Result<ExitCode, Error> {
        if let Some(screen) = &self.screen {
            screen.leave()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a line for each experiment that has changed since its report in `last`, and updates `last`.
fn changed_lines(last: &mut BTreeMap<String, ExperimentReport>, report: &Report, now: Timestamp) -> String {
    let experiments = report.experiments();
    let mut lines = Vec::new();
    for experiment in experiments {
        let before = last.insert(experiment.experiment.to_string(), experiment.clone());
        let line = experiment.line(now);
        if before.is_none_or(|before| before.line(now) != line) {
            lines.push(line);
        }
    }
    last.retain(|id, _| {
        let exists = experiments.iter().any(|experiment| experiment.experiment.as_str() == id);
        if !exists {
            lines.push(format!("{now:.0} {id} GONE"));
        }
        exists
    });
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{NOW, experiment, previewing};
    use crate::report::{ExperimentDetail, ExperimentOverview};
    use serde_json::{Value, json};

    #[test]
    fn a_line_is_written_only_for_a_changed_experiment() {
        let (mut last, now) = (BTreeMap::new(), NOW.parse().unwrap());
        let mut lines = |status: &Value| {
            let detail = ExperimentDetail::new(&experiment(1, status), "proviso");
            changed_lines(&mut last, &Report::Detail(Box::new(detail)), now)
        };
        assert_eq!(lines(&Value::Null), "2026-11-21T10:00:00Z ns.team.stricter NOT_STARTED\n");
        assert!(lines(&previewing(1)).contains(" ACTIVE evaluated=1200 "));
        let mut samples = previewing(1);
        samples["samples"] = json!([]);
        assert_eq!(lines(&samples), "", "a line has no samples");
        samples["divergence"]["evaluated"] = json!(1201);
        assert_eq!(lines(&samples).lines().count(), 1);
        let nothing = Report::Overview(ExperimentOverview { experiments: Vec::new(), unseen: Vec::new() });
        assert_eq!(changed_lines(&mut last, &nothing, now), "2026-11-21T10:00:00Z ns.team.stricter GONE\n");
        assert_eq!(changed_lines(&mut last, &nothing, now), "");
    }
}
