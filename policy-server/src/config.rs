//! The arguments and environment variables, parsed once into a validated [`Config`]. No other module reads the environment.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Parser, ValueEnum};
use clap_complete::Shell;
use proviso_artifacts::{Proxies, ProxyError};

/// Serves admission policies: decides, previews their next versions on live traffic, and reloads without losing
/// a request.
///
/// Without a cluster, the server reads policies, experiments, namespaces and the objects that policies may read from a folder of
/// manifests (--manifests), answers AdmissionReviews over HTTP, and follows every change of the folder. If a manifest is wrong,
/// the last good generation of its policy keeps serving.
///
/// In a cluster, the server is a replica of a PolicyServer (--policy-server) and serves the revisions of its policies; the
/// replicas elect a leader that prepares the revisions for all. The server uses the service account of its pod, or KUBECONFIG.
#[derive(Debug, Parser)]
#[command(group = ArgGroup::new("source").required(true).args(["manifests", "policy_server", "completions"]))]
#[command(name = "policy-server", version, max_term_width = 100, after_help = EXAMPLES)]
#[allow(clippy::doc_markdown, reason = "the doc comments are the help text that a terminal shows")]
pub struct Arguments {
    /// Folder of manifests (*.yaml, *.yml, *.json at any depth): kinds ClusterPolicy, Policy, ClusterPolicyExperiment,
    /// PolicyExperiment and Namespace; policies can read objects of other kinds if they name the kind in
    /// contextAwareResources
    #[arg(long, value_name = "DIR", env = "PROVISO_MANIFESTS")]
    pub manifests: Option<PathBuf>,

    /// Name of the PolicyServer that this replica belongs to; serves its revisions instead of a folder
    #[arg(long, value_name = "NAME", env = "PROVISO_POLICY_SERVER", value_parser = name, requires_all = ["namespace", "pod_name", "pod_uid"])]
    pub policy_server: Option<String>,

    /// Namespace of the PolicyRevisions, which is the namespace of the operator
    #[arg(long, value_name = "NAMESPACE", env = "PROVISO_NAMESPACE", value_parser = name, requires = "policy_server")]
    pub namespace: Option<String>,

    /// Name of the pod of this replica, which the status of each revision contains
    #[arg(long, value_name = "NAME", env = "PROVISO_POD_NAME", value_parser = name, requires = "policy_server")]
    pub pod_name: Option<String>,

    /// metadata.uid of the pod of this replica, which distinguishes it from an earlier pod of the same name
    #[arg(long, value_name = "UID", env = "PROVISO_POD_UID", value_parser = uid, requires = "policy_server")]
    pub pod_uid: Option<String>,

    /// Address for reviews; an address that is not loopback requires TLS
    #[arg(long, value_name = "ADDRESS", env = "PROVISO_LISTEN", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// Address of /readyz, /livez and /metrics, always plain HTTP; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", env = "PROVISO_ADMIN_LISTEN", default_value = "127.0.0.1:3001")]
    pub admin_listen: SocketAddr,

    /// Address of /metrics and /readyz?verbose with TLS, in a cluster. A caller sends a bearer token, and needs the permission to get
    /// the non-resource URL /metrics. --admin-listen then has neither metrics nor details
    #[arg(long, value_name = "ADDRESS", env = "PROVISO_METRICS_LISTEN", requires_all = ["policy_server", "tls_cert"])]
    pub metrics_listen: Option<SocketAddr>,

    /// Folder that keeps generations and compiled modules across restarts; without it, each start begins at generation 1
    /// and compiles all modules again. In a cluster, use --cache-dir instead
    #[arg(long, value_name = "DIR", env = "PROVISO_STATE_DIR")]
    pub state_dir: Option<PathBuf>,

    /// Folder of modules and compiled modules that all replicas share; without it, each replica fetches and compiles all
    /// modules itself
    #[arg(long, value_name = "DIR", env = "PROVISO_CACHE_DIR", requires_all = ["policy_server", "signing_key"])]
    pub cache_dir: Option<PathBuf>,

