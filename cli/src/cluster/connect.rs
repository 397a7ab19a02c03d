//! Makes a client from a kubeconfig.

use std::io;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::Cluster;
use crate::arguments::Connection;
use crate::error::{Error, root_cause};

/// The time limit of a connection. Short, because a user waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit between two reads of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of an action. The API server ends a request after one minute, and a commit waits for the preparation of the
/// experiment.
const ACTION_TIMEOUT: Duration = Duration::from_secs(75);

impl Cluster {
    /// Returns a client of the cluster that the arguments and the kubeconfig name. Sends no request.
    ///
    /// # Errors
    /// When no kubeconfig exists, or it is invalid.
    pub async fn connect(connection: &Connection) -> Result<Self, Error> {
        let mut config = config(connection).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        let server = config.cluster_url.to_string();
        let server = server.trim_end_matches('/').to_owned();
        let namespace = connection.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let mut without_retries = config.clone();
        without_retries.default_retry = false;
        without_retries.read_timeout = Some(ACTION_TIMEOUT);
        let client = |config| {
            Client::try_from(config)
                .map_err(|error| Error::Client { server: server.clone(), cause: root_cause(&error) })
        };
        Ok(Self {
            client: client(config)?,
            client_without_retries: client(without_retries)?,
            server,
            namespace,
            is_namespace_given: connection.namespace.is_some(),
            proviso_namespace: connection.proviso_namespace.clone(),
        })
    }
}

async fn config(connection: &Connection) -> Result<Config, Error> {
    let read = match &connection.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match read {
        Ok(kubeconfig) => kubeconfig,
        Err(error) if connection.kubeconfig.is_none() && connection.context.is_none() && is_missing(&error) => {
            return Config::incluster().map_err(|_| Error::NoKubeconfig(error));
        }
        Err(error) => return Err(Error::Kubeconfig { error, contexts: Vec::new() }),
    };
    let contexts = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    let options = KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| Error::Kubeconfig { error, contexts })
}

fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}
