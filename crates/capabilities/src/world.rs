//! What all programs of a policy server share: the objects, what was asked of registries and of name servers.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use proviso_engines::Deadline;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::error::AskError;
use crate::folder::FolderObjects;
use crate::images::Images;
use crate::kind::Kind;
use crate::kubernetes::reading::Reading;
use crate::names::Names;

/// The world, before the gates.
#[derive(Debug)]
pub struct World {
    /// Where questions are asked, whoever asks: connections belong to the runtime that opened them, and a preview's runs at the
    /// lowest priority and knows no network.
    runtime: Handle,
    objects: Source,
    images: Images,
    names: Names,
}

#[derive(Debug)]
enum Source {
    Cluster(Arc<Cluster>),
    Folder(Arc<FolderObjects>),
}

impl World {
    /// With the objects of a cluster. Questions are asked on the runtime that this is called on.
    #[must_use]
    pub fn cluster(cluster: Cluster, images: Images) -> Self {
        Self::new(Source::Cluster(Arc::new(cluster)), images)
    }

    /// With the objects of a folder, likewise.
    #[must_use]
    pub fn folder(folder: Arc<FolderObjects>, images: Images) -> Self {
        Self::new(Source::Folder(folder), images)
    }

    /// Whether it is a folder's: then no API server has looked at a request before.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        matches!(self.objects, Source::Folder(_))
    }

    fn new(objects: Source, images: Images) -> Self {
        Self { runtime: Handle::current(), objects, images, names: Names::default() }
    }

    /// Asks on the runtime for that. Who does not wait any more ends it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        asking: impl Future<Output = Result<T, AskError>> + Send + 'static,
    ) -> Result<T, AskError> {
        let mut running = JoinSet::new();
        running.spawn_on(asking, &self.runtime);
        match running.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(stopped)) => Err(AskError::Stopped(stopped.to_string())),
            None => Err(AskError::Stopped("nobody asked".to_owned())),
        }
    }

    pub(crate) fn images(&self) -> &Images {
        &self.images
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn read(&self, kind: &Kind, namespace: Option<&str>) -> Reading {
        match &self.objects {
            Source::Cluster(cluster) => {
                Reading::Cluster { followed: cluster.follow(kind, namespace), cluster: Arc::clone(cluster) }
            }
            Source::Folder(folder) => Reading::Folder {
                folder: Arc::clone(folder),
                kind: kind.clone(),
                namespace: namespace.map(ToOwned::to_owned),
            },
        }
    }

    pub(crate) async fn can_i(&self, review: SubjectAccessReviewSpec, is_fresh: bool) -> Result<Arc<Value>, AskError> {
        match &self.objects {
            Source::Cluster(cluster) => cluster.can_i(review, is_fresh).await,
            Source::Folder(_) => Err(AskError::NoCluster { what: "permissions" }),
        }
    }

    pub(crate) async fn namespace(&self, name: &str, deadline: Deadline) -> Result<Option<Arc<Value>>, AskError> {
        match &self.objects {
            Source::Cluster(cluster) => {
                let followed = cluster.namespaces();
                let described = followed.ready(deadline).await?;
                cluster.get(&followed, &described, None, name, false).await
            }
            Source::Folder(folder) => Ok(folder.get(&Kind::namespace(), "", name)),
        }
    }
}
