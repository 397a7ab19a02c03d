//! The commands. A command reads from a cluster, a server or files, makes a report, and prints it.

mod confirm;
pub mod evaluate;
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
pub mod subscriptions;
pub mod test;
mod watch;

use std::io::{IsTerminal as _, Write as _};

use jiff::Timestamp;
use proviso_artifacts::Fetcher;
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

use crate::arguments::{Form, Registries};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::render::View;
use crate::report::CommandContext;

/// The context of a command.
pub struct Session<B = Cluster> {
    /// The cluster or the server that the command uses; `()` if it needs none.
    pub backend: B,
    /// The name by which the user calls this program.
    pub program: &'static str,
}

impl<B> Session<B> {
    fn view(&self, form: Form) -> View {
        let width = terminal_size_of(std::io::stdout()).map(|(Width(width), _)| width.into());
        let is_wide = form == Form::Wide;
        View { width, now: Timestamp::now(), is_wide, program: self.program }
    }
}

impl Session {
    fn command_context(&self) -> CommandContext {
        CommandContext { program: self.program, proviso_namespace: self.backend.proviso_namespace().to_owned() }
    }
}

fn fetcher(registries: &Registries) -> Fetcher {
    Fetcher::new(registries.sources.clone(), registries.pull_secrets.clone(), None)
}

/// Returns a report in an output format. `for_people` returns its text for a terminal.
fn in_form<T: Serialize>(report: &T, form: Form, for_people: impl FnOnce() -> String) -> Result<String, Error> {
    Ok(match form {
        Form::Table | Form::Wide => for_people(),
        Form::Json => serde_json::to_string_pretty(report)? + "\n",
        Form::Yaml => serde_yaml::to_string(report)?,
    })
}

/// Prints a text, with colours if standard output is a terminal that supports them.
fn print(text: &str) -> Result<(), Error> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Clears the screen if standard output is a terminal.
fn clear_screen() -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        // Moves the cursor to the first line, and erases the screen.
        out.write_all(b"\x1b[H\x1b[2J")?;
    }
    Ok(())
}
