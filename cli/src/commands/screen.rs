//! Draws pages on a terminal, each in place of the previous one.

use std::io::{IsTerminal as _, Write as _};

use anstream::ColorChoice;
use terminal_size::{Height, Width, terminal_size_of};

use crate::error::Error;
use crate::render;

/// A terminal on which pages replace each other.
pub(super) struct Screen {
    is_drawn: bool,
}

impl Screen {
    /// Returns the terminal of standard output; `None` if standard output is not a terminal, or has no size.
    pub(super) fn of_stdout() -> Option<Self> {
        let out = std::io::stdout();
        (out.is_terminal() && terminal_size_of(&out).is_some()).then_some(Self { is_drawn: false })
    }

    /// Draws this page in place of the previous one.
    pub(super) fn draw(&mut self, page: &str) -> Result<(), Error> {
        let (Width(columns), Height(rows)) = terminal_size_of(std::io::stdout()).unwrap_or((Width(80), Height(24)));
        let is_plain = anstream::stdout().current_choice() == ColorChoice::Never;
        let page =
            if is_plain { anstream::adapter::strip_str(page).to_string().into() } else { std::borrow::Cow::from(page) };
        let mut out = std::io::stdout().lock();
        if !self.is_drawn {
            // Scrolls the text on the screen up, so that the user can still read it afterwards.
            out.write_all("\n".repeat(rows.into()).as_bytes())?;
            self.is_drawn = true;
        }
        out.write_all(render::frame(&page, columns.into(), rows.into()).as_bytes())?;
        Ok(out.flush()?)
    }

    /// Leaves the last page on the screen. The shell continues below it.
    pub(super) fn leave(&self) -> Result<(), Error> {
        let mut out = std::io::stdout().lock();
        if self.is_drawn {
            out.write_all(b"\r\x1b[K")?;
        }
        Ok(out.flush()?)
    }
}
