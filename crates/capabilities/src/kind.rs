//! Kinds of Kubernetes objects, as `contextAwareResources` names them.

use std::fmt;

use kube::core::GroupVersionKind;
use proviso_crds::ContextAwareResource;

/// A kind of Kubernetes objects: an API version and a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// The API version, such as `v1` or `apps/v1`.
    pub api_version: String,
    pub kind: String,
}

impl Kind {
    #[must_use]
    pub fn new(api_version: &str, kind: &str) -> Self {
        Self { api_version: api_version.to_owned(), kind: kind.to_owned() }
    }

    #[must_use]
    pub fn namespace() -> Self {
        Self::new("v1", "Namespace")
    }

    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub(crate) fn gvk(&self) -> GroupVersionKind {
        let version = self.api_version.split_once('/').map_or(&*self.api_version, |(_, version)| version);
        GroupVersionKind::gvk(self.group(), version, &self.kind)
    }
}

impl From<&ContextAwareResource> for Kind {
    fn from(resource: &ContextAwareResource) -> Self {
        Self::new(&resource.api_version, &resource.kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind, self.api_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_version_is_split_into_group_and_version() {
        for (api_version, group, version) in [("v1", "", "v1"), ("apps/v1", "apps", "v1")] {
            let gvk = Kind::new(api_version, "A").gvk();
            assert_eq!((gvk.group.as_str(), gvk.version.as_str()), (group, version));
        }
    }
}
