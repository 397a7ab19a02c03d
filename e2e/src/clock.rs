//! Wall clocks of programs, shifted by libfaketime.

use std::process::Command;

/// Returns the environment variables that shift the wall clock of a program by this offset, such as `+60s` or `-60s`; `None` if
/// `faketime` is not installed. The monotonic clock, which measures deadlines, is not shifted.
#[must_use]
pub fn shifted(offset: &str) -> Option<[(&'static str, String); 3]> {
    let output = Command::new("faketime").args(["-f", offset, "printenv", "LD_PRELOAD"]).output().ok()?;
    let library = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    Some([("LD_PRELOAD", library), ("FAKETIME", offset.to_owned()), ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned())])
}
