//! Reads the objects of one kind for one program, from a cluster or a folder.

use std::sync::Arc;

use proviso_engines::Deadline;
use proviso_engines::host::Resource;
use serde_json::Value;

use super::selector::ObjectSelector;
use crate::cluster::{Cluster, Informer, ObjectList, select};
use crate::error::HostCallError;
use crate::folder::FolderObjects;
use crate::kind::Kind;

/// Reads the objects of one kind for one program.
#[derive(Debug)]
pub(crate) enum KindReader {
    Cluster {
        cluster: Arc<Cluster>,
        informer: Arc<Informer>,
    },
    Folder {
        folder: Arc<FolderObjects>,
        kind: Kind,
        /// The namespace of a namespaced policy; `None` for all namespaces.
        namespace: Option<String>,
    },
}

/// The objects that a program requested.
#[derive(Debug)]
pub(crate) struct SelectedObjects {
    pub objects: Vec<Arc<Value>>,
    /// The list of the objects, if they come from one. It keeps the memory reservation of the objects.
    _list: Option<Arc<ObjectList>>,
}

impl From<Vec<Arc<Value>>> for SelectedObjects {
    fn from(objects: Vec<Arc<Value>>) -> Self {
        Self { objects, _list: None }
    }
}

impl KindReader {
    /// Waits until the first list of the objects has ended.
    ///
    /// # Errors
    /// Returns [`HostCallError::KindUnavailable`] if the objects are not available at the deadline.
    pub(crate) async fn ready(&self, deadline: Deadline) -> Result<(), HostCallError> {
        match self {
            Self::Cluster { informer, .. } => informer.ready(deadline).await.map(drop),
            Self::Folder { .. } => Ok(()),
        }
    }

    pub(crate) async fn is_namespaced(&self, deadline: Deadline) -> Result<bool, HostCallError> {
        match self {
            Self::Cluster { informer, .. } => Ok(informer.ready(deadline).await?.is_namespaced),
            Self::Folder { folder, kind, .. } => Ok(folder.is_namespaced(kind)),
        }
    }

    pub(crate) async fn list(
        &self,
        namespace: Option<&str>,
        selector: &ObjectSelector,
        deadline: Deadline,
    ) -> Result<SelectedObjects, HostCallError> {
        match self {
            Self::Cluster { cluster, informer } => {
                let resolved = informer.ready(deadline).await?;
                match &selector.api_server_fields {
                    Some(fields) => {
                        let listed = cluster.select(informer, &resolved, namespace, fields).await?;
                        Ok(SelectedObjects { objects: select(&listed.objects, selector), _list: Some(listed) })
                    }
                    None => Ok(select(&informer.list(namespace)?, selector).into()),
                }
            }
            Self::Folder { folder, kind, namespace: own } => {
                if let Some(fields) = &selector.api_server_fields {
                    let why = "without a cluster, only metadata.name and metadata.namespace are supported";
                    return Err(HostCallError::Selector {
                        selector: "field_selector",
                        text: fields.clone(),
                        why: why.to_owned(),
                    });
                }
                Ok(select(&folder.list(kind, namespace.or(own.as_deref())), selector).into())
            }
        }
    }

    pub(crate) async fn get(
        &self,
        namespace: Option<&str>,
        name: &str,
        is_fresh: bool,
        deadline: Deadline,
    ) -> Result<Option<Arc<Value>>, HostCallError> {
        match self {
            Self::Cluster { cluster, informer } => {
                let resolved = informer.ready(deadline).await?;
                cluster.get(informer, &resolved, namespace, name, is_fresh).await
            }
            Self::Folder { folder, kind, .. } => Ok(folder.get(kind, namespace.unwrap_or_default(), name)),
        }
    }

    /// Returns the version of the objects, which grows with each change.
    pub(crate) fn version(&self) -> Result<u64, HostCallError> {
        match self {
            Self::Cluster { informer, .. } => Ok(informer.all()?.0),
            Self::Folder { folder, .. } => Ok(folder.version()),
        }
    }

    /// Returns all objects and their version.
    pub(crate) async fn all(&self, deadline: Deadline) -> Result<(u64, Resource), HostCallError> {
        match self {
            Self::Cluster { informer, .. } => {
                let resolved = informer.ready(deadline).await?;
                let (version, objects) = informer.all()?;
                let resource = Resource {
                    api_version: resolved.kind.api_version.clone(),
                    kind: resolved.kind.kind.clone(),
                    plural: resolved.api.plural.clone(),
                    is_namespaced: resolved.is_namespaced,
                    objects: objects.to_vec(),
                };
                Ok((version, resource))
            }
            Self::Folder { folder, kind, namespace } => Ok(folder.all(kind, namespace.as_deref())),
        }
    }
}
