//! The arguments and environment variables of the program, as clap parses them. The doc comments are the help text.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Parser, ValueEnum};
use clap_complete::Shell;

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
    /// PolicyExperiment, PolicySubscription and Namespace; policies can read objects of other kinds if they name the kind in
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

    /// Folder for the policies of components: for each PolicySubscription of --manifests, a folder with the service component name that
    /// has the files event, items/<policy id> and record.json. The commands of the subscriptions run with the rights of this server.
    /// Without the folder, nothing is delivered and no command runs
    #[arg(long, value_name = "DIR", env = "PROVISO_DELIVER_TO", requires = "manifests")]
    pub deliver_to: Option<PathBuf>,

    /// Time between two comparisons of the policies that a component has with those that it should have, 1s to 24h
    #[arg(long, value_name = "DURATION", env = "PROVISO_CATCH_UP_INTERVAL", default_value = "20m", value_parser = catch_up_interval)]
    pub catch_up_interval: Duration,

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
  POST /api/v1/engine/evaluate             a request to a service, for the chain of request policies; not in a cluster
  POST /api/v1alpha1/policies:evaluateRequest  the same, as in the API of the DCM project
  /service_component_all/<name>, /policies_latest, /v1/kv/…, /api/v1alpha1/subscriptions
                                           components and their policies, as ONAP's clients read them; not in a cluster
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

fn catch_up_interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(1), Duration::from_hours(24))
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
