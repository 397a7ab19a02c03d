//! Log lines go to stderr; stdout is for the preview lines.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::LogFormat;

/// The client of the API server calls each request that fails an error, without saying which: every two seconds, while
/// that server is down. Whoever asked says what failed, and once. A filter that names the client has the last word.
const CLIENT: &str = "kube_client";
const QUIET: &str = "kube_client::client::builder=off";

/// Starts logging.
///
/// # Errors
/// When the filter is malformed.
pub fn start(filter: &str, format: LogFormat) -> Result<(), ParseError> {
    let wanted: EnvFilter = filter.parse()?;
    let filter = if filter.contains(CLIENT) { wanted } else { wanted.add_directive(QUIET.parse()?) };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