    /// Ed25519 keys of the cache (PKCS #8 in PEM): the first key signs compiled modules, all keys verify them; read again when
    /// the file changes
    #[arg(long, value_name = "FILE", env = "PROVISO_SIGNING_KEY", requires = "cache_dir")]
    pub signing_key: Option<PathBuf>,

    /// YAML file about the servers of modules: servers without a verified certificate (insecureSources), certificate
    /// authorities of servers (sourceAuthorities), and mirrors (mirrors); read again for each module
    #[arg(long, value_name = "FILE", env = "PROVISO_SOURCES")]
    pub sources: Option<PathBuf>,

    /// Folder of image pull secrets: a folder for each secret, with a file .dockerconfigjson; read again for each module
    #[arg(long, value_name = "DIR", env = "PROVISO_PULL_SECRETS")]
    pub pull_secrets: Option<PathBuf>,

    /// YAML file of the signatures that modules need (Kubewarden's verification settings); modules without them are refused,
    /// and so are modules in files; read again for each module
    #[arg(long, value_name = "FILE", env = "PROVISO_VERIFICATION")]
    pub verification: Option<PathBuf>,

    /// Sigstore's trusted_root.json, with which keyless signatures and certificates are verified; without it, only signatures
    /// with keys can be verified
    #[arg(long, value_name = "FILE", env = "PROVISO_TRUSTED_ROOT", requires = "verification")]
    pub trusted_root: Option<PathBuf>,

    /// JSON file of the limits of namespaced policies, from the PolicyServer; without it, they may only evaluate requests; read again
    /// for each revision
    #[arg(long, value_name = "FILE", env = "PROVISO_TENANTS", requires = "policy_server")]
    pub tenants: Option<PathBuf>,

    /// Ask namespaced policies about requests of system:masters, of nodes and of accounts in kube-system too
    #[arg(long, env = "PROVISO_NAMESPACED_SYSTEM_REQUESTS", default_value_t = false, action = ArgAction::Set, value_name = "BOOL", requires = "policy_server")]
    pub namespaced_system_requests: bool,

    /// Proxy for fetching modules over HTTPS: http://[user:password@]host:port
    #[arg(long, value_name = "URL", env = "HTTPS_PROXY", hide_env_values = true)]
    pub https_proxy: Option<String>,

    /// Proxy for fetching modules from insecure sources over plain HTTP
    #[arg(long, value_name = "URL", env = "HTTP_PROXY", hide_env_values = true)]
    pub http_proxy: Option<String>,

    /// Servers that are reached without a proxy: domain names (with their subdomains), addresses, networks, or `*`
    #[arg(long, value_name = "LIST", env = "NO_PROXY")]
    pub no_proxy: Option<String>,

    /// Certificate chain in PEM; read again when the file changes
    #[arg(long, value_name = "FILE", env = "PROVISO_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key in PEM (PKCS #8, SEC 1 or PKCS #1)
    #[arg(long, value_name = "FILE", env = "PROVISO_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Certificate authorities of API servers in PEM: a client of --listen needs a certificate of one of them; read again when the file
    /// changes
    #[arg(long, value_name = "FILE", env = "PROVISO_CLIENT_CA", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,

    /// File with the tokens of known callers, one in each line. The path of a review then begins with /t/<token>; other requests are
    /// refused. Read again when the file changes
    #[arg(long, value_name = "FILE", env = "PROVISO_CALLER_TOKENS")]
    pub caller_tokens: Option<PathBuf>,

    /// File with the bearer token for callers of the API (/v1), 32 characters or more; read again when the file changes.
    /// Without it, the API is served on loopback only
    #[arg(long, value_name = "FILE", env = "PROVISO_API_TOKEN_FILE", requires = "manifests")]
    pub api_token_file: Option<PathBuf>,

    /// Maximum time limit of one evaluation of a policy in a namespace, 10ms to 30s; default: the time limit of all policies
    #[arg(long, value_name = "DURATION", env = "PROVISO_NAMESPACED_TIMEOUT", value_parser = evaluation_timeout)]
    pub namespaced_timeout: Option<Duration>,

    /// Time limit of one evaluation, 10ms to 30s; a policy's timeoutEvalSeconds overrides it
    #[arg(long, value_name = "DURATION", env = "PROVISO_EVALUATION_TIMEOUT", default_value = "2s", value_parser = evaluation_timeout)]
    pub evaluation_timeout: Duration,

