//! Asks the user to confirm an action that cannot be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::error::Error;

/// Checks that the user can be asked, or has confirmed with `--yes`. A command calls this before it reads or shows anything.
///
/// # Errors
/// When the user has not confirmed, and standard input is not a terminal.
pub(super) fn check(is_confirmed: bool) -> Result<(), Error> {
    if is_confirmed || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Error::Usage("cannot ask for confirmation: standard input is not a terminal; use --yes to confirm".to_owned()))
}

/// Asks a question. Returns true if the user answers yes.
///
/// # Errors
/// When the terminal cannot be read or written.
pub(super) fn ask(question: &str) -> Result<bool, Error> {
    let mut out = anstream::stderr().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

/// Returns true for `y` and `yes`; an empty answer means no.
fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_answer_but_yes_means_no() {
        for (answer, wanted) in [("y\n", true), ("Yes\r\n", true), ("\n", false), ("", false), ("yeah\n", false)] {
            assert_eq!(super::is_yes(answer), wanted, "{answer:?}");
        }
    }
}
