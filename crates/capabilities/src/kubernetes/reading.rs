//! A kind that a program may read, wherever its objects are.

use std::sync::Arc;

use proviso_engines::Deadline;
use proviso_engines::host::Resource;
use serde_json::Value;

use super::selector::Wanted;
use crate::cluster::{Cluster, Followed, Listed, select};
use crate::error::AskError;
use crate::folder::FolderObjects;
use crate::kind::Kind;

/// A kind, read for one program.
#[derive(Debug)]
pub(crate) enum Reading {
    Cluster {
        cluster: Arc<Cluster>,
        followed: Arc<Followed>,
    },
    /// Of a folder, in one namespace or all.
    Folder {
        folder: Arc<FolderObjects>,
        kind: Kind,
        namespace: Option<String>,
    },
}

/// Objects that a program asked for.
#[derive(Debug)]
pub(crate) struct Found {
    pub objects: Vec<Arc<Value>>,
    /// The list that they are from, where they are of one: it counts for as long as they are needed.
    _listed: Option<Arc<Listed>>,
}

impl From<Vec<Arc<Value>>> for Found {
    fn from(objects: Vec<Arc<Value>>) -> Self {
        Self { objects, _listed: None }
    }
}

impl Reading {
    /// Waits until its objects are known.
    pub(crate) async fn ready(&self, deadline: Deadline) -> Result<(), AskError> {
        match self {
            Self::Cluster { followed, .. } => followed.ready(deadline).await.map(drop),
            Self::Folder { .. } => Ok(()),
        }
    }

    pub(crate) async fn is_namespaced(&self, deadline: Deadline) -> Result<bool, AskError> {
        match self {
            Self::Cluster { followed, .. } => Ok(followed.ready(deadline).await?.is_namespaced),
            Self::Folder { folder, kind, .. } => Ok(folder.is_namespaced(kind)),
        }
    }

    pub(crate) async fn list(
        &self,
        namespace: Option<&str>,
        wanted: &Wanted,
        deadline: Deadline,
    ) -> Result<Found, AskError> {
        match self {
            Self::Cluster { cluster, followed } => {
                let described = followed.ready(deadline).await?;
                match &wanted.others {
                    Some(fields) => {
                        let listed = cluster.select(followed, &described, namespace, fields).await?;
                        Ok(Found { objects: select(&listed.objects, wanted), _listed: Some(listed) })
                    }
                    None => Ok(select(&followed.list(namespace)?, wanted).into()),
                }
            }
            Self::Folder { folder, kind, namespace: own } => {
                if let Some(fields) = &wanted.others {
                    let why = "without a cluster, objects are selected by metadata.name and metadata.namespace only";
                    return Err(AskError::Selector {
                        selector: "field_selector",
                        text: fields.clone(),
                        why: why.to_owned(),
                    });
                }
                Ok(select(&folder.list(kind, namespace.or(own.as_deref())), wanted).into())
            }
        }
    }

    pub(crate) async fn get(
        &self,
        namespace: Option<&str>,
        name: &str,
        is_fresh: bool,
        deadline: Deadline,
    ) -> Result<Option<Arc<Value>>, AskError> {
        match self {
            Self::Cluster { cluster, followed } => {
                let described = followed.ready(deadline).await?;
                cluster.get(followed, &described, namespace, name, is_fresh).await
            }
            Self::Folder { folder, kind, .. } => Ok(folder.get(kind, namespace.unwrap_or_default(), name)),
        }
    }

    /// A number that is another one after each change of the objects.
    pub(crate) fn version(&self) -> Result<u64, AskError> {
        match self {
            Self::Cluster { followed, .. } => Ok(followed.all()?.0),
            Self::Folder { folder, .. } => Ok(folder.version()),
        }
    }

    /// All objects at one moment, and the number of that moment.
    pub(crate) async fn all(&self, deadline: Deadline) -> Result<(u64, Resource), AskError> {
        match self {
            Self::Cluster { followed, .. } => {
                let described = followed.ready(deadline).await?;
                let (version, objects) = followed.all()?;
                let resource = Resource {
                    api_version: described.kind.api_version.clone(),
                    kind: described.kind.kind.clone(),
                    plural: described.api.plural.clone(),
                    is_namespaced: described.is_namespaced,
                    objects: objects.to_vec(),
                };
                Ok((version, resource))
            }
            Self::Folder { folder, kind, namespace } => Ok(folder.all(kind, namespace.as_deref())),
        }
    }
}
