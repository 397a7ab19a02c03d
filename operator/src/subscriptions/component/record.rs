//! The record of the deliveries in the status of the subscription. Only the leader writes the status, and it never overwrites the record
//! of another leader: each write has the `resourceVersion` of the status that this operator knows.

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use proviso_core::configuration::Record;
use proviso_crds::{LastUpdate, PolicySubscription, PolicySubscriptionStatus};
use proviso_delivery::status::compute;
use serde_json::{Map, Value, json};

use super::{ClusterComponent, Error};
use crate::cache::lock;
use crate::context;
use crate::objects::MANAGER;

/// The number of attempts to write a status while somebody changes the subscription.
const ATTEMPTS: usize = 5;

/// The status that the API server has, as far as this operator knows.
#[derive(Clone, Debug)]
pub(super) struct Reported {
    resource_version: String,
    pub status: PolicySubscriptionStatus,
}

impl Reported {
    pub fn of(subscription: &PolicySubscription) -> Result<Self, Error> {
        let version = subscription.resource_version().ok_or(context::Error::Incomplete("metadata.resourceVersion"))?;
        Ok(Self { resource_version: version, status: subscription.status.clone().unwrap_or_default() })
    }

    /// Returns true if no other operator has written the record since.
    fn has_record_of(&self, other: &PolicySubscriptionStatus) -> bool {
        let update =
            |status: &PolicySubscriptionStatus| status.last_update.as_ref().map(|last| (last.id.clone(), last.result));
        self.status.record() == other.record()
            && update(&self.status) == update(other)
            && self.status.observed_resend == other.observed_resend
    }
}

impl ClusterComponent {
    /// Writes the status if it has changed. Returns when the API server has stored it.
    pub async fn report(&self, record: &Record, last: Option<&LastUpdate>) -> Result<(), Error> {
        let api = self.subscriptions();
        let mut place = None;
        for _ in 0..ATTEMPTS {
            let known = lock(&self.reported).clone();
            let status = self.with_view(|view| compute(view, record, last, &known.status, Timestamp::now()));
            if status == known.status {
                return Ok(());
            }
            // All attempts have one place: somebody may change the subscription more often than a place is free.
            if place.is_none() {
                place = Some(self.shared.record_writes.acquire(&self.namespace).await);
            }
            let json = |status: &PolicySubscriptionStatus| serde_json::to_value(status).map_err(context::Error::from);
            let patch = json!({
                "apiVersion": PolicySubscription::api_version(&()), "kind": PolicySubscription::kind(&()),
                "metadata": {"resourceVersion": known.resource_version},
                "status": merge_patch(&json(&known.status)?, &json(&status)?),
            });
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            match api.patch_status(&self.name, &params, &Patch::Merge(patch)).await {
                Ok(written) => {
                    let version =
                        written.resource_version().ok_or(context::Error::Incomplete("metadata.resourceVersion"))?;
                    *lock(&self.reported) = Reported { resource_version: version, status };
                    return Ok(());
                }
                Err(kube::Error::Api(error)) if error.is_conflict() => self.check_record().await?,
                Err(kube::Error::Api(error)) if error.is_not_found() => {
                    self.check_record().await?;
                    return Err(Error::StatusNotServed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The subscription changes all the time. The next attempt follows after a delay.
        Err(Error::Superseded)
    }

    fn subscriptions(&self) -> Api<PolicySubscription> {
        Api::namespaced(self.shared.context.client.clone(), &self.namespace)
    }

    /// Reads the status after a conflict. A change of the spec or of an annotation changes the `resourceVersion` too, and is no reason to
    /// drop the record.
    ///
    /// # Errors
    /// Returns [`Error::Superseded`] if another operator has written the record. Its `resourceVersion` is not taken over, so that each
    /// later write of this component is in conflict too.
    pub(super) async fn check_record(&self) -> Result<(), Error> {
        let found =
            self.subscriptions().get_opt(&self.name).await?.filter(|found| found.uid().as_ref() == Some(&self.uid));
        let found = Reported::of(&found.ok_or(Error::Deleted)?)?;
        let mut known = lock(&self.reported);
        if !known.has_record_of(&found.status) {
            return Err(Error::Superseded);
        }
        *known = found;
        Ok(())
    }
}

/// Returns the merge patch (RFC 7386) that changes `before` to `after`.
fn merge_patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        match before.get(key) {
            Some(known) if known == value => {}
            Some(known) => _ = patch.insert(key.clone(), merge_patch(known, value)),
            None => _ = patch.insert(key.clone(), value.clone()),
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_removes_absent_fields_and_leaves_out_equal_ones() {
        let before = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [1], "f": {"g": 1}});
        let after = json!({"b": {"c": 2}, "e": [1, 2], "f": {"g": 1}, "h": 3});
        assert_eq!(merge_patch(&before, &after), json!({"a": null, "b": {"c": 2, "d": null}, "e": [1, 2], "h": 3}));
        assert_eq!(merge_patch(&after, &after), json!({}));
    }
}
