//! Authorization of callers: the API server decides by the same rules as for kubectl.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use proviso_crds::actions;
use proviso_rest_api::kubernetes::{Access, Authorizer};
use proviso_rest_api::{Caller, Code, Error};

/// An authorizer that asks the API server by a `SubjectAccessReview`.
#[derive(Clone)]
pub(crate) struct Reviews(Api<SubjectAccessReview>);

impl Reviews {
    pub(crate) fn new(client: Client) -> Self {
        Self(Api::all(client))
    }
}

impl Reviews {
    /// Returns the reason why the caller is not allowed the access; `None` if it is allowed.
    async fn refusal(&self, caller: Option<&Caller>, access: &Access) -> Result<Option<String>, Error> {
        let caller = known(caller)?;
        let denial = self.denial(caller, resource_attributes(access)).await?;
        Ok(denial.map(|reason| refusal(&caller.user, access, &reason)))
    }

    /// Returns true if the caller has this permission.
    ///
    /// # Errors
    /// Fails if the permissions of the caller cannot be determined.
    pub(crate) async fn has_permission(
        &self,
        caller: Option<&Caller>,
        permission: ResourceAttributes,
    ) -> Result<bool, Error> {
        Ok(self.denial(known(caller)?, permission).await?.is_none())
    }

    /// Returns the reason of the API server why the caller does not have the permission; `None` if it has.
    async fn denial(&self, caller: &Caller, permission: ResourceAttributes) -> Result<Option<String>, Error> {
        let review = SubjectAccessReview { spec: review_spec(caller, permission), ..SubjectAccessReview::default() };
        let status = match self.0.create(&PostParams::default(), &review).await {
            Ok(answered) => answered.status.unwrap_or_default(),
            Err(error) => {
                let message = format!("the API server cannot review the permissions of the caller: {error}");
                return Err(Error::new(Code::Unavailable, "API_SERVER", message));
            }
        };
        let is_allowed = status.allowed && status.denied != Some(true);
        Ok((!is_allowed).then(|| status.reason.unwrap_or_default()))
    }
}

impl Authorizer for Reviews {
    async fn authorize(&self, caller: Option<&Caller>, access: &Access) -> Result<(), Error> {
        let Some(refusal) = self.refusal(caller, access).await? else { return Ok(()) };
        let user = caller.map(|caller| caller.user.as_str()).unwrap_or_default();
        tracing::warn!(user, refusal, "refused");
        Err(Error::new(Code::PermissionDenied, "FORBIDDEN", refusal))
    }

    /// Does not log a refusal, because a list that leaves out an object refuses nothing.
    async fn is_allowed(&self, caller: Option<&Caller>, access: &Access) -> Result<bool, Error> {
        Ok(self.refusal(caller, access).await?.is_none())
    }
}

/// Returns the API group of the permission. Actions are subresources in the group of the aggregated API.
fn group(access: &Access) -> &'static str {
    if access.subresource.is_some() { actions::GROUP } else { proviso_crds::GROUP }
}

fn known(caller: Option<&Caller>) -> Result<&Caller, Error> {
    caller.ok_or_else(|| Error::new(Code::Unauthenticated, "UNKNOWN_CALLER", "the caller is not authenticated"))
}

fn resource_attributes(access: &Access) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(access.verb.to_owned()),
        group: Some(group(access).to_owned()),
        resource: Some(access.resource.to_owned()),
        subresource: access.subresource.map(ToOwned::to_owned),
        namespace: access.namespace.clone(),
        name: access.name.clone(),
        ..ResourceAttributes::default()
    }
}

fn review_spec(caller: &Caller, attributes: ResourceAttributes) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(caller.user.clone()),
        uid: Some(caller.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(caller.groups.clone()),
        extra: Some(caller.extra.clone()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    }
}

/// Returns the message of a refusal, in the words of the API server.
fn refusal(user: &str, access: &Access, reason: &str) -> String {
    let (verb, group) = (access.verb, group(access));
    let resource = match access.subresource {
        Some(subresource) => format!("{}/{subresource}", access.resource),
        None => access.resource.to_owned(),
    };
    let name = access.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let scope = match &access.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    format!(
        "{}.{group}{name} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}{reason}",
        access.resource
    )
}
