//! Command-line arguments and environment variables of the operator.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, ValueEnum};
use jiff::SignedDuration;

use crate::usage::NamespaceLimits;

/// Runs policy servers in a cluster and rolls out policies on them: creates a revision of every generation, waits
/// until every replica of the policy server serves the revision, and then points the webhook at it.
///
/// Connects to the cluster of its pod, or else to that of KUBECONFIG.
#[derive(Clone, Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Config {
    /// Namespace of revisions, policy servers and the operator itself
    #[arg(long, env = "PROVISO_NAMESPACE", default_value = "proviso-system", value_name = "NAMESPACE")]
    pub namespace: String,

    /// Name of this operator among its replicas: the name of its pod
    #[arg(long, env = "PROVISO_IDENTITY", default_value_t = default_identity(), value_name = "NAME")]
    pub identity: String,

    /// Container image of policy servers that name no image
    #[arg(long, env = "PROVISO_POLICY_SERVER_IMAGE", value_name = "IMAGE")]
    pub policy_server_image: String,

    /// Address of the API and of the admission webhook, always with TLS
    #[arg(long, env = "PROVISO_LISTEN", default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Address of /readyz and /livez, plain HTTP. Without --metrics-listen, also of /metrics
    #[arg(long, env = "PROVISO_ADMIN_LISTEN", default_value = "0.0.0.0:8081", value_name = "ADDRESS")]
    pub admin_listen: SocketAddr,

    /// Address of /metrics with TLS. A caller sends a bearer token, and needs the permission to get the non-resource URL /metrics.
    /// Policy servers then serve their metrics in the same way, on port 8082. Without it, /metrics is served at --admin-listen to
    /// every caller
    #[arg(long, env = "PROVISO_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,

    /// Name of the Service in front of --listen. The API server calls it to validate policies, and for
    /// actions.proviso.dev. Without it, a policy that cannot work is admitted and fails in its rollout
    #[arg(long, env = "PROVISO_SERVICE", value_name = "NAME")]
    pub service: Option<String>,

    /// Register actions.proviso.dev with the API server at --service. `kubectl proviso` starts, stops and commits
    /// experiments through it
    #[arg(long, env = "PROVISO_AGGREGATED_API", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub aggregated_api: bool,

    /// Write policies and experiments for the callers of the REST API and of actions.proviso.dev as these callers. The audit
    /// log of the API server then names them. The operator needs the permission to impersonate every user
    #[arg(long, env = "PROVISO_IMPERSONATE_CALLERS", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub impersonate_callers: bool,

    /// Deliver configuration policies to components, as subscriptions select them. If false, subscriptions have no effect, and the operator
    /// needs no access to ConfigMaps, Secrets, workloads and pods outside of its namespace
    #[arg(long, env = "PROVISO_CONFIGURATION", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub configuration: bool,

    /// Interval at which the operator compares the policies of each component with those that it should have, 1s to 24h. Changes are
    /// delivered at once: this is for changes that the operator has not seen
    #[arg(long, env = "PROVISO_CATCH_UP_INTERVAL", default_value = "20m", value_name = "DURATION", value_parser = catch_up_interval)]
    pub catch_up_interval: Duration,

    #[command(flatten)]
    pub lifetimes: Lifetimes,

    #[command(flatten)]
    pub namespace_limits: NamespaceLimits,

    /// Time for which a generation still answers after another one has replaced it, 5s to 1h: API servers learn of
    /// the switch at different times
    #[arg(long, env = "PROVISO_RETIRE_AFTER", default_value = "5m", value_name = "DURATION", value_parser = retire_after)]
    pub retire_after: Duration,

    /// Time to keep answering after SIGTERM, up to 5m: API servers learn of the shutdown a little later
    #[arg(long, env = "PROVISO_SHUTDOWN_DELAY", default_value = "5s", value_name = "DURATION", value_parser = shutdown_delay)]
    pub shutdown_delay: Duration,

    /// Log filter: error, warn, info, debug, trace, or per module as in `info,operator=debug`
    #[arg(long, env = "PROVISO_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,

    /// Format of log lines
    #[arg(long, env = "PROVISO_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

