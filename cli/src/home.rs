//! Where policies and their experiments live: a cluster, or a server with the REST API. What the commands need of either.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _, future};
use proviso_core::PolicyId;
use serde_json::Value;

use crate::arguments::{Connection, Server as ServerArguments};
use crate::cluster::{Action, Cluster, Found, Scope, Watched};
use crate::error::Error;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::policy_ref::PolicyRef;
use crate::report::Unseen;
use crate::server::{Operation, Server};

/// All that there is, again and again as it changes.
pub type Changes = Pin<Box<dyn Stream<Item = Result<Found<ExperimentObject>, Error>> + Send>>;

pub enum Home {
    Cluster(Box<Cluster>),
    Server(Server),
}

/// What was begun, by which it is followed to its end.
pub enum Begun {
    /// The objects say how far it is.
    InCluster(Box<Cluster>),
    Operation(Operation),
}

impl Home {
    /// What the arguments name. Nothing is sent yet.
    ///
    /// # Errors
    /// When the arguments contradict each other, or name what cannot be used.
    pub async fn connect(connection: &Connection, server: &ServerArguments) -> Result<Self, Error> {
        server.check(connection).map_err(Error::Usage)?;
        Ok(match &server.server {
            Some(url) => Self::Server(Server::connect(url, server, connection.namespace.clone())?),
            None => Self::Cluster(Box::new(Cluster::connect(connection).await?)),
        })
    }

    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Cluster(cluster) => cluster.namespace(),
            Self::Server(server) => server.namespace(),
        }
    }

    /// The policy that a person means.
    ///
    /// # Errors
    /// When there is none, or there are two.
    pub async fn find_policy(&self, reference: &PolicyRef) -> Result<PolicyObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_policy(reference).await,
        }
    }

    /// The experiment that a person means.
    ///
    /// # Errors
    /// When there is none, or there are two.
    pub async fn find_experiment(&self, reference: &PolicyRef) -> Result<ExperimentObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_experiment(reference).await,
        }
    }

    /// The policy of an experiment, if it is there.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn policy_of(&self, experiment: &ExperimentObject) -> Result<Option<PolicyObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.policy).await,
            Self::Server(server) => server.policy(&experiment.policy).await,
        }
    }

    /// The experiment as it is now, if it is there.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn again(&self, experiment: &ExperimentObject) -> Result<Option<ExperimentObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.id).await,
            Self::Server(server) => server.experiment(&experiment.policy, experiment.id.name()).await,
        }
    }

    /// The experiments of a scope.
    ///
    /// # Errors
    /// When they cannot be told, or one may see none of them.
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

    /// The same, whenever it may have changed. Goes on after errors, more and more slowly.
    pub fn follow(&self, scope: &Scope, policy: Option<&PolicyId>, unseen: &[Unseen]) -> Changes {
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

    /// Creates the experiment of this manifest, and returns it with all defaults; `is_dry`: asks whether that could be
    /// done, and changes nothing.
    ///
    /// # Errors
    /// When it is refused, or cannot be asked for.
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

    /// Deletes an experiment, and no other of its name.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn delete(&self, experiment: &ExperimentObject) -> Result<(), Error> {
        match self {
            Self::Cluster(cluster) => cluster.delete(experiment).await,
            Self::Server(server) => server.delete(experiment).await,
        }
    }

    /// Starts, stops or commits an experiment.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn act(&self, experiment: &ExperimentObject, action: &Action) -> Result<Begun, Error> {
        match self {
            Self::Cluster(cluster) => {
                cluster.act(experiment, action).await?;
                Ok(Begun::InCluster(cluster.clone()))
            }
            Self::Server(server) => Ok(Begun::Operation(server.act(experiment, action).await?)),
        }
    }
}
