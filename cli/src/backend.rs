//! The backend of the commands about experiments: a cluster, or a server with the REST API.

use futures_util::{StreamExt as _, future};
use proviso_core::PolicyId;
use serde_json::Value;

use crate::arguments::{Connection, Server as ServerArguments};
use crate::cluster::{Action, Cluster, Scope, Watched};
use crate::error::Error;
use crate::found::{Found, Omitted, Updates};
use crate::objects::{ExperimentObject, PolicyObject, SubscriptionObject};
use crate::policy_ref::PolicyRef;
use crate::report::{Bodies, ItemReport};
use crate::server::{Operation, Server};

/// The API that the commands about experiments use.
pub enum Backend {
    Cluster(Box<Cluster>),
    Server(Server),
}

/// An action that the backend has accepted.
pub enum Started {
    /// An action in a cluster; the status of the objects shows the progress.
    InCluster(Box<Cluster>),
    /// An operation of a server.
    Operation(Operation),
}

impl Backend {
    /// Returns the cluster or the server that the arguments name. Sends no request.
    ///
    /// # Errors
    /// When the arguments name both a cluster and a server, or a file that they name is invalid.
    pub async fn connect(connection: &Connection, server: &ServerArguments) -> Result<Self, Error> {
        server.check(connection).map_err(Error::Usage)?;
        Ok(match &server.server {
            Some(url) => Self::Server(Server::connect(url, server, connection.namespace.clone())?),
            None => Self::Cluster(Box::new(Cluster::connect(connection).await?)),
        })
    }

    /// Returns true if the backend is a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the default namespace for names without one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Cluster(cluster) => cluster.namespace(),
            Self::Server(server) => server.namespace(),
        }
    }

    /// Finds the policy that the user names.
    ///
    /// # Errors
    /// When no policy or more than one has this name, or a request fails.
    pub async fn find_policy(&self, reference: &PolicyRef) -> Result<PolicyObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_policy(reference).await,
        }
    }

    /// Finds the experiment that the user names.
    ///
    /// # Errors
    /// When no experiment or more than one has this name, or a request fails.
    pub async fn find_experiment(&self, reference: &PolicyRef) -> Result<ExperimentObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find(reference).await,
            Self::Server(server) => server.find_experiment(reference).await,
        }
    }

    /// Returns the policy of an experiment; `None` if the policy does not exist.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn policy_of(&self, experiment: &ExperimentObject) -> Result<Option<PolicyObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.policy).await,
            Self::Server(server) => server.policy(&experiment.policy).await,
        }
    }

    /// Reads the experiment again; `None` if it no longer exists.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn reload(&self, experiment: &ExperimentObject) -> Result<Option<ExperimentObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.get(&experiment.id).await,
            Self::Server(server) => server.experiment(&experiment.policy, experiment.id.name()).await,
        }
    }

    /// Returns the experiments of a scope. `policy` limits a server to the experiments of one policy.
    ///
    /// # Errors
    /// When the request fails, or the user may read no experiment of the scope.
    pub async fn list_experiments(
        &self,
        scope: &Scope,
        policy: Option<&PolicyId>,
    ) -> Result<Found<ExperimentObject>, Error> {
        match (self, scope) {
            (Self::Server(server), _) => server.list_experiments(scope, policy).await,
            (Self::Cluster(cluster), Scope::SameNamespace(id)) => cluster.in_namespace_of(id).await,
            (Self::Cluster(cluster), Scope::All { of_all_namespaces }) => cluster.all(*of_all_namespaces).await,
            (Self::Cluster(cluster), Scope::One(id)) => {
                Ok(Found { items: cluster.get(id).await?.into_iter().collect(), unseen: Vec::new() })
            }
        }
    }

    /// Returns the experiments of a scope, again each time that one may have changed. Continues after errors, with a growing
    /// delay.
    pub fn follow(&self, scope: &Scope, policy: Option<&PolicyId>, unseen: &[Omitted]) -> Updates<ExperimentObject> {
        match self {
            Self::Server(server) => server.follow(scope, policy),
            Self::Cluster(cluster) => {
                let mut watched = Watched::new::<ExperimentObject>(scope, unseen);
                let events = cluster.watch::<ExperimentObject>(scope, &watched);
                Box::pin(events.filter_map(move |event| {
                    future::ready(match event {
                        Ok(event) => watched.apply(event).then(|| Ok(watched.found())),
                        Err(error) => Some(Err(error)),
                    })
                }))
            }
        }
    }

    /// Creates the experiment of this manifest, and returns it with all defaults. With `is_dry` the API server checks the
    /// manifest, and creates nothing.
    ///
    /// # Errors
    /// When the request is refused, or the backend does not support a dry run.
    pub async fn create(&self, id: &PolicyId, manifest: Value, is_dry: bool) -> Result<ExperimentObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.create(id, manifest, is_dry).await,
            Self::Server(_) if is_dry => {
                let message =
                    "--dry-run needs a cluster: the REST API does not support it. Use -o yaml to print the manifest";
                Err(Error::Usage(message.to_owned()))
            }
            Self::Server(server) => server.create(id, &manifest).await,
        }
    }

    /// Deletes an experiment, but not a later experiment with the same name.
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

    /// Returns the subscriptions of the user's namespace, or of all namespaces.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn subscriptions(&self, of_all_namespaces: bool) -> Result<Found<SubscriptionObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.subscriptions(of_all_namespaces).await,
            Self::Server(server) => server.subscriptions(of_all_namespaces).await,
        }
    }

    /// Finds the subscription of this name in the user's namespace.
    ///
    /// # Errors
    /// When it does not exist, or a request fails.
    pub async fn find_subscription(&self, name: &str) -> Result<SubscriptionObject, Error> {
        match self {
            Self::Cluster(cluster) => cluster.find_subscription(name).await,
            Self::Server(server) => server.find_subscription(name).await,
        }
    }

    /// Reads the subscription again; `None` if it no longer exists.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn reload_subscription(&self, it: &SubscriptionObject) -> Result<Option<SubscriptionObject>, Error> {
        match self {
            Self::Cluster(cluster) => cluster.subscription(&it.name).await,
            Self::Server(server) => server.subscription(&it.name).await,
        }
    }

    /// Returns the bodies of the policies of a component, and the objects that the user may not read. `items` are its policies.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn bodies(
        &self,
        subscription: &SubscriptionObject,
        items: &[ItemReport],
    ) -> Result<(Bodies, Vec<Omitted>), Error> {
        match self {
            Self::Cluster(cluster) => cluster.bodies(subscription, items).await,
            Self::Server(server) => Ok((server.bodies(&subscription.name, items).await?, Vec::new())),
        }
    }

    /// Requests that all policies of a component are sent again. `value` is a new value for a request to a cluster. Returns the value
    /// that the status of the subscription will have.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn request_resend(&self, subscription: &SubscriptionObject, value: String) -> Result<String, Error> {
        match self {
            Self::Cluster(cluster) => cluster.request_resend(subscription, &value).await.map(|()| value),
            Self::Server(server) => server.request_resend(subscription).await,
        }
    }
}
