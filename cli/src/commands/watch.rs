//! `--watch`: reads a report again and again, and shows its changes.

use std::io::IsTerminal as _;
use std::time::Duration;

use serde::Serialize;

use super::{clear_screen, print};
use crate::arguments::Form;
use crate::error::Error;
use crate::terminal;

/// The interval between two reads. A watch would need the verb `watch`; reading needs only `get` and `list`.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Shows this report, and each later one that differs from it. Ends only by an error of the output.
pub(super) async fn watch<R: PartialEq>(
    program: &str,
    mut report: R,
    read: impl AsyncFn() -> Result<R, Error>,
    show: impl Fn(&R) -> Result<(), Error>,
) -> Result<std::convert::Infallible, Error> {
    show(&report)?;
    let mut last_error = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        match read().await {
            Ok(new) => {
                let is_changed = last_error.take().is_some() || new != report;
                // A terminal shows new ages; any other output gets only changes.
                if is_changed || std::io::stdout().is_terminal() {
                    show(&new)?;
                }
                report = new;
            }
            Err(error) => {
                let message = error.to_string();
                if last_error.as_ref() != Some(&message) {
                    terminal::print_error(&error, program);
                }
                last_error = Some(message);
            }
        }
    }
}

/// Shows a report of a watch on an empty screen. `text` returns it in the output format.
pub(super) fn show<R: Serialize>(
    report: &R,
    form: Form,
    text: impl FnOnce() -> Result<String, Error>,
) -> Result<(), Error> {
    clear_screen()?;
    match form {
        // One document a line, so that a reader can separate the documents.
        Form::Json => print(&(serde_json::to_string(report)? + "\n")),
        Form::Yaml => print(&format!("---\n{}", text()?)),
        Form::Table | Form::Wide => print(&(text()? + "\n")),
    }
}
