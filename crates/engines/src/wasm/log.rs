//! The log lines of guests: debug events of bounded size and number.

use serde::Deserialize;

use super::state::State;

/// The maximum length of a log line, in bytes.
pub(super) const LINE_LIMIT: usize = 1024;

/// A message to the host capability `tracing/log`, as Kubewarden's SDKs send it.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    level: &'a str,
    #[serde(default)]
    message: String,
}

/// Returns true if a log line would be recorded. Callers check this before they copy a line.
pub(super) fn is_enabled(state: &State) -> bool {
    state.log_lines_left > 0 && tracing::enabled!(tracing::Level::DEBUG)
}

pub(super) fn write_line(state: &mut State, source: &'static str, text: &str) {
    state.log_lines_left = state.log_lines_left.saturating_sub(1);
    tracing::debug!(source, text = text.trim_end(), "the policy logged");
}

/// Logs a message to the host capability `tracing/log`.
pub(super) fn write_event(state: &mut State, json: &str) {
    match serde_json::from_str::<Event<'_>>(json) {
        Ok(event) => {
            state.log_lines_left = state.log_lines_left.saturating_sub(1);
            tracing::debug!(source = "tracing", level = event.level, text = event.message, "the policy logged");
        }
        Err(_) => write_line(state, "tracing", json),
    }
}
