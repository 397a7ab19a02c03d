//! Log lines go to stderr; stdout is for the preview lines.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::LogFormat;

/// Starts logging.
///
/// # Errors
/// When the filter is malformed.
pub fn start(filter: &str, format: LogFormat) -> Result<(), ParseError> {
    let filter: EnvFilter = filter.parse()?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
