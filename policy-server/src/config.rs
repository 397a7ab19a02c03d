//! The arguments and environment variables, parsed once into a validated [`Config`]. No other module reads the environment.

mod arguments;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use proviso_artifacts::{Proxies, ProxyError};

use crate::configuration::DeliveryOptions;

pub use arguments::{Arguments, LogFormat, PreviewPriority};

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
    /// The options of the deliveries to components.
    pub deliveries: DeliveryOptions,
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
    #[error(
        "--deliver-to {path}: is within {other}, or contains it: name a folder of its own, because the server writes and removes files there",
        path = path.display(), other = other.display()
    )]
    DeliverTo { path: PathBuf, other: PathBuf },
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

/// Returns the absolute path of the folder of deliveries. It must not share files with the other folders.
fn deliver_to(path: &Path, manifests: &Path, state: Option<&Path>) -> Result<PathBuf, ConfigError> {
    let folder = absolute(path);
    for other in std::iter::once(manifests).chain(state) {
        let absolute = absolute(other);
        if folder.starts_with(&absolute) || absolute.starts_with(&folder) {
            return Err(ConfigError::DeliverTo { path: path.to_owned(), other: other.to_owned() });
        }
    }
    Ok(folder)
}

/// Returns the absolute path of a folder, without links as far as it exists, and without `..`.
fn absolute(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    let Some((ancestor, mut real)) = existing else { return absolute };
    for component in absolute.strip_prefix(ancestor).unwrap_or(Path::new("")).components() {
        if component == Component::ParentDir {
            real.pop();
        } else {
            real.push(component);
        }
    }
    real
}

impl TryFrom<Arguments> for Config {
    type Error = ConfigError;

    fn try_from(arguments: Arguments) -> Result<Self, Self::Error> {
        let source = arguments.source()?;
        if let (Source::Cluster(_), Some(path)) = (&source, &arguments.state_dir) {
            return Err(ConfigError::StateDir(path.clone()));
        }
        let deliver_to = match (&source, &arguments.deliver_to) {
            (Source::Folder(manifests), Some(path)) => {
                Some(deliver_to(path, manifests, arguments.state_dir.as_deref())?)
            }
            _ => None,
        };
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
            deliveries: DeliveryOptions { deliver_to, catch_up_interval: arguments.catch_up_interval },
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};

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
            (vec!["--manifests", folder, "--deliver-to", folder], "name a folder of its own"),
            (vec!["--manifests", folder, "--deliver-to", &format!("{folder}/../x/..")], "name a folder of its own"),
            (
                vec!["--manifests", folder, "--state-dir", "/s/t", "--deliver-to", "/s"],
                "is within /s/t, or contains it",
            ),
            (vec!["--manifests", folder, "--catch-up-interval", "0s"], "is not between 1s and"),
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
