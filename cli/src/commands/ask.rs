//! Asking a person before something that cannot be taken back.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::error::Error;

/// Whether somebody can be asked, or need not be: found out before anything is read or shown.
///
/// # Errors
/// When nobody can be asked.
pub(super) fn check(is_confirmed: bool) -> Result<(), Error> {
    if is_confirmed || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Error::Usage("there is no terminal to ask on: say --yes if you are sure".to_owned()))
}

/// Whether the person says yes.
///
/// # Errors
/// When the terminal cannot be written to or read from.
pub(super) fn ask(question: &str) -> Result<bool, Error> {
    let mut out = anstream::stderr().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

/// Everything else is a no, also nothing.
fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_yes_is_yes() {
        for (answer, wanted) in [("y\n", true), ("Yes\r\n", true), ("\n", false), ("", false), ("yeah\n", false)] {
            assert_eq!(super::is_yes(answer), wanted, "{answer:?}");
        }
    }
}
