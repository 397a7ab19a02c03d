//! Authorization of callers.

use crate::error::{Code, Error};
use crate::store::Caller;

/// One access to the Kubernetes API, as in a `SubjectAccessReview`. The API group is `proviso.dev`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    pub verb: &'static str,
    /// The plural name of the resource, such as `clusterpolicyexperiments`.
    pub resource: &'static str,
    /// The subresource of an experiment: `start`, `stop` or `commit`. `None` means the resource itself.
    pub subresource: Option<&'static str>,
    /// The namespace. `None` means a cluster-scoped resource, or all namespaces.
    pub namespace: Option<String>,
    /// The name of the object. `None` means all objects of the resource.
    pub name: Option<String>,
}

/// Decides which accesses a caller is allowed. The store calls it before it reads or changes an object.
pub trait Authorizer: Send + Sync + 'static {
    /// Checks that the caller is allowed the access.
    ///
    /// # Errors
    /// Fails with [`Code::PermissionDenied`] if the caller is not allowed the access, and with another code if the permissions of
    /// the caller cannot be determined.
    fn authorize(&self, caller: Option<&Caller>, access: &Access) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns true if the caller is allowed the access. For lists, which leave out what the caller may not read.
    ///
    /// # Errors
    /// Fails if the permissions of the caller cannot be determined.
    fn is_allowed(&self, caller: Option<&Caller>, access: &Access) -> impl Future<Output = Result<bool, Error>> + Send {
        async move {
            match self.authorize(caller, access).await {
                Ok(()) => Ok(true),
                Err(error) if error.code == Code::PermissionDenied => Ok(false),
                Err(error) => Err(error),
            }
        }
    }
}

/// An authorizer that allows every access of the client. It is for servers that have authorized the caller themselves.
#[derive(Clone, Copy, Debug)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    async fn authorize(&self, _: Option<&Caller>, _: &Access) -> Result<(), Error> {
        Ok(())
    }
}
