//! Parses durations such as `90s` or `5m`.

use std::time::Duration;

/// Parses a duration such as `90s` or `5m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|_| "is not a duration such as 90s or 5m".to_owned())?;
    Duration::try_from(signed).map_err(|_| "is negative".to_owned())
}
