//! Logging to stderr. Stdout is reserved for the preview lines.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::LogFormat;

/// The log target of the Kubernetes client. While the API server is down, the client logs an error every two seconds, without the
/// name of the request. The callers of the client log each failure once, so the client is silenced unless the filter names it.
const KUBE_CLIENT: &str = "kube_client";
const KUBE_CLIENT_OFF: &str = "kube_client::client::builder=off";

/// Starts logging.
///
/// # Errors
/// Returns an error if the filter is malformed.
pub fn start(filter: &str, format: LogFormat) -> Result<(), ParseError> {
    let parsed: EnvFilter = filter.parse()?;
    let filter = if filter.contains(KUBE_CLIENT) { parsed } else { parsed.add_directive(KUBE_CLIENT_OFF.parse()?) };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