fn retire_after(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(5), Duration::from_hours(1))
}

fn catch_up_interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(1), Duration::from_hours(24))
}

fn shutdown_delay(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, Duration::from_mins(5))
}

/// Returns the host name, which in a pod is the name of the pod.
fn default_identity() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Lifetimes of the CA, certificates and keys of the operator. Each is rotated in the last third of its life. A
/// lifetime is a duration such as 8760h, at least 1s.
#[derive(Args, Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Lifetime of the operator's CA
    #[arg(long = "authority-lifetime", env = "PROVISO_AUTHORITY_LIFETIME", default_value = "87600h", value_parser = lifetime, hide = true)]
    pub authority: Duration,

    /// Lifetime of the certificate of a policy server
    #[arg(long = "certificate-lifetime", env = "PROVISO_CERTIFICATE_LIFETIME", default_value = "8760h", value_parser = lifetime, hide = true)]
    pub certificate: Duration,

    /// Lifetime of a key that signs compiled modules
    #[arg(long = "signing-key-lifetime", env = "PROVISO_SIGNING_KEY_LIFETIME", default_value = "8760h", value_parser = lifetime, hide = true)]
    pub signing_key: Duration,

    /// Lifetime of the token in the paths of webhooks, by which a policy server recognises API servers
    #[arg(long = "caller-token-lifetime", env = "PROVISO_CALLER_TOKEN_LIFETIME", default_value = "720h", value_parser = lifetime, hide = true)]
    pub caller_token: Duration,

    /// Time from the publication of a new CA, key or token until it is used
    #[arg(long, env = "PROVISO_ANNOUNCEMENT", default_value = "1h", value_parser = lifetime, hide = true)]
    pub announcement: Duration,

    /// Time for which a CA stays trusted after the last certificate that it signed was replaced
    #[arg(long, env = "PROVISO_AUTHORITY_RETIREMENT", default_value = "1h", value_parser = lifetime, hide = true)]
    pub authority_retirement: Duration,

    /// Time for which a key still verifies after another key has begun to sign
    #[arg(long, env = "PROVISO_SIGNING_KEY_RETIREMENT", default_value = "24h", value_parser = lifetime, hide = true)]
    pub signing_key_retirement: Duration,

    /// Time for which a policy server accepts a token after the last webhook has changed to another one
    #[arg(long, env = "PROVISO_CALLER_TOKEN_RETIREMENT", default_value = "1h", value_parser = lifetime, hide = true)]
    pub caller_token_retirement: Duration,
}

/// The longest lifetime: a century, so that times do not overflow.
const MAX_LIFETIME: Duration = Duration::from_hours(24 * 365 * 100);

fn lifetime(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(1), MAX_LIFETIME)
}

fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let signed: SignedDuration = text.parse().map_err(|_| "is not a duration such as 30s, 5m or 8760h".to_owned())?;
    let duration = Duration::try_from(signed).ok().filter(|duration| (min..=max).contains(duration));
    let bound = |duration| SignedDuration::try_from(duration).unwrap_or_default();
    duration.ok_or_else(|| format!("is not between {:#} and {:#}", bound(min), bound(max)))
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_well_formed_and_lifetimes_are_bounded() {
        Config::command().debug_assert();
        let config = |arguments: &[&str]| {
            let image = ["operator", "--policy-server-image", "a"];
            Config::try_parse_from(image.iter().chain(arguments)).map_err(|error| error.to_string())
        };
        let lifetimes = config(&[]).unwrap().lifetimes;
        assert_eq!(lifetimes.certificate, Duration::from_hours(365 * 24));
        assert_eq!(config(&["--announcement", "90s"]).unwrap().lifetimes.announcement, Duration::from_secs(90));
        for wrong in ["0s", "-1h", "900000h", "soon"] {
            assert!(config(&[&format!("--announcement={wrong}")]).unwrap_err().contains("is no"), "{wrong}");
        }
    }
}
