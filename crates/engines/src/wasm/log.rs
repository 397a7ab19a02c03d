//! What guests say about themselves: debug events of bounded size and number.

use serde::Deserialize;

use super::state::State;

/// Bytes of a line that are kept.
pub(super) const LINE: usize = 1024;

/// What Kubewarden's SDKs send to the host capability `tracing/log`.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    level: &'a str,
    #[serde(default)]
    message: String,
}

/// Whether a line would be seen by anyone. Ask before copying it.
pub(super) fn is_wanted(state: &State) -> bool {
    state.lines_left > 0 && tracing::enabled!(tracing::Level::DEBUG)
}

pub(super) fn line(state: &mut State, source: &'static str, text: &str) {
    state.lines_left = state.lines_left.saturating_sub(1);
    tracing::debug!(source, text = text.trim_end(), "the policy logged");
}

/// A message of the host capability `tracing/log`.
pub(super) fn event(state: &mut State, json: &str) {
    match serde_json::from_str::<Event<'_>>(json) {
        Ok(event) => {
            state.lines_left = state.lines_left.saturating_sub(1);
            tracing::debug!(source = "tracing", level = event.level, text = event.message, "the policy logged");
        }
        Err(_) => line(state, "tracing", json),
    }
}
