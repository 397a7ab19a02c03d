//! What the operator is told at its start.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Rolls policies out in a cluster: makes a revision of every generation, waits until every replica of the policy server
/// serves it, and then points the webhook at it.
///
/// Talks to the cluster of its pod, or else of KUBECONFIG.
#[derive(Clone, Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Config {
    /// Where revisions, policy servers and the operator itself live
    #[arg(long, env = "PROVISO_NAMESPACE", default_value = "proviso-system", value_name = "NAMESPACE")]
    pub namespace: String,

    /// Who this operator is among its replicas: the name of its pod
    #[arg(long, env = "PROVISO_IDENTITY", default_value_t = default_identity(), value_name = "NAME")]
    pub identity: String,

    /// PEM file of who vouches for the policy servers' certificates
    #[arg(long, env = "PROVISO_CA_BUNDLE", value_name = "FILE")]
    pub ca_bundle: PathBuf,

    /// How long a generation goes on answering after another one took its place, 5s to 1h: API servers learn of the
    /// switch at different times
    #[arg(long, env = "PROVISO_RETIRE_AFTER", default_value = "5m", value_name = "DURATION", value_parser = retire_after)]
    pub retire_after: Duration,

    /// How log lines look
    #[arg(long, env = "PROVISO_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

fn retire_after(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|_| "is no duration such as 30s or 5m".to_owned())?;
    let (min, max) = (Duration::from_secs(5), Duration::from_hours(1));
    let duration = Duration::try_from(signed).ok().filter(|duration| (min..=max).contains(duration));
    duration.ok_or_else(|| format!("is not between {min:?} and {max:?}"))
}

/// What a pod calls its host name is its own name.
fn default_identity() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One object a line
    Json,
}
