//! `proviso experiment status --watch`: a table that is redrawn on a terminal, and elsewhere a line for each change.

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
use crate::arguments::Form;
use crate::cluster::Scope;
use crate::error::Error;
use crate::found::Found;
use crate::objects::ExperimentObject;
use crate::render;
use crate::report::ExperimentReport;
use crate::terminal;

/// The interval at which a terminal shows new ages. It causes no request.
const TICK: Duration = Duration::from_secs(1);
/// An error that is not repeated for this time is over: a watch is tried again sooner, and one that works reports nothing
/// before something changes.
const OVER: Duration = Duration::from_mins(1);

/// Shows the experiments and their changes until Ctrl-C, or until the only experiment is gone.
pub async fn run(
    session: &Session,
    subject: &Subject,
    found: &Found<ExperimentObject>,
    form: Form,
) -> Result<ExitCode, Error> {
    let mut output = Output::new(session, subject, form);
    let mut changes = session.at.follow(&subject.scope, subject.of.as_ref(), &found.unseen);
    let (mut resized, mut interrupted) = (signal(SignalKind::window_change())?, signal(SignalKind::interrupt())?);
    let mut terminated = signal(SignalKind::terminate())?;
    let mut tick = tokio::time::interval(TICK);
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
                // An API server that has only just started, and so was away, knows no rights yet.
                Some(Err(error @ Error::Forbidden { .. })) if output.trouble.is_none() => {
                    output.end()?;
                    return Err(error);
                }
                Some(Err(error)) => output.trouble(&error)?,
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
    form: Form,
    screen: Option<Screen>,
    /// The report that was shown last.
    last: Option<Report>,
    /// The last line of each experiment, if the output is no terminal.
    lines: BTreeMap<String, ExperimentReport>,
    /// The error of the watch, and since when.
    trouble: Option<(String, Instant)>,
}

impl<'a> Output<'a> {
    fn new(session: &'a Session, subject: &'a Subject, form: Form) -> Self {
        // Documents are for programs, also on a terminal.
        let screen = matches!(form, Form::Table | Form::Wide).then(Screen::of_stdout).flatten();
        Self { session, subject, form, screen, last: None, lines: BTreeMap::new(), trouble: None }
    }

    fn show(&mut self, found: &Found<ExperimentObject>) -> Result<(), Error> {
        let report = self.subject.report(self.session, found);
        let is_news = self.trouble.take().is_some() || self.last.as_ref() != Some(&report);
        if is_news && self.screen.is_none() {
            match self.form {
                // One document a line, so that they can be told apart.
                Form::Json => print(&(serde_json::to_string(&report)? + "\n"))?,
                Form::Yaml => print(&format!("---\n{}", serde_yaml::to_string(&report)?))?,
                Form::Table | Form::Wide => {
                    let text = news(&mut self.lines, &report, Timestamp::now());
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
            Report::Detail(detail) if self.form == Form::Table => {
                render::live_experiment(detail, &self.session.view(self.form))
            }
            _ => self.subject.text(self.session, report, self.form)?,
        };
        self.trouble.take_if(|(_, since)| since.elapsed() > OVER);
        let trouble = self.trouble.as_ref().map(|(trouble, _)| render::warning(trouble, None)).unwrap_or_default();
        // Above: the end of a long page is cut.
        screen.draw(&format!("{trouble}{page}"))
    }

    /// Reports an error of the watch. The last page stays, and the watch continues when the API server is back.
    fn trouble(&mut self, error: &Error) -> Result<(), Error> {
        let told = error.to_string();
        let is_news = self.trouble.as_ref().is_none_or(|(before, _)| *before != told);
        self.trouble = Some((told, Instant::now()));
        if is_news && self.screen.is_none() {
            terminal::complain(error, self.session.program);
        }
        self.redraw()
    }

    /// Ends because the experiment is gone. The last page stays, so that the result of the preview can be read.
    fn gone(&mut self, id: &PolicyId, found: &Found<ExperimentObject>) -> Result<ExitCode, Error> {
        if self.screen.is_none() {
            self.show(found)?;
            return self.end();
        }
        self.end()?;
        print(&format!("{id}: it is gone: it was deleted or committed\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn end(&self) -> Result<ExitCode, Error> {
        if let Some(screen) = &self.screen {
            screen.leave()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a line for each experiment that has changed.
fn news(said: &mut BTreeMap<String, ExperimentReport>, report: &Report, now: Timestamp) -> String {
    let experiments = match report {
        Report::Overview(overview) => overview.experiments.as_slice(),
        Report::Detail(detail) => std::slice::from_ref(&detail.experiment),
    };
    let mut lines = Vec::new();
    for experiment in experiments {
        let before = said.insert(experiment.experiment.to_string(), experiment.clone());
        let line = experiment.line(now);
        if before.is_none_or(|before| before.line(now) != line) {
            lines.push(line);
        }
    }
    said.retain(|id, _| {
        let is_there = experiments.iter().any(|experiment| experiment.experiment.as_str() == id);
        if !is_there {
            lines.push(format!("{now:.0} {id} GONE"));
        }
        is_there
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
    fn only_what_changed_is_a_line() {
        let (mut said, now) = (BTreeMap::new(), NOW.parse().unwrap());
        let mut told = |status: &Value| {
            let detail = ExperimentDetail::new(&experiment(1, status), "proviso");
            news(&mut said, &Report::Detail(Box::new(detail)), now)
        };
        assert_eq!(told(&Value::Null), "2026-11-21T10:00:00Z ns.team.stricter NOT_STARTED\n");
        assert!(told(&previewing(1)).contains(" ACTIVE evaluated=1200 "));
        let mut samples = previewing(1);
        samples["samples"] = json!([]);
        assert_eq!(told(&samples), "", "samples have no place in a line");
        samples["divergence"]["evaluated"] = json!(1201);
        assert_eq!(told(&samples).lines().count(), 1);
        let nothing = Report::Overview(ExperimentOverview { experiments: Vec::new(), unseen: Vec::new() });
        assert_eq!(news(&mut said, &nothing, now), "2026-11-21T10:00:00Z ns.team.stricter GONE\n");
        assert_eq!(news(&mut said, &nothing, now), "");
    }
}