    /// Memory limit of one wasm evaluation, in MiB. All together take at most a quarter of the memory of the container, those of
    /// one policy a quarter of that, but at least one evaluation within the half
    #[arg(long, value_name = "MIB", env = "PROVISO_MEMORY_LIMIT", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub memory_limit: u32,

    /// Memory limit of compiling one module, in MiB; at most half of the memory limit of the container
    #[arg(long, value_name = "MIB", env = "PROVISO_COMPILE_MEMORY", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub compile_memory: u32,

    /// Time limit of compiling one module or source, 100ms to 10m
    #[arg(long, value_name = "DURATION", env = "PROVISO_COMPILE_TIMEOUT", default_value = "1m", value_parser = compile_timeout)]
    pub compile_timeout: Duration,

    /// Memory limit of the cluster objects that policies read (contextAwareResources), in MiB; the objects of one kind may take
    /// half of it, the objects for the policies of one namespace an eighth. The server does not keep objects beyond these
    /// limits, and a policy that reads them fails
    #[arg(long, value_name = "MIB", env = "PROVISO_CONTEXT_MEMORY", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub context_memory: u32,

    /// Maximum number of concurrent evaluations, less if the container has little memory or few CPUs; one policy uses at most a
    /// quarter, the policies of one namespace a half; further evaluations wait for up to 250 ms
    #[arg(long, value_name = "COUNT", env = "PROVISO_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub concurrency: u32,

    /// Memory of all requests in flight, in MiB; more requests are refused (503), and one client gets at most three quarters. By
    /// default, a quarter of the memory limit of the container: at least 64, at most 512
    #[arg(long, value_name = "MIB", env = "PROVISO_REQUEST_MEMORY", value_parser = clap::value_parser!(u32).range(32..=65536))]
    pub request_memory: Option<u32>,

    /// Length of the queue of previews; further requests are not previewed, but counted as dropped. Live answers never wait
    #[arg(long, value_name = "COUNT", env = "PROVISO_PREVIEW_QUEUE", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub preview_queue: u32,

    /// CPU priority of previews
    #[arg(long, value_name = "PRIORITY", env = "PROVISO_PREVIEW_PRIORITY", default_value = "idle")]
    pub preview_priority: PreviewPriority,

    /// Time between SIGTERM and the end of accepting requests, in which load balancers remove this server, 0s to 10m;
    /// SIGINT (Ctrl-C) skips it
    #[arg(long, value_name = "DURATION", env = "PROVISO_SHUTDOWN_DELAY", default_value = "15s", value_parser = shutdown_delay)]
    pub shutdown_delay: Duration,

    /// Log level: error, warn, info, debug, trace, or per module as in `info,policy_server=debug`; decisions that allow a
    /// request are logged at debug
    #[arg(long, value_name = "FILTER", env = "PROVISO_LOG", default_value = "info")]
    pub log: String,

    /// Format of the log lines on stderr (preview lines go to stdout, always as `PolicyPreviewLog {json}`)
    #[arg(long, value_name = "FORMAT", env = "PROVISO_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Print completions for this shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
}

const EXAMPLES: &str = "\
Examples:
  policy-server --manifests examples/quickstart
  policy-server --manifests /etc/proviso --state-dir /var/lib/proviso --listen 0.0.0.0:8443 \\
      --tls-cert tls.crt --tls-key tls.key
  policy-server --policy-server default --namespace proviso --pod-name $POD_NAME --pod-uid $POD_UID \\
      --cache-dir /var/cache/proviso --signing-key signing.key

