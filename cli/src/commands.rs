//! The commands: each reads from the cluster, or from files, makes a report, and prints it.

mod ask;
pub mod experiment;
mod follow;
pub mod import;
pub mod man;
pub mod modules;
pub mod new;
pub mod revisions;
pub mod rollback;
pub mod run;
mod screen;
pub mod status;
pub mod test;

use std::io::{IsTerminal as _, Write as _};

use jiff::Timestamp;
use proviso_artifacts::Fetcher;
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

use crate::arguments::{Form, Registries};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::render::View;
use crate::report::Place;

/// What every command has.
pub struct Session<H = Cluster> {
    /// Where it works.
    pub at: H,
    /// The name by which a person calls this program.
    pub program: &'static str,
}

impl<H> Session<H> {
    fn view(&self, form: Form) -> View {
        let width = terminal_size_of(std::io::stdout()).map(|(Width(width), _)| width.into());
        let is_wide = form == Form::Wide;
        View { width, now: Timestamp::now(), is_wide, program: self.program }
    }
}

impl Session {
    fn place(&self) -> Place {
        Place { program: self.program, proviso_namespace: self.at.proviso_namespace().to_owned() }
    }
}

fn fetcher(registries: &Registries) -> Fetcher {
    Fetcher::new(registries.sources.clone(), registries.pull_secrets.clone(), None)
}

/// A report in a form: for people, or as it is.
fn in_form<T: Serialize>(report: &T, form: Form, for_people: impl FnOnce() -> String) -> Result<String, Error> {
    Ok(match form {
        Form::Table | Form::Wide => for_people(),
        Form::Json => serde_json::to_string_pretty(report)? + "\n",
        Form::Yaml => serde_yaml::to_string(report)?,
    })
}

/// Prints; with colours where there is a terminal that wants them.
fn print(text: &str) -> Result<(), Error> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Makes room on the terminal; nothing if there is none.
fn clear() -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        // The whole screen, from its first line.
        out.write_all(b"\x1b[H\x1b[2J")?;
    }
    Ok(())
}
