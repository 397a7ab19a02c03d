//! The host state that all programs of a policy server share: objects, registry answers, resolved names.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use proviso_engines::Deadline;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::dns::DnsLookup;
use crate::error::HostCallError;
use crate::folder::FolderObjects;
use crate::images::Images;
use crate::kind::Kind;
use crate::kubernetes::reader::KindReader;

/// The host state that all programs share. A [`PolicyHost`](crate::PolicyHost) restricts it to the grants of one program.
#[derive(Debug)]
pub struct HostContext {
    /// The runtime of all network connections. Callers may run on another runtime: that of the previews has the lowest thread
    /// priority and no I/O driver.
    runtime: Handle,
    objects: Source,
    images: Images,
    dns: DnsLookup,
}

#[derive(Debug)]
enum Source {
    Cluster(Arc<Cluster>),
    Folder(Arc<FolderObjects>),
}

impl HostContext {
    /// Creates the host state with the objects of a cluster.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime. Network connections belong to the runtime of this call.
    #[must_use]
    pub fn cluster(cluster: Cluster, images: Images) -> Self {
        Self::new(Source::Cluster(Arc::new(cluster)), images)
    }

    /// Creates the host state with the objects of a folder.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime. Network connections belong to the runtime of this call.
    #[must_use]
    pub fn folder(folder: Arc<FolderObjects>, images: Images) -> Self {
        Self::new(Source::Folder(folder), images)
    }

    /// Returns true if the objects are those of a folder. Then no API server has checked the requests before.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        matches!(self.objects, Source::Folder(_))
    }

    fn new(objects: Source, images: Images) -> Self {
        Self { runtime: Handle::current(), objects, images, dns: DnsLookup::default() }
    }

    /// Runs a query on the host runtime. Dropping the future cancels the query.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        query: impl Future<Output = Result<T, HostCallError>> + Send + 'static,
    ) -> Result<T, HostCallError> {
        let mut task = JoinSet::new();
        task.spawn_on(query, &self.runtime);
        match task.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(stopped)) => Err(HostCallError::Stopped(stopped.to_string())),
            None => Err(HostCallError::Stopped("no query was started".to_owned())),
        }
    }

    pub(crate) fn images(&self) -> &Images {
        &self.images
    }

    pub(crate) fn dns(&self) -> &DnsLookup {
        &self.dns
    }

    pub(crate) fn reader(&self, kind: &Kind, namespace: Option<&str>) -> KindReader {
        match &self.objects {
            Source::Cluster(cluster) => {
                KindReader::Cluster { informer: cluster.informer(kind, namespace), cluster: Arc::clone(cluster) }
            }
            Source::Folder(folder) => KindReader::Folder {
                folder: Arc::clone(folder),
                kind: kind.clone(),
                namespace: namespace.map(ToOwned::to_owned),
            },
        }
    }

    pub(crate) async fn can_i(
        &self,
        review: SubjectAccessReviewSpec,
        is_fresh: bool,
    ) -> Result<Arc<Value>, HostCallError> {
        match &self.objects {
            Source::Cluster(cluster) => cluster.can_i(review, is_fresh).await,
            Source::Folder(_) => Err(HostCallError::NoCluster { what: "permissions" }),
        }
    }

    pub(crate) async fn namespace(&self, name: &str, deadline: Deadline) -> Result<Option<Arc<Value>>, HostCallError> {
        match &self.objects {
            Source::Cluster(cluster) => {
                let informer = cluster.namespaces();
                let resolved = informer.ready(deadline).await?;
                cluster.get(&informer, &resolved, None, name, false).await
            }
            Source::Folder(folder) => Ok(folder.get(&Kind::namespace(), "", name)),
        }
    }
}
