//! `PolicySubscription`s of a cluster.

use kube::Api;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use proviso_crds::PolicySubscription;
use proviso_crds::names::{RESEND, field_managers};
use serde_json::json;

use super::{Cluster, similar_names};
use crate::access::Access;
use crate::error::{Error, MissingSubscription};
use crate::found::Found;
use crate::objects::{SubscriptionName, SubscriptionObject};

const SUBSCRIPTIONS: &str = "policysubscriptions.proviso.dev";

impl Cluster {
    /// Returns the subscriptions of the user's namespace, or of all namespaces.
    ///
    /// # Errors
    /// When the request fails, for example without permission.
    pub async fn subscriptions(&self, of_all_namespaces: bool) -> Result<Found<SubscriptionObject>, Error> {
        let namespace = (!of_all_namespaces).then_some(self.namespace.as_str());
        let mut found = Found { items: Vec::new(), unseen: Vec::new() };
        found.read(&self.list_subscriptions(namespace).await?, SubscriptionObject::read);
        Ok(found)
    }

    /// Finds the subscription of this name in the user's namespace.
    ///
    /// # Errors
    /// When it does not exist, or a request fails.
    pub async fn find_subscription(&self, name: &str) -> Result<SubscriptionObject, Error> {
        let of = SubscriptionName { namespace: self.namespace.clone(), name: name.to_owned() };
        if let Some(found) = self.subscription(&of).await? {
            return Ok(found);
        }
        // The search includes all namespaces, because users often forget the namespace.
        let all = match self.list_subscriptions(None).await {
            Err(Error::Forbidden { .. }) => self.list_subscriptions(Some(&self.namespace)).await,
            listed => listed,
        };
        let names = match all {
            Ok(all) => all.iter().filter_map(name_of).collect(),
            Err(Error::Forbidden { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        Err(Error::MissingSubscription(MissingSubscription { similar: similar_names(name, names), name: of }))
    }

    /// Returns a subscription; `None` if it does not exist.
    ///
    /// # Errors
    /// When the request fails, or the object is invalid.
    pub async fn subscription(&self, of: &SubscriptionName) -> Result<Option<SubscriptionObject>, Error> {
        let access = access("get", Some(&of.namespace));
        let object = self.subscriptions_api(Some(&of.namespace)).get_opt(&of.name).await;
        let object = object.map_err(|error| self.error(error, access))?;
        let object = object.map(|object| SubscriptionObject::read(&object)).transpose();
        object.map_err(|error| Error::Malformed { what: of.to_string(), error })
    }

    /// Requests from the operator that it sends all policies of a component again, by an annotation with this new value.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn request_resend(&self, subscription: &SubscriptionObject, value: &str) -> Result<(), Error> {
        let access = access("patch", Some(&subscription.name.namespace));
        // The uid prevents a change of a later subscription with the same name.
        let patch = json!({"metadata": {"uid": subscription.uid, "annotations": {RESEND: value}}});
        let parameters = PatchParams { field_manager: Some(field_managers::CLI.to_owned()), ..PatchParams::default() };
        let api = self.subscriptions_api(Some(&subscription.name.namespace));
        let patched = api.patch(&subscription.name.name, &parameters, &Patch::Merge(patch)).await;
        patched.map(drop).map_err(|error| self.error(error, access))
    }

    /// Lists the subscriptions. `namespace` is `None` for all namespaces.
    async fn list_subscriptions(&self, namespace: Option<&str>) -> Result<Vec<DynamicObject>, Error> {
        let listed = self.subscriptions_api(namespace).list(&ListParams::default()).await;
        Ok(listed.map_err(|error| self.error(error, access("list", namespace)))?.items)
    }

    fn subscriptions_api(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let (client, resource) = (self.client.clone(), ApiResource::erase::<PolicySubscription>(&()));
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }
}

fn access(verb: &'static str, namespace: Option<&str>) -> Access {
    Access { verb, resource: SUBSCRIPTIONS, subresource: None, namespace: namespace.map(str::to_owned) }
}

fn name_of(object: &DynamicObject) -> Option<SubscriptionName> {
    Some(SubscriptionName { namespace: object.namespace()?, name: object.name_any() })
}