Endpoints of --listen:
  POST /validate/<policy id>               an AdmissionReview for the live generation; not in a cluster
  POST /validate/<policy id>/<generation>  … for this generation
  POST /validate_raw/<policy id>           {\"request\": <any JSON>}
  POST /audit/<policy id>                  the verdict of the program, without the mode of the policy
  With --caller-tokens, the paths of reviews begin with /t/<token>
  /v1/policies, /v1/policies/*/experiments the REST API (AIP-236), described by /v1/openapi.json; not in a cluster
Endpoints of --admin-listen:
  GET /readyz, /readyz?verbose, /livez, /metrics
  With --metrics-listen, /readyz?verbose and /metrics are served there only, to callers with a token
A policy id is cluster.<name> or ns.<namespace>.<name>.";

/// The format of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable text
    Text,
    /// One JSON object per line
    Json,
}

/// The CPU priority of previews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreviewPriority {
    /// Only when a CPU is idle
    Idle,
    /// The same priority as live requests
    Normal,
}

/// The validated configuration of the server.
#[derive(Clone, Debug)]
pub struct Config {
    pub source: Source,
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    /// The address of metrics with authentication.
    pub metrics_listen: Option<SocketAddr>,
    pub state_dir: Option<PathBuf>,
    pub cache: Option<SharedCache>,
    /// The file of insecure sources, certificate authorities and mirrors.
    pub sources: Option<PathBuf>,
    /// The folder of image pull secrets.
    pub pull_secrets: Option<PathBuf>,
    /// The file of the signatures that modules need.
    pub verification: Option<PathBuf>,
    /// Sigstore's `trusted_root.json`.
    pub trusted_root: Option<PathBuf>,
    /// The file of the limits of namespaced policies.
    pub tenants: Option<PathBuf>,
    pub namespaced_system_requests: bool,
    /// The proxies for fetching modules.
    pub proxies: Proxies,
    pub tls: Option<TlsFiles>,
    /// The file of the certificate authorities of clients.
    pub client_ca: Option<PathBuf>,
    /// The file of the tokens of known callers.
    pub caller_tokens: Option<PathBuf>,
    /// The file of the bearer token for callers of the API.
    pub api_token_file: Option<PathBuf>,
    pub evaluation_timeout: Duration,
    /// The maximum time limit of policies in namespaces; `None` means `evaluation_timeout`.
    pub namespaced_timeout: Option<Duration>,
    /// The memory limit of one wasm evaluation, in bytes.
    pub memory_limit: usize,
    /// The memory limit of compiling one module, in MiB.
    pub compile_memory: u32,
    pub compile_timeout: Duration,
    /// The memory limit of the cluster objects that policies read, in bytes.
    pub context_memory: usize,
    pub concurrency: u32,
    /// The memory of all requests in flight, in bytes; `None` for the default.
    pub request_memory: Option<usize>,
    pub preview_queue: usize,
    pub preview_priority: PreviewPriority,
    pub shutdown_delay: Duration,
}

/// The source of the policies.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder of manifests.
    Folder(PathBuf),
    Cluster(Replica),
}

/// One replica of a policy server in a cluster.
#[derive(Clone, Debug)]
pub struct Replica {
    pub policy_server: String,
    /// The namespace of the revisions.
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
}

impl Replica {
    /// Returns the identity of the replica in the Lease. The uid of the pod distinguishes it from a later pod of the same name.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}_{}", self.pod_name, self.pod_uid)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "folder {}", path.display()),
            Self::Cluster(replica) => {
                write!(f, "policy server {} in namespace {}", replica.policy_server, replica.namespace)
            }
        }
    }
}

/// The paths of the cache that all replicas share, and of its signing keys.
#[derive(Clone, Debug)]
pub struct SharedCache {
    pub folder: PathBuf,
    pub signing_key: PathBuf,
}

/// The paths of the TLS certificate and its key.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// The error of arguments that do not fit together or do not fit this machine.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--manifests {path}: {error}: name a folder that exists", path = path.display())]
    Manifests { path: PathBuf, error: std::io::Error },
    #[error("--manifests {path}: is not a folder: name the folder that the manifest is in", path = .0.display())]
    NoFolder(PathBuf),
    #[error(
        "--manifests or --policy-server is missing: name the folder of manifests, or the PolicyServer of this replica"
    )]
    Missing,
    #[error("--state-dir {path} is for a folder of manifests: a replica keeps modules in --cache-dir", path = .0.display())]
    StateDir(PathBuf),
    #[error("--listen {0} can be reached from other machines: give --tls-cert and --tls-key, or listen on 127.0.0.1")]
    PlainText(SocketAddr),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl Arguments {
    fn source(&self) -> Result<Source, ConfigError> {
        // Clap has already required the other arguments together with `policy_server`. The types do not show that.
        if let (Some(policy_server), Some(namespace), Some(pod_name), Some(pod_uid)) =
            (&self.policy_server, &self.namespace, &self.pod_name, &self.pod_uid)
        {
            return Ok(Source::Cluster(Replica {
                policy_server: policy_server.clone(),
                namespace: namespace.clone(),
                pod_name: pod_name.clone(),
                pod_uid: pod_uid.clone(),
            }));
        }
        let manifests = self.manifests.clone().ok_or(ConfigError::Missing)?;
        // Module references are relative to the manifest: their base must not depend on the working folder.
        match manifests.canonicalize() {
            Ok(path) if path.is_dir() => Ok(Source::Folder(path)),
            Ok(path) => Err(ConfigError::NoFolder(path)),
            Err(error) => Err(ConfigError::Manifests { path: manifests, error }),
        }
    }
}

impl TryFrom<Arguments> for Config {
    type Error = ConfigError;

    fn try_from(arguments: Arguments) -> Result<Self, Self::Error> {
        let source = arguments.source()?;
        if let (Source::Cluster(_), Some(path)) = (&source, &arguments.state_dir) {
            return Err(ConfigError::StateDir(path.clone()));
        }
        let cache = arguments.cache_dir.zip(arguments.signing_key);
        let tls = arguments.tls_cert.zip(arguments.tls_key).map(|(cert, key)| TlsFiles { cert, key });
        if tls.is_none() && !arguments.listen.ip().is_loopback() {
            return Err(ConfigError::PlainText(arguments.listen));
        }
        Ok(Self {
            source,
            listen: arguments.listen,
            admin_listen: arguments.admin_listen,
            metrics_listen: arguments.metrics_listen,
            state_dir: arguments.state_dir,
            cache: cache.map(|(folder, signing_key)| SharedCache { folder, signing_key }),
            sources: arguments.sources,
            pull_secrets: arguments.pull_secrets,
            verification: arguments.verification,
            trusted_root: arguments.trusted_root,
            tenants: arguments.tenants,
            namespaced_system_requests: arguments.namespaced_system_requests,
            proxies: Proxies::parse(
                arguments.https_proxy.as_deref(),
                arguments.http_proxy.as_deref(),
                arguments.no_proxy.as_deref(),
            )?,
            tls,
            client_ca: arguments.client_ca,
            caller_tokens: arguments.caller_tokens,
            api_token_file: arguments.api_token_file,
            evaluation_timeout: arguments.evaluation_timeout,
            namespaced_timeout: arguments.namespaced_timeout,
            memory_limit: arguments.memory_limit as usize * 1024 * 1024,
            compile_memory: arguments.compile_memory,
            compile_timeout: arguments.compile_timeout,
            context_memory: arguments.context_memory as usize * 1024 * 1024,
            concurrency: arguments.concurrency,
            request_memory: arguments.request_memory.map(|mib| mib as usize * 1024 * 1024),
            preview_queue: arguments.preview_queue as usize,
            preview_priority: arguments.preview_priority,
            shutdown_delay: arguments.shutdown_delay,
        })
    }
}

/// The maximum length of the value of a label, and so of the name of a pod of a `StatefulSet`.
const MAX_NAME: usize = 63;

fn name(text: &str) -> Result<String, String> {
    match proviso_core::policy_id::check_name(text) {
        Ok(()) if text.len() <= MAX_NAME => Ok(text.to_owned()),
        _ => Err(format!("is not a name of a Kubernetes object: 1 to {MAX_NAME} characters of a-z, 0-9, '-' and '.'")),
    }
}

fn uid(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("is empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn evaluation_timeout(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(10), Duration::from_secs(30))
}

fn compile_timeout(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100), Duration::from_mins(10))
}

fn shutdown_delay(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, Duration::from_mins(10))
}

fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let signed: jiff::SignedDuration =
        text.parse().map_err(|_| "is not a duration such as 500ms, 2s or 1m".to_owned())?;
    Duration::try_from(signed)
        .ok()
        .filter(|duration| (min..=max).contains(duration))
        .ok_or_else(|| format!("is not between {min:?} and {max:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let arguments = std::iter::once(&"policy-server").chain(arguments);
        Arguments::try_parse_from(arguments)
            .map_err(|error| error.to_string())
            .and_then(|arguments| Config::try_from(arguments).map_err(|error| error.to_string()))
    }

    #[test]
    fn every_argument_has_an_environment_variable() {
        let command = Arguments::command();
        command.clone().debug_assert();
        for argument in command
            .get_arguments()
            .filter(|argument| !["completions", "help", "version"].contains(&argument.get_id().as_str()))
        {
            // The proxies use the environment variables that other programs use.
            let prefix = if argument.get_id().as_str().ends_with("_proxy") { "" } else { "PROVISO_" };
            let wanted = format!("{prefix}{}", argument.get_id().as_str().to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(wanted.as_str()));
        }
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        for (arguments, wanted) in [
            (vec![], "--manifests"),
            (vec!["--manifests", folder, "--https-proxy", "socks5://a"], "HTTPS_PROXY: is not a usable proxy"),
            (vec!["--manifests", folder, "--trusted-root", "a"], "--verification"),
            (vec!["--manifests", "/nowhere"], "name a folder that exists"),
            (vec!["--manifests", "/dev/null"], "is not a folder"),
            (vec!["--manifests", folder, "--listen", "0.0.0.0:3000"], "give --tls-cert and --tls-key"),
            (vec!["--manifests", folder, "--tls-cert", "a"], "--tls-key"),
            (vec!["--manifests", folder, "--evaluation-timeout", "soon"], "500ms, 2s or 1m"),
            (vec!["--manifests", folder, "--evaluation-timeout", "1h"], "is not between"),
            (vec!["--manifests", folder, "--listen", "3000"], "invalid"),
            (vec![], "--policy-server"),
            (vec!["--manifests", folder, "--policy-server", "a"], "cannot be used with"),
            (vec!["--policy-server", "a", "--namespace", "b", "--pod-name", "c"], "--pod-uid"),
            (vec!["--manifests", folder, "--pod-uid", "u"], "--policy-server"),
            (vec!["--policy-server", "a", "--api-token-file", "/t"], "--manifests"),
            (vec!["--manifests", folder, "--cache-dir", "/c", "--signing-key", "/k"], "--policy-server"),
            (vec!["--manifests", folder, "--compile-memory", "1"], "64..=65536"),
            (vec!["--manifests", folder, "--compile-timeout", "1ms"], "is not between 100ms and 600s"),
            (vec!["--policy-server", "A", "--namespace", "b", "--pod-name", "c", "--pod-uid", "u"], "not a name of a"),
        ] {
            let error = config(&arguments).unwrap_err();
            assert!(error.contains(wanted), "{arguments:?}: {error}");
        }
        let alone = config(&["--manifests", folder, "--evaluation-timeout", "500ms"]).unwrap();
        assert_eq!(alone.evaluation_timeout, Duration::from_millis(500));
        let replica = ["--policy-server", "a", "--namespace", "b", "--pod-name", "a-0", "--pod-uid", "u"];
        for (arguments, wanted) in [
            (&["--cache-dir", "/c"][..], "--signing-key"),
            (&["--signing-key", "/k"], "--cache-dir"),
            (&["--state-dir", "/s"], "a replica keeps modules in --cache-dir"),
        ] {
            let error = config(&[&replica[..], arguments].concat()).unwrap_err();
            assert!(error.contains(wanted), "{arguments:?}: {error}");
        }
        let shared = ["--cache-dir", "/c", "--signing-key", "/k", "--sources", "/s", "--pull-secrets", "/p"];
        let config = config(&[&replica[..], &shared].concat()).unwrap();
        assert!(config.cache.is_some_and(|cache| cache.folder.ends_with("c") && cache.signing_key.ends_with("k")));
        assert!(config.sources.is_some() && config.pull_secrets.is_some());
        let Source::Cluster(replica) = config.source else { panic!("not in a cluster") };
        assert_eq!(replica.pod_name, "a-0");
    }
}
