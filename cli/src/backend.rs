//! The backend of the commands about experiments: a cluster, or a server with the REST API.

use futures_util::{StreamExt as _, future};
use proviso_core::PolicyId;
use serde_json::Value;

use crate::arguments::{Connection, Server as ServerArguments};
use crate::cluster::{Action, Cluster, Scope, Watched};
use crate::error::Error;
use crate::found::{Found, Omitted, Updates};
use crate::objects::{ExperimentObject, PolicyObject};
use crate::policy_ref::PolicyRef;
use crate::server::{Operation, Server};

/// A cluster or a server.
pub enum Backend {
    Cluster(Box<Cluster>),
    Server(Server),
}

/// An action that has started.
pub enum Started {
    /// The status of the objects has the progress.
    InCluster(Box<Cluster>),
    Operation(Operation),
}

impl Backend {
    /// Returns the cluster or the server that the arguments name. Sends no request.
    ///
    /// # Errors
    /// When the arguments contradict each other, or a file that they name cannot be used.
    pub async fn connect(connection: &Connection, server: &ServerArguments) -> Result<Self, Error> {
        server.check(connection).map_err(Error::Usage)?;
        Ok(match &server.server {
            Some(url) => Self::Server(Server::connect(url, server, connection.namespace.clone())?),
            None => Self::Cluster(Box::new(Cluster::connect(connection).await?)),
        })
    }

    /// Returns whether the backend is a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the namespace of names that have none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Cluster(cluster) => cluster.namespace(),
            Self::Server(server) => server.namespace(),
        }
    }

    /// Finds the policy that a person names.
    ///
    /// # Errors
    /// When there is none, or there are two.
    pub async fn find_policy(&self, reference: &PolicyRef) -> Result<PolicyObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_policy(reference).await,
        }
    }

    /// Finds the experiment that a person names.
    ///
    /// # Errors
    /// When there is none, or there are two.
    pub async fn find_experiment(&self, reference: &PolicyRef) -> Result<ExperimentObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_experiment(reference).await,
        }
    }

    /// Returns the policy of an experiment; `None` if there is none.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn policy_of(&self, experiment: &ExperimentObject) -> Result<Option<PolicyObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.policy).await,
            Self::Server(server) => server.policy(&experiment.policy).await,
        }
    }

    /// Reads the experiment again; `None` if it is gone.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn again(&self, experiment: &ExperimentObject) -> Result<Option<ExperimentObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.id).await,
            Self::Server(server) => server.experiment(&experiment.policy, experiment.id.name()).await,
        }
    }

    /// Returns the experiments of a scope.
    ///
    /// # Errors
    /// When the request fails, or the user may read none of them.
    pub async fn look(&self, scope: &Scope, policy: Option<&PolicyId>) -> Result<Found<ExperimentObject>, Error> {
        match (self, scope) {
            (Self::Server(server), _) => server.look(scope, policy).await,
            (Self::Cluster(cluster), Scope::Beside(id)) => cluster.beside(id).await,
            (Self::Cluster(cluster), Scope::All { of_all_namespaces }) => cluster.all(*of_all_namespaces).await,
            (Self::Cluster(cluster), Scope::One(id)) => {
                Ok(Found { items: cluster.get(id).await?.into_iter().collect(), unseen: Vec::new() })
            }
        }
    }

    /// Returns the experiments of a scope again whenever one may have changed. Continues after errors, with a growing delay.
    pub fn follow(&self, scope: &Scope, policy: Option<&PolicyId>, unseen: &[Omitted]) -> Updates<ExperimentObject> {
        match self {
            Self::Server(server) => server.follow(scope, policy),
            Self::Cluster(cluster) => {
                let mut watched = Watched::new::<ExperimentObject>(scope, unseen);
                let news = cluster.watch::<ExperimentObject>(scope, &watched);
                Box::pin(news.filter_map(move |news| {
                    future::ready(match news {
                        Ok(news) => watched.take(news).then(|| Ok(watched.found())),
                        Err(error) => Some(Err(error)),
                    })
                }))
            }
        }
    }

    /// Creates the experiment of this manifest, and returns it with all defaults. `is_dry` only checks whether it could be
    /// created.
    ///
    /// # Errors
    /// When the request is refused, or the backend has no dry run.
    pub async fn create(&self, id: &PolicyId, manifest: Value, is_dry: bool) -> Result<ExperimentObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.create(id, manifest, is_dry).await,
            Self::Server(_) if is_dry => {
                let message = "--dry-run needs a cluster: the REST API has none. -o yaml prints what would be created";
                Err(Error::Usage(message.to_owned()))
            }
            Self::Server(server) => server.create(id, &manifest).await,
        }
    }

    /// Deletes an experiment, but no later one of the same name.
    ///
    /// # Errors
    /// When the request is refused.
    pub async fn delete(&self, experiment: &ExperimentObject) -> Result<(), Error> {
        match self {
            Self::Cluster(cluster) => cluster.delete(experiment).await,
            Self::Server(server) => server.delete(experiment).await,
        }
    }

    /// Starts, stops or commits an experiment.
    ///
    /// # Errors
    /// When the request is refused.
    pub async fn act(&self, experiment: &ExperimentObject, action: &Action) -> Result<Started, Error> {
        match self {
            Self::Cluster(cluster) => {
                cluster.act(experiment, action).await?;
                Ok(Started::InCluster(cluster.clone()))
            }
            Self::Server(server) => Ok(Started::Operation(server.act(experiment, action).await?)),
        }
    }
}
