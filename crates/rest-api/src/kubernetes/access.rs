//! What a caller is to be allowed before anything is done for them.

use crate::error::Error;
use crate::store::Caller;

/// One access to the Kubernetes API, as in a `SubjectAccessReview`. The group is `proviso.dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub verb: &'static str,
    /// In the plural, such as `clusterpolicyexperiments`.
    pub resource: &'static str,
    /// `start`, `stop` or `commit` of an experiment.
    pub subresource: Option<&'static str>,
    /// None for what belongs to no namespace, and for all namespaces.
    pub namespace: Option<String>,
    /// None where it is about all of a kind.
    pub name: Option<String>,
}

/// Says what callers may do. Asked before each effect and each look.
pub trait Authorizer: Send + Sync + 'static {
    /// # Errors
    /// When they may not, or when that cannot be found out.
    fn authorize(&self, caller: Option<&Caller>, access: &Access) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Everyone may do everything that the client may: for those who have checked before.
#[derive(Clone, Copy, Debug)]
pub struct Everyone;

impl Authorizer for Everyone {
    async fn authorize(&self, _: Option<&Caller>, _: &Access) -> Result<(), Error> {
        Ok(())
    }
}
