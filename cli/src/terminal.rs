//! Prints errors, warnings and messages to standard error.

use std::io::Write as _;

use terminal_size::{Width, terminal_size_of};

use crate::error::Error;
use crate::render;

/// Prints a warning.
pub fn print_warning(text: &str) {
    let columns = terminal_size_of(std::io::stderr()).map(|(Width(width), _)| width.into());
    // A failure to write to standard error cannot be reported.
    let _ = anstream::stderr().write_all(render::warning(text, columns).as_bytes());
}

/// Prints a text to standard error, with colours if it is a terminal that supports them.
pub fn print_message(text: &str) {
    // A failure to write to standard error cannot be reported.
    let _ = anstream::stderr().write_all(text.as_bytes());
}

/// Prints an error and its remedy. Prints nothing if the reader has closed the output.
pub fn print_error(error: &Error, program: &str) {
    if matches!(error, Error::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe) {
        return;
    }
    let columns = terminal_size_of(std::io::stderr()).map(|(Width(width), _)| width.into());
    let text = render::error(&error.to_string(), error.remedy(program).as_deref(), columns);
    // A failure to write to standard error cannot be reported.
    let _ = anstream::stderr().write_all(text.as_bytes());
}
