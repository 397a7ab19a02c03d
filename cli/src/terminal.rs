//! Errors and warnings on the terminal.

use std::io::Write as _;

use terminal_size::{Width, terminal_size_of};

use crate::error::Error;
use crate::render;

/// Prints a warning.
pub fn warn(text: &str) {
    let columns = terminal_size_of(std::io::stderr()).map(|(Width(width), _)| width.into());
    // An error of standard error cannot be reported anywhere.
    let _ = anstream::stderr().write_all(render::warning(text, columns).as_bytes());
}

/// Prints an error and its remedy.
pub fn complain(error: &Error, program: &str) {
    if matches!(error, Error::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe) {
        return;
    }
    let columns = terminal_size_of(std::io::stderr()).map(|(Width(width), _)| width.into());
    let text = render::complaint(&error.to_string(), error.remedy(program).as_deref(), columns);
    // An error of standard error cannot be reported anywhere.
    let _ = anstream::stderr().write_all(text.as_bytes());
}
